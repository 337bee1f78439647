//! Tests of the importers: samples in the documented forms, broken ones, and many random damages.

use super::*;
use crate::document::Document;
use crate::{from_json, resolve, to_json};
use rand::{RngExt, SeedableRng};

const CUBE_MESH: &str = include_str!("../../../tests/data/import/smi-cube-mesh.txt");
const NVSWITCH: &str = include_str!("../../../tests/data/import/smi-nvswitch.txt");
const NCCL: &str = include_str!("../../../tests/data/import/nccl-nvswitch.xml");
const NCCL_PAIR: &str = include_str!("../../../tests/data/import/nccl-pair.xml");
const TACCL: &str = r#"{"name": "NDv2_1MB", "gpus_per_node": 8, "nics_per_node": 1, "alpha": 0.3,
 "node_betas_list": [23, 46], "node_invbws_list": [23, 46],
 "remote_invbw": 107, "remote_alpha": 2.6, "remote_beta": 105}"#;
const CUSTOM: &str = r#"{"name": "three_1KB", "gpus_per_node": 3, "alpha": 1,
 "links": [[0, 1, 0], [2, 0, 1], [0, 0, 0]],
 "betas": [[0, 2, 0], [3, 0, 4], [0, 0, 0]],
 "invbws": [[0, 3, 0], [4, 0, 5], [0, 0, 0]]}"#;

fn get(text: &str, machines: u64) -> Imported {
    let options = ImportOptions { machines, ..ImportOptions::default() };
    import(text, "sample", &options).unwrap_or_else(|error| panic!("{error}"))
}

/// Bandwidths in GB/s and resources of the links between two ranks.
fn links(topology: &Topology, from: u32, to: u32) -> Vec<(f64, Vec<String>)> {
    let found = topology.links().iter().filter(|link| (link.from.0, link.to.0) == (from, to));
    let names = |link: &crate::Link| link.resources.iter().map(|id| topology.resource(*id).name.clone()).collect();
    found.map(|link| ((link.beta.gbps() * 1e6).round() / 1e6, names(link))).collect()
}

#[test]
fn the_cube_mesh_is_seen_in_the_matrix() {
    let imported = get(CUBE_MESH, 1);
    let known = resolve("dgx1").unwrap();
    assert_eq!(imported.topology.links().len(), 56);
    for link in imported.topology.links() {
        let expected = known.between(link.from, link.to).next().map(|id| known.link(id));
        match expected {
            Some(expected) => assert!(link.resources.is_empty() && (link.beta / expected.beta - 1.0).abs() < 1e-12),
            None => assert_eq!(link.beta.gbps().round(), if link.from.0 / 4 == link.to.0 / 4 { 24.0 } else { 10.0 }),
        }
    }
    let path = |names: &[&str]| names.iter().map(|name| format!("machine0.{name}")).collect::<Vec<_>>();
    let far =
        ["gpu0.pcie.tx", "bridge0.pcie.tx", "socket0.smp.tx", "socket1.smp.rx", "bridge3.pcie.rx", "gpu7.pcie.rx"];
    assert_eq!(links(&imported.topology, 0, 7), [(10.0, path(&far))]);
    // Two machines: the NIC beside the sender and the NIC beside the receiver.
    let joined = get(CUBE_MESH, 2).topology;
    let mut way = path(&["gpu5.pcie.tx", "mlx5_2.pcie.rx", "mlx5_2.port.tx"]);
    way.extend(["mlx5_0.port.rx", "mlx5_0.pcie.tx", "gpu1.pcie.rx"].map(|name| format!("machine1.{name}")));
    assert_eq!(links(&joined, 5, 9), [(24.0, way)]);
    assert_eq!(joined.machines().len(), 2);
}

