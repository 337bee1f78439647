//! Sketches, after TACCL [1]: what a user tells the planner about good schedules on a machine.
//!
//! A [`SketchFile`] is a sketch as written. [`SketchFile::resolve`] turns it into a [`Sketch`] for one topology: tables
//! over links ([`crate::problem::Constraints`]) that strategies obey, and pins for the planner. A sketch only forbids,
//! orders and prefers; it never changes the machine. [`obey`] checks a schedule independently.
//!
//! ```yaml
//! # The first lines say why the sketch exists.
//! name: two-boxes
//! topology: {machines: 2, ranks_per_machine: 8, such_as: "ndv2x2"}   # refuses any other shape
//! links:
//!   forbid: [[0, 3], {from: 4, to: [5, 6], both_ways: true}]    # ranks; or between_machines, inside_machine,
//!   allow_only: [{class: inside_machine, from: 0}]              # or local ranks of every machine
//! relays: {1: [0], 3: [2]}     # between machines: local sender → local receivers; or `direct` (i → i), `all`
//! senders: {1: [0, 1], 3: [2, 3]}    # the chunks of these local ranks leave their machine through this one
//! own_chunks_first: true       # between machines, a sender's own chunks go before those it relays
//! max_machine_hops: 1          # no chunk crosses between machines more than once
//! stages: [inside_machine, between_machines, inside_machine]    # the order in which a chunk uses links
//! symmetry: [{rotate: 8, within: 16}, {permutation: [1, 0, …]}, {cycles: [[0, 3]]}, {map: {0: 3, 3: 0}}]
//!                              # or `auto`, `none`
//! placement: auto              # which physical rank each local rank is: `none`, or a list
//! connections: few             # or `many`, or [{among: [0, 1, 2, 3], wish: few}, …] for switches of local ranks
//! objective: bandwidth         # or `latency`, `balance`
//! chunks_per_rank: 2
//! sizes: {from: 1KB, to: 1MB}
//! strategy: milp
//! time_limit: 60s
//! ```
//!
//! Every key may be left out, and then restricts nothing.
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023.

mod body;
mod describe;
mod error;
mod file;
mod links;
mod obey;
mod placement;
mod remarks;
mod resolve;
mod shapes;
mod taccl;
mod wishes;

