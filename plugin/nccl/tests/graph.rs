//! Graph files as the reader of the real NCCL understands them.
#![allow(clippy::unwrap_used, missing_docs)]

#[allow(dead_code, reason = "other tests need more of it")]
mod built;

use built::{compile, real_nccl};
use interop::nccl::{PathType, RingGraph, write_graph};
use std::fmt::Write as _;
use std::process::Command;
use topology::Rank;

#[test]
fn long_the_reader_of_the_real_nccl_takes_our_rings() {
    let Some(nccl) = real_nccl() else {
        // `.ci/setup gpu` has told why.
        return eprintln!("skipped: there is no libnccl.so.2 (`.ci/setup gpu` gets it)");
    };
    let folder = tempfile::tempdir().unwrap();
    let (program, file) = (folder.path().join("graph"), folder.path().join("graph.xml"));
    compile("graph.c", &program, &[]);
    for (ranks, step, count, path, number) in
        [(4, 1, 1, PathType::NvLink, 1), (8, 3, 4, PathType::System, 9), (17, 5, 32, PathType::PcieSwitches, 5)]
    {
        // Rings that go on by a step that has no divisor in common with the number of ranks, and the same backwards.
        let forth = (0..ranks).map(|at| at * step % ranks);
        let back = (0..ranks).map(|at| (ranks - at) * step % ranks);
        let orders = [forth.collect::<Vec<_>>(), back.collect()];
        let channels: Vec<&Vec<usize>> = orders.iter().cycle().take(count).collect();
        let of_ranks = |order: &&Vec<usize>| order.iter().map(|rank| Rank::from_index(*rank)).collect();
        let graph = RingGraph { channels: channels.iter().map(of_ranks).collect(), speed: 12.5 };
        let mut text = Vec::new();
        write_graph(&graph, path, &mut text).unwrap();
        std::fs::write(&file, text).unwrap();
        let output = Command::new(&program).arg(&nccl).arg(&file).arg(ranks.to_string()).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut expected = String::new();
        for (id, pattern) in [(0, 4), (1, 3)] {
            writeln!(expected, "{id} {pattern} {count} 12.5 {number}").unwrap();
            for order in &channels {
                let words: Vec<String> = order.iter().map(usize::to_string).collect();
                writeln!(expected, "{}", words.join(" ")).unwrap();
            }
        }
        assert_eq!(String::from_utf8(output.stdout).unwrap(), expected);
    }
}