#[test]
fn more_nvlinks_than_a_gpu_has_mean_a_switch() {
    let imported = get(NVSWITCH, 1);
    assert_eq!(imported.topology.resources().len(), 16);
    let ports = vec!["machine0.gpu2.nvlink.tx".to_owned(), "machine0.gpu5.nvlink.rx".to_owned()];
    assert_eq!(links(&imported.topology, 2, 5), [(300.0, ports)]);
    assert!(imported.to_yaml().contains("# NV12 through an NVSwitch, nominal"), "{}", imported.to_yaml());
    let faster = ImportOptions { assumed: "nvlink=50GBps,nic=50GBps".parse().unwrap(), ..ImportOptions::default() };
    let faster = import(NVSWITCH, "sample", &faster).unwrap();
    assert_eq!(links(&faster.topology, 2, 5)[0].0, 600.0);
    let four = "\tGPU0\tGPU1\tGPU2\tGPU3\nGPU0\tX\tNV4\tNV4\tNV4\nGPU1\tNV4\tX\tNV4\tNV4\nGPU2\tNV4\tNV4\tX\tNV4\nGPU3\tNV4\tNV4\tNV4\tX\n";
    assert_eq!(links(&get(four, 1).topology, 0, 3), [(100.0, vec![])]);
    assert_eq!(get("GPU0 CPU Affinity\nGPU0 X 0-19\n", 1).topology.rank_count(), 1);
}

#[test]
fn nccl_dumps_become_trees_and_ports() {
    let topology = get(NCCL, 2).topology;
    assert_eq!((topology.rank_count(), topology.links().len()), (16, 2 * 56 + 2 * 64));
    let ports = vec!["machine0.gpu0.nvlink.tx".to_owned(), "machine0.gpu7.nvlink.rx".to_owned()];
    assert_eq!(links(&topology, 0, 7), [(370.8, ports)]);
    let [(speed, way)] = &links(&topology, 1, 12)[..] else { panic!("one link") };
    assert_eq!(*speed, 48.0);
    assert_eq!(
        way[..3],
        ["pci.0000:12:00.0.tx", "pci.0000:19:00.0.rx", "net0.mlx5_0.tx"].map(|name| format!("machine0.{name}"))
    );
    assert_eq!(
        way[3..],
        ["net2.mlx5_2.rx", "pci.0000:39:00.0.tx", "pci.0000:31:00.0.rx"].map(|name| format!("machine1.{name}"))
    );
    let pair = get(NCCL_PAIR, 2).topology;
    assert_eq!(links(&pair, 0, 1), [(240.0, vec![])]);
    let [(speed, way)] = &links(&pair, 1, 2)[..] else { panic!("one link") };
    assert_eq!((*speed, way.len()), (12.0, 3 + 1 + 1 + 1));
    let across = pair.between(crate::Rank(1), crate::Rank(2)).next().unwrap();
    assert_eq!(pair.link(across).alpha.0, 15.0);
    // Two hosts in one dump are two machines.
    let two = NCCL.replacen("host_hash=\"0x1\" numaid=\"1\"", "host_hash=\"0x2\" numaid=\"1\"", 1);
    assert_eq!(get(&two, 1).topology.machines().len(), 2);
    assert!(import(&two, "x", &ImportOptions { machines: 2, ..ImportOptions::default() }).is_err());
    let processor = NCCL_PAIR.replacen("<nvlink", "<c2c bw=\"44000\" count=\"10\"/><nvlink", 1);
    assert_eq!(get(&processor, 1).topology.links().len(), 2);
}

#[test]
fn taccl_files_agree_with_our_machines() {
    let ours = resolve("ndv2x2,costs=taccl-1mb").unwrap();
    let theirs = get(TACCL, 2).topology;
    assert_eq!(theirs.links().len(), ours.links().len());
    for (ours, theirs) in ours.links().iter().zip(theirs.links()) {
        assert_eq!((ours.from, ours.to, ours.resources.len()), (theirs.from, theirs.to, theirs.resources.len()));
        assert!((ours.beta / theirs.beta - 1.0).abs() < 1e-12, "{}→{}", ours.from, ours.to);
        // Our instance leaves out the α that its times, cut to whole numbers, do not show.
        assert_eq!(theirs.alpha.0, if ours.alpha.0 > 0.0 { 2.6 } else { 0.3 });
    }
    let small = TACCL.replace("1MB", "32KB").replace("2.6,", "26,").replace("0.3,", "3,").replace("105", "32.8");
    let small = small.replace("[23, 46],\n", "[7.18, 14.38],\n").replacen("[23, 46]", "[7, 14]", 1);
    let topology = get(&small, 2).topology;
    let far = topology.links().iter().find(|link| topology.crosses_machines(link)).unwrap();
    assert_eq!((far.alpha.0, (far.beta.0 * 32_000.0 * 1e9).round() / 1e9), (2.6, 3.28));
    let switched = TACCL.replace("NDv2", "DGX2").replace(": 8", ": 16").replace("[23, 46]", "[8]");
    let switched = switched.replace("\"nics_per_node\": 1,", "\"nics_per_node\": 8,");
    let (ours, theirs) = (resolve("dgx2x2,costs=taccl-1mb").unwrap(), get(&switched, 2).topology);
    assert_eq!((ours.links().len(), ours.resources().len()), (theirs.links().len(), theirs.resources().len()));
    let custom = get(CUSTOM, 1).topology;
    let pairs: Vec<_> = custom.links().iter().map(|link| (link.from.0, link.to.0, link.beta.0 * 1e3)).collect();
    // links[1][0] is two links from 0 to 1.
    assert_eq!(pairs, [(0, 1, 3.0), (0, 1, 3.0), (1, 0, 2.0), (2, 1, 4.0)]);
}

