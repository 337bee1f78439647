//! The order of this crate's rooms, as a test: a room imports only those before it in the list.
//!
//! The header of `lib.rs` says what each is for. Tests may look up: they are left out.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

const ROOMS: &[&str] =
    &["problem", "symmetry", "sketch", "solver", "bounds", "ordering", "epochs", "strategies", "polish", "planner"];

#[test]
fn rooms_import_only_those_before_them() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut seen = BTreeSet::new();
    let mut wrong = Vec::new();
    for path in sources(&root) {
        let relative = path.strip_prefix(&root).expect("a file below the root").to_path_buf();
        let parts: Vec<&str> = relative.iter().filter_map(|part| part.to_str()).collect();
        let [room, inside, ..] = parts[..] else { continue };
        let place = ROOMS.iter().position(|it| *it == room);
        let place = place.unwrap_or_else(|| panic!("{room}/ is a room without a place in the order"));
        seen.insert(place);
        for import in imports(&std::fs::read_to_string(&path).expect("a source file")) {
            let target = import.split("::").next().unwrap_or_default();
            let is_before = ROOMS.iter().position(|it| *it == target).is_some_and(|at| at <= place);
            // Another strategy is none of a strategy's business: what two need lies beside their folders.
            let sibling = import.split("::").nth(1).filter(|_| room == "strategies" && target == "strategies");
            let is_sibling = sibling.is_some_and(|it| it != inside && root.join("strategies").join(it).is_dir());
            if !is_before || is_sibling {
                wrong.push(format!("{} imports crate::{import}", relative.display()));
            }
        }
    }
    assert_eq!(seen.len(), ROOMS.len(), "a room of the list is gone");
    assert!(wrong.is_empty(), "arrows back up:\n{}", wrong.join("\n"));
}

/// What follows `crate::` in the code of a file, before its tests; of a list in braces, every entry.
fn imports(text: &str) -> Vec<String> {
    let code: String = text
        .lines()
        .take_while(|line| *line != "mod tests {")
        .filter(|line| !line.trim_start().starts_with("//"))
        .flat_map(|line| [line, "\n"])
        .collect();
    let mut found = Vec::new();
    for (at, marker) in code.match_indices("crate::") {
        let rest = &code[at + marker.len()..];
        let is_path = |c: char| c.is_alphanumeric() || c == '_' || c == ':';
        match rest.strip_prefix('{') {
            Some(list) => {
                found.extend(list.split('}').next().unwrap_or_default().split(',').map(|it| it.trim().to_owned()))
            }
            None => found.push(rest.split(|c| !is_path(c)).next().unwrap_or_default().to_owned()),
        }
    }
    found
}

fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder of this crate") {
        let path = entry.expect("an entry").path();
        let is_test = path.file_stem().is_some_and(|name| name == "tests");
        if path.is_dir() {
            found.extend(sources(&path));
        } else if path.extension().is_some_and(|it| it == "rs") && !is_test {
            found.push(path);
        }
    }
    found
}

#[test]
fn an_arrow_back_up_is_seen() {
    let text = "use crate::planner::{A, B};\n// crate::no\nfn f() { crate::sketch::g() }\nuse crate::{X, y::Z};\nmod tests {\ncrate::late";
    assert_eq!(imports(text), ["planner::", "sketch::g", "X", "y::Z"]);
}
