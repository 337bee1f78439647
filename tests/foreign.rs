//! Plans of other tools: exported, verified, played and run as a user would do it.

use crate::binary::antiphon_in;
use serde_json::Value;
use std::fs;
use std::path::Path;

/// Plans, exports and verifies; returns the name of the file.
fn exported(folder: &Path, spec: &str, collective: &str, options: &str) -> String {
    let extension = if options.contains("json") { "json" } else { "xml" };
    let name = format!("{collective}{}.{extension}", options.replace([' ', '-'], ""));
    let plan = format!(
        "synth --topology {spec} --collective {collective} --size 96KB --strategy classic --force -o plan.json -q"
    );
    antiphon_in(folder, &plan).ok();
    antiphon_in(folder, &format!("export plan.json --topology {spec} {options} --force -o {name}")).ok();
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
        ("ring:4", "allreduce", "--format msccl-xml --fuse --channels 2 --instances 2"),
        ("ring:4,direction=both", "reducescatter", "--format msccl-xml-executor --protocol ll"),
        ("clique:3", "broadcast", "--format msccl-xml"),
        ("clique:3", "scatter", "--format msccl-xml-executor"),
    ] {
        let name = exported(folder, spec, collective, options);
        let rows =
            antiphon_in(folder, &format!("run {name} --transport threads --iterations 2 --size 5000,96KB --json")).ok();
        let rows: Vec<Value> = rows.stdout.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
        assert!(rows.len() >= 2);
        assert!(rows.iter().all(|row| row["wrong"] == 0 && row["collective"] == collective), "{rows:?}");
    }
}

#[test]
fn a_plan_survives_the_way_through_mscclpp() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for (spec, collective, options) in [
        ("clique:4", "allreduce", "--in-place"),
        ("clique:3", "allgather", "--instances 2"),
        ("ring:4,direction=both", "reducescatter", "--channels 2"),
        ("clique:3", "alltoall", "--name exchange"),
        ("ndv2x2", "allgather", ""),
    ] {
        let name = exported(folder, spec, collective, &format!("--format mscclpp-json {options}"));
        let here = |line: &str| antiphon_in(folder, line).ok();
        let played = here(&format!("simulate {name} --topology {spec} --json")).json();
        let told = here(&format!("explain {name} --topology {spec} --json")).json();
        assert_eq!(told["makespan_us"], played["makespan_us"]);
        // Twice the size takes longer.
        let larger = here(&format!("simulate {name} --topology {spec} --size 2MiB --json")).json();
        assert!(larger["makespan_us"].as_f64() > played["makespan_us"].as_f64());
        for transport in ["threads", "shm"] {
            let line = format!("run {name} --topology {spec} --transport {transport} --iterations 2 --size 5000,96KB");
            let rows = here(&format!("{line} --json"));
            let rows: Vec<Value> = rows.stdout.lines().map(|row| serde_json::from_str(row).unwrap()).collect();
            assert_eq!(rows.len(), 2, "{collective}: {rows:?}");
            let in_place = options.contains("in-place");
            assert!(rows.iter().all(|row| row["wrong"] == 0 && row["in_place"] == in_place), "{collective}: {rows:?}");
        }
    }
}

