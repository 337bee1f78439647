//! The main job, end to end, as a person sees it first.

use crate::binary::antiphon_in;

#[test]
fn the_demo_leaves_what_it_promises() {
    let folder = tempfile::tempdir().unwrap();
    let ran = antiphon_in(folder.path(), "demo").ok();
    for word in ["allgather", "allreduce", "alltoall", "emulated", "stock", "planned", "predicted", "measured"] {
        assert!(ran.stdout.contains(word), "no `{word}` in\n{}", ran.stdout);
    }
    let left = folder.path().join("demo-out");
    for file in [
        "measured.yaml",
        "sketch.yaml",
        "tuning.json",
        "tuning-emulated.json",
        "results.json",
        "table.txt",
        "table.md",
        "timeline.html",
    ] {
        assert!(left.join(file).is_file(), "{file} is missing");
    }
    let results = std::fs::read_to_string(left.join("results.json")).unwrap();
    let results: serde_json::Value = serde_json::from_str(&results).unwrap();
    let table = std::fs::read_to_string(left.join("table.md")).unwrap();
    assert_eq!(table.lines().filter(|line| line.starts_with("| all")).count(), 18, "{table}");
    assert!(results["cells"].as_array().unwrap().iter().all(|cell| cell["wrong"] == 0), "{results}");
}