#[test]
fn what_is_printed_is_read_again() {
    for text in [CUBE_MESH, NVSWITCH, NCCL, NCCL_PAIR, TACCL, CUSTOM] {
        let imported = get(text, 1);
        let yaml = imported.to_yaml();
        assert_eq!(crate::interchange::from_document(&Document::yaml("y", &yaml)).as_ref(), Ok(&imported.topology));
        assert_eq!(from_json(&to_json(&imported.topology), "j").as_ref(), Ok(&imported.topology));
        let entries = yaml.lines().filter(|line| line.starts_with("- {"));
        assert!(entries.clone().count() > 0 && entries.clone().all(|line| line.contains("} # ")), "{yaml}");
    }
}

/// Sample, what is replaced, by what, the place of the error and a part of it.
const BROKEN: &[(&str, &str, &str, &str, &str)] = &[
    (CUBE_MESH, "GPU3\tNV1", "GPU3\tNVX", "sample:5:", "`NVX` is no way between devices"),
    (CUBE_MESH, "GPU3\tNV1", "GPU3\tSYS", "sample:5:", "other half"),
    (CUBE_MESH, "GPU3\tNV1", "GPU9\tNV1", "sample:1:", "`GPU3` has a column and no row"),
    (CUBE_MESH, "GPU3\tNV1", "GPU2\tNV1", "sample:5:", "`GPU2` has two rows"),
    (CUBE_MESH, "GPU3\tNV1", "GPU3\t X ", "sample:5:", "only there"),
    (CUBE_MESH, "NODE\t X \t\t", "NODE", "sample:13:", "ends before the column of `mlx5_3`"),
    (CUBE_MESH, "GPU0", "FPU0", "sample:1:1", "found no matrix"),
    (NCCL, "<system", "<graphs", "sample:", ""),
    (NCCL, "sm=\"90\"", "sm=\"ninety\"", "sample:7:", "`sm` of <gpu> is `ninety`"),
    (NCCL, "rank=\"1\"", "rank=\"0\"", "sample:15:", "rank 0 is another GPU already, in line 7"),
    (NCCL, "count=\"5\"", "count=\"-4\"", "sample:8:", "`count` of <nvlink> is `-4`, not a number from 1 to 128"),
    (NCCL, "count=\"5\"", "count=\"999999999999\"", "sample:8:", "not a number from 1 to 128"),
    (NCCL, "speed=\"400000\"", "speed=\"-400000\"", "sample:", "`speed` of <net> is `-400000`"),
    (
        NCCL,
        "busid=\"0000:12",
        "busid=\"0000:11",
        "sample:14:",
        "bus id 0000:11:00.0 is another device already, in line 6",
    ),
    (NCCL, "</system>", "", "sample:3:1", "<system> has no end"),
    (NCCL, "<!-- eight", "<!DOCTYPE a [<!ENTITY b \"c\">]><!-- eight", "sample:2:1", "document types"),
    (NCCL, "count=\"5\"", "count=\"&big;\"", "sample:8:", ""),
    (NCCL, "</system>", "</system><system/>", "sample:", "follows after the end"),
    (NCCL_PAIR, "<cpu", "<cup", "sample:", ""),
    (NCCL_PAIR, "target=\"0002:", "target=\"0001:", "sample:4:", "to itself"),
    (TACCL, "NDv2_1MB", "NDv2", "sample:1:", "--chunk-bytes"),
    (TACCL, "NDv2_1MB", "box_1MB", "sample:1:", "--kind"),
    (TACCL, ": 8", ": 9", "sample:1:", "has 8 GPUs, not 9"),
    (TACCL, "[23, 46]", "[23]", "sample:2:", "2 speed(s), but 1 are listed"),
    (TACCL, "0.3", "-0.3", "sample:1:", "from 0 to 10¹²"),
    (TACCL, "\"alpha\"", "\"aplha\"", "sample:1:", "unknown field `aplha`"),
    (CUSTOM, "[2, 0, 1]", "[2, 0]", "sample:2:", "2 columns for 3 GPUs"),
    (CUSTOM, "[2, 0, 1]", "[2, 1, 1]", "sample:2:", "no link to itself"),
    (CUSTOM, "[2, 0, 1]", "[2000000000, 0, 1]", "sample:2:", "parallel"),
    (CUSTOM, "[3, 0, 4]", "[-3, 0, 4]", "sample:3:", "from 0 to 10¹²"),
];

