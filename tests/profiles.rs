//! Profiles of machines whose true values are known, because local ranks emulate them.

use crate::binary::antiphon_in;
use std::fmt::Write;

/// Two machines of two ranks: 1 GB/s and 100 µs inside, 0.1 GB/s and 300 µs between, through one NIC each.
fn two_machines() -> String {
    let mut text =
        "format: antiphon-topology/1\nname: truth\nranks: 4\nmachines: [[0, 1], [2, 3]]\nlinks:\n".to_owned();
    for from in 0..4 {
        for to in (0..4).filter(|to| *to != from) {
            let near = from / 2 == to / 2;
            let (alpha, beta) = if near { (100, 0.001) } else { (300, 0.01) };
            let shared = if near { String::new() } else { format!(", resources: [{}]", from / 2) };
            let _ = writeln!(
                text,
                "- {{from: {from}, to: {to}, alpha_us: {alpha}, beta_us_per_byte: {beta}, latency: occupies{shared}}}"
            );
        }
    }
    text.push_str(
        "resources:\n- {id: 0, name: out0, beta_us_per_byte: 0.01}\n- {id: 1, name: out1, beta_us_per_byte: 0.01}\n",
    );
    text
}

/// The errors of a measured topology of two machines of two ranks.
fn differences(truth: &serde_json::Value, measured: &serde_json::Value) -> Vec<String> {
    let name_of = |id: &serde_json::Value| {
        let all = measured["resources"].as_array().unwrap();
        all.iter().find(|shared| shared["id"] == *id).unwrap()["name"].as_str().unwrap().to_owned()
    };
    let mut wrong = Vec::new();
    let links = measured["links"].as_array().unwrap();
    assert_eq!(links.len(), 12);
    for link in links {
        let same = |other: &&serde_json::Value| other["from"] == link["from"] && other["to"] == link["to"];
        let known = truth["links"].as_array().unwrap().iter().find(same).unwrap();
        for cost in ["alpha_us", "beta_us_per_byte"] {
            let ratio = link[cost].as_f64().unwrap() / known[cost].as_f64().unwrap();
            if !(0.97..1.03).contains(&ratio) {
                wrong.push(format!("{cost}: {link} measured, {known} is true"));
            }
        }
        let near = link["from"].as_u64().unwrap() / 2 == link["to"].as_u64().unwrap() / 2;
        let shared = link["resources"].as_array().map_or(&[][..], Vec::as_slice);
        let names: Vec<String> = shared.iter().map(name_of).collect();
        let from = link["from"].as_u64().unwrap() / 2;
        // With two machines, everything that leaves one enters the other, so either name is right.
        let right = [format!("machine{from}.nic.tx"), format!("machine{}.nic.rx", 1 - from)];
        if if near { !names.is_empty() } else { names.len() != 1 || !right.contains(&names[0]) } {
            wrong.push(format!("{link}: {names:?}"));
        }
    }
    wrong
}

#[test]
fn an_emulated_cluster_is_measured_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line).ok();
    std::fs::write(folder.path().join("truth.yaml"), two_machines()).unwrap();
    let show = |file: &str| here(&format!("topology show ./{file} --json")).json();
    let truth = show("truth.yaml");
    // The times of an emulated machine do not depend on what else this computer does.
    let ran = here("profile --ranks 4 --quick --check 4 --emulate ./truth.yaml --force --svg m.svg -o m.yaml");
    let words = &ran.stderr;
    assert!(ran.stdout.contains("bandwidth, row → column"), "{}", ran.stdout);
    assert!(words.contains("Predicted and then timed: 2 single messages and 2 sets"), "{words}");
    let measured = show("m.yaml");
    let wrong = differences(&truth, &measured);
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(measured["machines"] == truth["machines"] && words.contains("2 machines"), "{words}");
    let picture = std::fs::read_to_string(folder.path().join("m.svg")).unwrap();
    assert!(picture.starts_with("<svg") && picture.contains("0 → 2: α"));
    here("synth --topology ./m.yaml --collective allgather --size 1MB --strategy matching -o plan.json");
    here("verify plan.json --topology ./m.yaml");
}

#[test]
fn a_topology_is_drawn() {
    let folder = tempfile::tempdir().unwrap();
    let here = |line: &str| antiphon_in(folder.path(), line).ok();
    let ran = here("topology show ndv2x2 --heat-map --svg map.svg");
    assert!(ran.stdout.contains("bandwidth, row → column") && ran.stdout.contains("links"), "{}", ran.stdout);
    assert!(!ran.stdout.contains('\u{1b}'), "no colours where there is no terminal");
    assert!(std::fs::read_to_string(folder.path().join("map.svg")).unwrap().ends_with("</svg>\n"));
}
