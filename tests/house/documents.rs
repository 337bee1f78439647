//! The documents: their length, the files and pages that they name, and their links.

use super::{CRATES, ROOT, files_under, folder, sources};
use std::path::Path;

fn page(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

/// The longest line of a text, in letters.
fn widest(text: &str) -> usize {
    text.lines().map(|line| line.chars().count()).max().unwrap_or(0)
}

#[test]
fn the_architecture_document_fits_and_numbers_its_invariants() {
    let text = page("ARCHITECTURE.md");
    assert!(text.lines().count() <= 150, "ARCHITECTURE.md is longer than 150 lines");
    assert!(widest(&text) <= 120, "ARCHITECTURE.md has a line of {} letters", widest(&text));
    for number in 1..=11 {
        assert!(text.contains(&format!("\n{number}. ")), "invariant {number} is missing");
    }
    for name in CRATES.iter().filter(|name| **name != "antiphon") {
        let folder = folder(name);
        assert!(text.contains(&format!("`{folder}/`")), "the code map does not mention {folder}/");
    }
}

/// Paths in backquotes that begin in a folder of the repository.
#[test]
fn pages_about_the_code_name_files_that_exist() {
    let mut pages = files_under("docs", "md");
    pages.push(Path::new(ROOT).join("ARCHITECTURE.md"));
    let folders: Vec<_> =
        CRATES.iter().copied().chain(["src", "tests", "benches", "machines", "sketches", "docs"]).collect();
    for page in pages {
        let text = std::fs::read_to_string(&page).unwrap();
        let quoted = text.split('`').skip(1).step_by(2);
        let is_path = |word: &&str| word.split_once('/').is_some_and(|(folder, _)| folders.contains(&folder));
        for path in quoted.filter(is_path).filter(|path| !path.contains([' ', '\n'])) {
            assert!(Path::new(ROOT).join(path).exists(), "{} names {path}, which does not exist", page.display());
        }
    }
}

/// Comments may name pages of `docs/`: each must exist.
#[test]
fn comments_name_pages_that_exist() {
    for source in sources("") {
        for rest in source.text.split("docs/").skip(1) {
            let page = rest.split(|letter: char| letter.is_whitespace() || "`)\",".contains(letter)).next().unwrap();
            if page.ends_with(".md") {
                assert!(Path::new(ROOT).join("docs").join(page).exists(), "{} names docs/{page}", source.path);
            }
        }
    }
}

/// A table is written by the command that the comment before it names, or the paragraph before it says when and how it
/// was measured once.
#[test]
fn every_table_of_benchmarks_names_its_command() {
    let text = page("BENCHMARKS.md");
    let benches: String = sources("benches").into_iter().map(|source| source.text).collect();
    let (mut before, mut count) = ("", 0);
    for paragraph in text.split("\n\n").map(str::trim) {
        let table = paragraph.lines().position(|line| line.starts_with('|'));
        if let Some(first) = table {
            count += 1;
            match paragraph.lines().next().filter(|_| first > 0).and_then(|line| line.strip_prefix("<!-- ")) {
                Some(comment) => {
                    let (name, command) = comment.trim_end_matches(" -->").split_once(": ").unwrap();
                    assert!(benches.contains(&format!("\"{name}\"")), "no benchmark writes the table {name}");
                    assert!(command.starts_with("cargo bench ") || command.starts_with("make "), "{comment}");
                    assert!(paragraph.ends_with(&format!("<!-- /{name} -->")), "{name} has no end");
                }
                None => assert!(before.starts_with("Measured once, 20"), "no command before the table\n{paragraph}"),
            }
        }
        before = paragraph;
    }
    assert!(count > 20);
}

#[test]
fn every_decision_has_its_page_and_its_line_in_the_index() {
    let index = page("docs/decisions/README.md");
    for path in files_under("docs/decisions", "md") {
        let name = path.file_name().unwrap().to_str().unwrap();
        if name == "README.md" {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(index.contains(&format!("]({name})")), "the index does not lead to {name}");
        assert!(text.lines().count() <= 60 && widest(&text) <= 120, "{name} is no page");
        for part in ["## Context", "## Decision", "## Rejected", "## Consequences", "## Where"] {
            assert!(text.contains(part), "{name} has no `{part}`");
        }
    }
}

#[test]
fn links_between_pages_lead_somewhere() {
    let pages = files_under("", "md");
    for path in &pages {
        let text = std::fs::read_to_string(path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            let target = link.split('#').next().unwrap();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            assert!(path.parent().unwrap().join(target).exists(), "{} leads to {target}", path.display());
        }
    }
}

#[test]
fn the_glossary_has_one_term_a_row() {
    let text = page("GLOSSARY.md");
    let rows = text.lines().filter(|line| line.starts_with("| "));
    let terms = rows.map(|row| row.split('|').nth(1).unwrap().trim()).filter(|term| *term != "term");
    let terms: Vec<_> = terms.collect();
    for term in &terms {
        assert!(!term.contains(','), "GLOSSARY.md: `{term}` is more than one term");
        assert_eq!(terms.iter().filter(|other| *other == term).count(), 1, "GLOSSARY.md has `{term}` twice");
    }
}
