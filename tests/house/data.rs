//! Machines and sketches: each resolves, has a name that works, and says in its first lines why it exists.

use super::files_under;
use crate::binary::antiphon;
use std::path::Path;

/// The comment at the beginning of a file, in one line.
fn opening(path: &Path) -> String {
    let text = std::fs::read_to_string(path).unwrap();
    let comment: Vec<_> = text.lines().map_while(|line| line.strip_prefix("# ")).collect();
    comment.join(" ")
}

#[test]
fn every_machine_and_sketch_says_why_it_exists() {
    for folder in ["machines", "sketches"] {
        for path in files_under(folder, "yaml") {
            let words = opening(&path).split_whitespace().count();
            assert!(words >= 10, "{} opens with a comment of {words} words", path.display());
        }
    }
}

#[test]
fn every_machine_is_built_in_and_resolves() {
    let listed = antiphon("topology list --json").ok().json();
    let forms: Vec<&str> =
        listed["topologies"].as_array().unwrap().iter().filter_map(|entry| entry["form"].as_str()).collect();
    for path in files_under("machines", "yaml") {
        let name = path.file_stem().unwrap().to_str().unwrap();
        let is_it = |form: &&&str| form.strip_suffix("xN").unwrap_or(form) == name;
        let form = forms.iter().find(is_it).unwrap_or_else(|| panic!("`topology list` does not know {name}"));
        let checked = antiphon(&format!("topology check {} --json", form.replace("xN", "x2"))).ok().json();
        assert!(checked["ranks"].as_u64().unwrap() > 1, "{form}");
    }
}

#[test]
fn every_sketch_resolves_on_the_machine_that_it_names() {
    for path in files_under("sketches", "yaml") {
        let text = std::fs::read_to_string(&path).unwrap();
        let name = path.file_stem().unwrap().to_str().unwrap();
        assert!(text.contains(&format!("\nname: {name}\n")), "{} has another name inside", path.display());
        let such_as = text.split_once("such_as: ").unwrap_or_else(|| panic!("{}: for what machine?", path.display())).1;
        let machine = such_as.trim_start_matches('"').split(['"', '}', '\n']).next().unwrap();
        antiphon(&format!("sketch check {} --topology {machine}", path.display())).ok();
    }
}