/// For every mistake in an MSCCL++ file, the answer says where it is and why it is wrong.
#[test]
fn wrong_execution_plans_are_refused_with_line_and_reason() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let name = exported(folder, "clique:3", "allgather", "--format mscclpp-json");
    let text = fs::read_to_string(folder.join(&name)).unwrap();
    let plan: Value = serde_json::from_str(&text).unwrap();
    let ops = |plan: &mut Value, rank: usize, change: &dyn Fn(&mut Vec<Value>)| {
        for block in plan["gpus"][rank]["threadblocks"].as_array_mut().unwrap() {
            change(block["ops"].as_array_mut().unwrap());
        }
    };
    let without = |ops: &mut Vec<Value>, name: &str| ops.retain(|op| op["name"] != name);
    let puts = |ops: &mut Vec<Value>, change: &dyn Fn(&mut Value)| {
        ops.iter_mut().filter(|op| op["name"] == "put").for_each(change);
    };
    type Change<'a> = &'a dyn Fn(&mut Value);
    let wrong: [(Change<'_>, i32, &str); 9] = [
        (&|plan| plan["zebra"] = 1.into(), 2, "unknown field `zebra`"),
        (&|plan| ops(plan, 0, &|ops| ops[0]["name"] = "sigal".into()), 2, "unknown word `sigal`"),
        (&|plan| drop(plan["gpus"].as_array_mut().unwrap().pop()), 1, "does not exist"),
        (&|plan| ops(plan, 0, &|ops| without(ops, "signal")), 1, "waits for ever"),
        (&|plan| ops(plan, 0, &|ops| without(ops, "wait")), 1, "before anything says"),
        (&|plan| ops(plan, 1, &|ops| puts(ops, &|op| op["dst_buff"][0]["index"] = 7.into())), 1, "which has 3"),
        (&|plan| ops(plan, 1, &|ops| puts(ops, &|op| op["dst_buff"][0]["index"] = 0.into())), 1, "nothing orders"),
        (&|plan| ops(plan, 2, &|ops| without(ops, "copy")), 1, "rank 2"),
        (&|plan| ops(plan, 2, &|ops| puts(ops, &|op| op["dst_buff"][0]["buffer_id"] = 9.into())), 1, "9"),
    ];
    for (change, code, expected) in wrong {
        let mut plan = plan.clone();
        change(&mut plan);
        fs::write(folder.join("wrong.json"), serde_json::to_string_pretty(&plan).unwrap()).unwrap();
        let ran = antiphon_in(folder, "verify wrong.json --json");
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(ran.code, code, "{expected}: {said}");
        assert!(said.contains("wrong.json:") && said.contains(expected), "{expected}: {said}");
        let ran = antiphon_in(folder, "run wrong.json --size 96KB --iterations 1");
        assert_eq!(ran.code, code, "{expected}: a wrong plan was run: {}{}", ran.stdout, ran.stderr);
    }
    let half = &text[..text.len() / 2];
    fs::write(folder.join("wrong.json"), half).unwrap();
    assert_eq!(antiphon_in(folder, "verify wrong.json").code, 2);
    // An export that the format cannot express is refused.
    exported(folder, "ring:4", "allreduce", "--format mscclpp-json");
    let ran = antiphon_in(folder, "export plan.json --topology ring:4 --format mscclpp-json --fuse");
    assert_eq!(ran.code, 1, "{}", ran.stdout);
    assert!(ran.stderr.contains("MSCCL++ buffers none"), "{}", ran.stderr);
}

#[test]
fn rings_go_to_nccl_and_other_plans_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    antiphon_in(folder, "synth --topology ring:4 --collective allreduce --size 96KB --strategy classic -o ring.json")
        .ok();
    let text = antiphon_in(folder, "export ring.json --format nccl-graph --path nvl").ok().stdout;
    assert!(text.contains(r#"<graph id="0" pattern="4""#) && text.contains(r#"typeintra="NVL""#), "{text}");
    for (spec, collective, expected) in [
        ("dgx2x2", "allgather", "describes one machine, and this plan is for 2"),
        ("clique:4", "alltoall", "alltoall among 4 of 4 ranks does not follow such rings"),
    ] {
        antiphon_in(
            folder,
            &format!(
                "synth --topology {spec} --collective {collective} --size 96KB --time-limit 1s --force -o plan.json"
            ),
        )
        .ok();
        let ran = antiphon_in(folder, "export plan.json --format nccl-graph");
        assert!(ran.code == 1 && ran.stderr.contains(expected), "{}", ran.stderr);
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
