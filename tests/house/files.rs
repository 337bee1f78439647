//! Rules for every source file.

use super::{ROOT, code, sources};
use std::path::Path;

/// The most lines of a file without its unit tests, and of a function.
const LINES: usize = 400;
const FUNCTION_LINES: usize = 60;

#[test]
fn every_source_file_says_what_it_owns() {
    for source in sources("") {
        assert!(source.text.starts_with("//!"), "{} has no module documentation", source.path);
    }
}

#[test]
fn no_file_is_too_long() {
    let long = |source: super::Source| {
        let lines = source.lines();
        (lines > LINES).then(|| format!("{} has {lines} lines without its tests", source.path))
    };
    let long: Vec<_> = sources("").into_iter().filter_map(long).collect();
    assert!(long.is_empty(), "more than {LINES} lines:\n{}", long.join("\n"));
}

#[test]
fn no_function_is_too_long() {
    let mut long = Vec::new();
    for source in sources("").iter().filter(|source| !source.is_test()) {
        for (name, lines) in functions(&source.code()) {
            if lines > FUNCTION_LINES {
                long.push(format!("{}: {name} has {lines} lines", source.path));
            }
        }
    }
    assert!(long.is_empty(), "more than {FUNCTION_LINES} lines:\n{}", long.join("\n"));
}

/// The functions of a piece of code, and how many lines each has.
fn functions(code: &str) -> Vec<(&str, usize)> {
    let mut found = Vec::new();
    for (at, _) in code.match_indices("fn ") {
        let name = code[at + 3..].split(|letter: char| !letter.is_alphanumeric() && letter != '_').next().unwrap();
        if name.is_empty() || code[..at].ends_with(|before: char| before.is_alphanumeric() || before == '_') {
            continue;
        }
        found.push((name, code[at..code::item_end(code, at)].lines().count()));
    }
    found
}

#[test]
fn lines_of_functions_are_counted() {
    let code = "impl A {\n    fn one() -> [u8; 2] {\n        if a { b }\n    }\n\n    fn two();\n}\nlet f: fn(u8);";
    assert_eq!(functions(code), [("one", 3), ("two", 1)]);
}

#[test]
fn no_module_is_a_drawer_for_all_sorts() {
    for source in sources("") {
        let drawer = source.path.split('/').find(|part| {
            ["utils", "util", "common", "helpers", "misc", "types", "manager"].contains(&part.trim_end_matches(".rs"))
        });
        assert!(drawer.is_none(), "{}: name it after what it owns", source.path);
    }
}

#[test]
fn nothing_is_ignored_or_left_to_do() {
    // The words are written in two pieces, so that this file does not contain them.
    for word in [concat!("#[", "ignore"), concat!("todo", "!("), concat!("unimplemented", "!(")] {
        for source in sources("") {
            assert!(!source.text.contains(word), "{} contains {word}", source.path);
        }
    }
}

#[test]
fn unsafe_code_stays_where_it_belongs() {
    for source in sources("") {
        let welcome = [
            "runtime/",
            "plugin/src/",
            "plugin/nccl/src/",
            "python/src/",
            "synth/src/solver/",
            "tests/cuda/",
            "tests/nccl/",
        ]
        .iter()
        .any(|folder| source.path.starts_with(folder));
        let has_unsafe = source.text.lines().any(|line| {
            let code = line.split("//").next().unwrap_or("");
            code.contains(concat!("unsafe", " {")) || code.contains(concat!("unsafe", " fn"))
        });
        assert!(!has_unsafe || welcome, "{} contains unsafe code", source.path);
    }
}

#[test]
fn no_test_file_is_forgotten() {
    let main = std::fs::read_to_string(Path::new(ROOT).join("tests/main.rs")).unwrap();
    for source in sources("tests") {
        let inside = source.path.trim_start_matches("tests/").trim_end_matches(".rs").trim_end_matches("/mod");
        if !inside.contains('/') && inside != "main" {
            assert!(main.contains(&format!("mod {inside};")), "{} is not compiled", source.path);
        }
    }
}
