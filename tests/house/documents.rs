//! The pages for readers: they fit, name what is there, and lead somewhere.

use super::{CRATES, ROOT, files_under};
use std::path::Path;

fn page(path: &str) -> String {
    std::fs::read_to_string(Path::new(ROOT).join(path)).unwrap()
}

#[test]
fn the_architecture_document_fits_and_numbers_its_invariants() {
    let text = page("ARCHITECTURE.md");
    assert!(text.lines().count() <= 200, "ARCHITECTURE.md is longer than 200 lines");
    for number in 1..=11 {
        assert!(text.contains(&format!("\n{number}. ")), "invariant {number} is missing");
    }
    for name in CRATES.iter().filter(|name| **name != "antiphon") {
        assert!(text.contains(&format!("`{name}/`")), "the code map does not mention {name}/");
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
