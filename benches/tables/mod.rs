//! The tables of `BENCHMARKS.md`: each benchmark writes its table between two comments; the first comment names the
//! command.
//!
//! ```text
//! <!-- growth: cargo bench --bench plans growth -->
//! | topology | … |
//! <!-- /growth -->
//! ```

use std::path::Path;

/// Replaces the text between the comments of `name`.
pub(crate) fn write_between(name: &str, table: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("BENCHMARKS.md");
    let text = std::fs::read_to_string(&path).expect("BENCHMARKS.md is there");
    let start = text.find(&format!("<!-- {name}: ")).expect("the table has a comment before it");
    let start = start + text[start..].find('\n').expect("the comment is a line") + 1;
    let end = start + text[start..].find(&format!("<!-- /{name} -->")).expect("and one after it");
    let written = format!("{}{table}{}", &text[..start], &text[end..]);
    std::fs::write(&path, written).expect("BENCHMARKS.md can be written");
}

/// A row of a table.
pub(crate) fn row<'a>(cells: impl IntoIterator<Item = &'a str>) -> String {
    let cells: Vec<&str> = cells.into_iter().collect();
    format!("| {} |\n", cells.join(" | "))
}

/// The head of a table, and the line below it.
pub(crate) fn head(names: &[&str]) -> String {
    format!("{}|{}\n", row(names.iter().copied()), "---|".repeat(names.len()))
}
