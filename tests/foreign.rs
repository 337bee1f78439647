//! Plans of other tools: exported, verified, played and run as a user would.

use crate::binary::antiphon_in;
use std::fs;
use std::path::Path;

/// Plans, exports and verifies; returns the name of the file.
fn exported(folder: &Path, spec: &str, collective: &str, options: &str) -> String {
    let name = format!("{collective}{}.xml", options.replace([' ', '-'], ""));
    let plan =
        format!("synth --topology {spec} --collective {collective} --size 96KB --strategy classic -o plan.json -q");
    antiphon_in(folder, &plan).ok();
    antiphon_in(folder, &format!("export plan.json --topology {spec} {options} -o {name}")).ok();
    antiphon_in(folder, &format!("verify {name} --topology {spec}")).ok();
    name
}

#[test]
fn a_plan_survives_the_way_through_msccl() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (spec, collective, options) in [
        ("clique:3", "allgather", "--format msccl-xml"),
        ("clique:4", "allreduce", "--format msccl-xml-executor --instances 2 --in-place"),
        ("clique:5", "alltoall", "--format msccl-xml --max-threadblocks 2"),
        ("ring:4,direction=both", "reducescatter", "--format msccl-xml-executor --protocol ll"),
        ("clique:3", "broadcast", "--format msccl-xml"),
        ("clique:3", "scatter", "--format msccl-xml-executor"),
    ] {
        let name = exported(folder, spec, collective, options);
        let rows =
            antiphon_in(folder, &format!("run {name} --transport threads --iterations 2 --size 5000,96KB --json")).ok();
        let rows: Vec<serde_json::Value> = rows.stdout.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
        assert!(rows.len() >= 2);
        assert!(rows.iter().all(|row| row["wrong"] == 0 && row["collective"] == collective), "{rows:?}");
    }
}

#[test]
fn a_program_is_as_fast_as_its_schedule() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name = exported(folder, "ring:4", "allgather", "--format msccl-xml");
    let simulate = |file: &str| antiphon_in(folder, &format!("simulate {file} --topology ring:4 --json")).ok().json();
    let schedule = simulate("plan.json")["makespan_us"].as_f64().unwrap();
    let program = simulate(&format!("{name} --size 96KB --html page.html --trace trace.json"));
    assert!((program["makespan_us"].as_f64().unwrap() - schedule).abs() < 1e-6 * schedule);
    assert!(fs::read_to_string(folder.join("page.html")).unwrap().contains("allgather"));
    let path = antiphon_in(folder, &format!("explain {name} --topology ring:4 --size 96KB --json")).ok().json();
    assert_eq!(path["makespan_us"], program["makespan_us"]);
    assert_eq!(path["idle_us"], 0.0);
}

#[test]
fn wrong_files_are_refused_with_line_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name = exported(folder, "clique:3", "allgather", "--format msccl-xml-executor");
    let text = fs::read_to_string(folder.join(&name)).unwrap();
    for (old, new, code, expected) in [
        ("</gpu>", "", 2, "this is not XML"),
        ("type=\"r\"", "type=\"x\"", 2, "one of: s r rcs"),
        ("nchannels=\"1\"", "nchannels=\"40\"", 1, "`nchannels` is 40, more than the 32"),
        ("srcoff=\"0\"", "srcoff=\"7\"", 1, "the buffer has"),
    ] {
        assert!(text.contains(old), "{old}: {text}");
        fs::write(folder.join("wrong.xml"), text.replacen(old, new, 1)).unwrap();
        let ran = antiphon_in(folder, "verify wrong.xml --json");
        assert_eq!(ran.code, code, "{old}: {}{}", ran.stdout, ran.stderr);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(said.contains("wrong.xml:") && said.contains(expected), "{old}: {said}");
    }
    let ran = antiphon_in(folder, &format!("simulate {name} --topology ring:3"));
    assert_eq!(ran.code, 1, "{}", ran.stderr);
    assert!(ran.stderr.contains("no link"), "{}", ran.stderr);
}