pub use crate::problem::{ConnectionPolicy, Objective};
pub use crate::symmetry::SymmetryRejection;
pub use body::SizeRange;
pub use describe::{Restriction, SketchSummary, StageSummary, WishedConnections, describe};
pub use error::{Mistake, Position, SketchError};
pub use file::SketchFile;
pub use obey::{BrokenRule, SketchViolation, obey};
pub use remarks::remarks;
pub use resolve::{Pins, Sketch};
pub use taccl::{ImportedSketch, import_taccl};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::reach::check_reachable;
    use crate::problem::{Deadline, Limits, Problem, SearchOptions};
    use crate::strategies::Context;
    use crate::strategies::matching::Matching;
    use crate::strategies::reversal::propose;
    use schedule::{Collective, Demand, Request, verify};
    use std::path::{Path, PathBuf};
    use std::sync::Arc;
    use topology::{Micros, Topology};

    fn shipped() -> Vec<PathBuf> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sketches");
        let mut files: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        files.sort();
        files
    }

    fn read(path: &Path) -> SketchFile {
        let text = std::fs::read_to_string(path).unwrap();
        let name = path.file_name().unwrap().to_str().unwrap();
        SketchFile::parse(&text, name).unwrap_or_else(|error| panic!("{error}"))
    }

    fn resolved(path: &Path, spec: &str) -> (Sketch, Arc<Topology>) {
        let topology = topology::resolve(spec).unwrap();
        let sketch = read(path).resolve(&topology).unwrap_or_else(|error| panic!("{error}"));
        (sketch, Arc::new(topology))
    }

    fn problem(sketch: &Sketch, topology: &Arc<Topology>, collective: Collective) -> Problem {
        let request = Request::new(collective, topology.rank_count(), 1_000_000 * topology.rank_count() as u64)
            .with_chunks(sketch.pins.chunks_per_rank.unwrap_or(1));
        Problem {
            topology: topology.clone(),
            demand: Arc::new(Demand::new(request).unwrap()),
            constraints: Arc::new(sketch.constraints.clone()),
        }
    }

    #[test]
    fn no_shipped_sketch_is_forgotten() {
        let names: Vec<_> = shipped().iter().map(|path| path.file_name().unwrap().to_owned()).collect();
        assert!(names.len() >= 12, "{names:?}");
        for path in shipped() {
            assert_eq!(path.extension().unwrap(), "yaml", "{path:?}");
            let file = read(&path);
            let (sketch, _) = resolved(&path, file.such_as().expect("a shipped sketch says what it fits"));
            assert_eq!(sketch.name, path.file_stem().unwrap().to_str().unwrap());
            assert!(sketch.why.is_some_and(|why| why.len() > 60), "{path:?} says why it exists");
        }
    }

    #[test]
    fn every_shipped_sketch_lets_every_chunk_through() {
        for path in shipped() {
            let (sketch, topology) = resolved(&path, read(&path).such_as().unwrap());
            for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll] {
                let verdict = check_reachable(&problem(&sketch, &topology, collective));
                assert_eq!(verdict, Ok(()), "{path:?} {collective}");
            }
        }
    }

    #[test]
    fn a_strategy_finds_a_schedule_that_obeys_every_shipped_sketch() {
        for path in shipped() {
            let (sketch, topology) = resolved(&path, read(&path).such_as().unwrap());
            // An AllReduce crosses between machines twice: sums on their way to the collector, and copies on their way
            // back.
            for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce] {
                let problem = problem(&sketch, &topology, collective);
                let limits = Limits { restarts: 1, ..Limits::default() };
                let options = SearchOptions { limits, threads: Some(1), ..SearchOptions::default() };
                let deadline = Deadline::default();
                let context = Context::among_others(&options, &deadline, Micros::ZERO);
                let attempts = propose(&problem, &context, &Matching).unwrap();
                let found = attempts.into_iter().find_map(|attempt| attempt.schedule).expect("a schedule");
                let verified = verify(found, &topology).unwrap_or_else(|rejection| panic!("{path:?}: {rejection}"));
                assert_eq!(obey(verified.schedule(), &topology, &problem.constraints), [], "{path:?} {collective}");
            }
        }
    }

    #[test]
    fn the_demo_fits_every_eight_ranks_with_the_links_of_a_cube_mesh() {
        let demo = shipped().into_iter().find(|path| path.ends_with("demo.yaml")).unwrap();
        for (spec, links) in [("clique:8", 56), ("ndv2x1", 32), ("dgx1", 32), ("switch:8", 56)] {
            let (sketch, topology) = resolved(&demo, spec);
            let summary = describe(&sketch, &topology);
            assert_eq!((summary.links, summary.allowed_links), (links, 32), "{spec}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::prelude::ProptestConfig::with_cases(200))]

        /// A damaged sketch is read or refused, but never causes a panic. A refusal names a position.
        #[test]
        fn damaged_sketches_do_no_harm(
            which in 0usize..12,
            cuts in proptest::collection::vec((0usize..2000, "[-:{}&*!0-9a-z \\[\\]\n]{0,3}"), 1..4),
        ) {
            let path = &shipped()[which];
            let mut text: Vec<char> = std::fs::read_to_string(path).unwrap().chars().collect();
            for (at, patch) in cuts {
                let at = at % text.len();
                text.splice(at..(at + 2).min(text.len()), patch.chars());
            }
            let text: String = text.into_iter().collect();
            let topology = topology::resolve(read(path).such_as().unwrap()).unwrap();
            let result = SketchFile::parse(&text, "s.yaml").and_then(|file| file.resolve(&topology));
            if let Err(error) = result {
                proptest::prop_assert!(error.position.is_some(), "{}", error);
            }
        }
    }

    #[test]
    fn an_infeasible_sketch_names_the_line_to_relax() {
        let topology = Arc::new(topology::resolve("ndv2x2,costs=taccl-1mb").unwrap());
        for (text, line) in [
            ("links:\n  forbid:\n    - between_machines\n", 3),
            ("links:\n  forbid:\n    - {from: 3}\n", 3),
            ("name: cut\nlinks:\n  allow_only:\n    - inside_machine\n", 4),
        ] {
            let sketch = SketchFile::parse(text, "s.yaml").unwrap().resolve(&topology).unwrap();
            match check_reachable(&problem(&sketch, &topology, Collective::AllGather)) {
                Err(crate::problem::SynthError::Infeasible { relax: Some(relax), .. }) => {
                    assert_eq!(relax.line(), line)
                }
                other => panic!("{text}: {other:?}"),
            }
        }
    }
}