#[test]
fn faults_have_a_place() {
    for (text, from, to, place, fragment) in BROKEN {
        assert!(text.contains(from), "{from}");
        let error = import(&text.replacen(from, to, 1), "sample", &ImportOptions::default()).expect_err(to).to_string();
        assert!(error.starts_with(place) && error.contains(fragment), "{to}: {error}");
    }
    for (text, fragment) in
        [("", "is empty"), ("hello", "found no matrix"), ("[1]", "found no matrix"), ("<a/>", "<system>")]
    {
        let error = import(text, "sample", &ImportOptions::default()).expect_err(text).to_string();
        assert!(error.contains(fragment), "{error}");
    }
    let deep = format!("<system>{}", "<pci>".repeat(100_000));
    assert!(import(&deep, "x", &ImportOptions::default()).unwrap_err().to_string().contains("levels"));
    let nested = format!("<system><cpu>{}<gpu/>{}</cpu></system>", "<pci>".repeat(13), "</pci>".repeat(13));
    assert!(import(&nested, "x", &ImportOptions::default()).unwrap_err().to_string().contains("12 others"));
    let gpus = format!("<system><cpu>{}</cpu></system>", "<gpu/>".repeat(641));
    assert!(import(&gpus, "x", &ImportOptions::default()).unwrap_err().to_string().contains("more than 640 GPUs"));
    let wide = format!("<system {}/>", (0..1000).map(|index| format!("a{index}='1' ")).collect::<String>());
    assert!(import(&wide, "x", &ImportOptions::default()).unwrap_err().to_string().contains("attributes"));
    let many = ImportOptions { machines: 1 << 40, ..ImportOptions::default() };
    assert!(import(TACCL, "x", &many).unwrap_err().to_string().contains("ranks: 8796093022208 is more"));
    assert!("nvlink=fast".parse::<Assumed>().is_err() && "speed=1GBps".parse::<Assumed>().is_err());
}

#[test]
fn damaged_files_are_read_or_refused_but_never_more() {
    let mut random = rand_pcg::Pcg64::seed_from_u64(7);
    let options = ImportOptions { machines: 2, ..ImportOptions::default() };
    let (mut read, mut refused) = (0, 0);
    for text in [CUBE_MESH, NVSWITCH, NCCL, NCCL_PAIR, TACCL, CUSTOM] {
        for _ in 0..300 {
            let mut bytes = text.as_bytes().to_vec();
            for _ in 0..random.random_range(1..4) {
                if bytes.is_empty() {
                    break;
                }
                let at = random.random_range(0..bytes.len());
                let end = (at + random.random_range(1..40)).min(bytes.len());
                match random.random_range(0..5) {
                    0 => bytes[at] = random.random_range(0..=255),
                    1 => drop(bytes.drain(at..end)),
                    2 => {
                        let copy = bytes[at..end].to_vec();
                        let to = random.random_range(0..bytes.len());
                        drop(bytes.splice(to..to, copy));
                    }
                    3 => bytes.truncate(at.max(1)),
                    _ => drop(bytes.splice(at..at, *b"99999999")),
                }
            }
            match import(&String::from_utf8_lossy(&bytes), "damaged", &options) {
                Ok(imported) => {
                    read += 1;
                    assert!(imported.topology.rank_count() > 0);
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                }
            }
        }
    }
    assert!(read > 100 && refused > 500, "{read} {refused}");
}
