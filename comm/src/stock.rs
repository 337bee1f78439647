//! The plan that serves a call where no table says a better one: the best textbook algorithm.
//!
//! The principal function is [`plan`]. All ranks come to the same plan, each by itself, because it follows from what they all
//! know: how many they are, what is called, and the size.

use crate::error::{CommError, CommResult};
use program::{LowerOptions, VerifiedProgram, check, lower};
use schedule::{Collective, Demand, ReduceOp, Request};
use std::sync::Arc;
use synth::{Options, Problem, StrategyKind};
use topology::{Latency, Link, Micros, MicrosPerByte, Rank, Topology, TopologyParts};

/// What a message costs between ranks of one machine, about: µs, and µs per byte.
const ALPHA: Micros = Micros(0.3);
const BETA: MicrosPerByte = MicrosPerByte(1.0 / 5000.0);
/// Up to so many ranks, every pair has a link; of more, each has one to those a power of two away.
const MOST_DIRECT: usize = 64;

/// Which collective, whatever its size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CallKind {
    pub(crate) collective: Collective,
    pub(crate) root: Option<Rank>,
    pub(crate) op: Option<ReduceOp>,
    pub(crate) in_place: bool,
}

impl CallKind {
    /// A call that is not in place, reduces nothing and has no root.
    pub(crate) const fn plain(collective: Collective) -> Self {
        Self { collective, root: None, op: None, in_place: false }
    }

    /// The size of a call as the collective counts it, in bytes: `each` is that of one block, as MPI counts.
    pub(crate) fn size(&self, ranks: usize, each: u64) -> u64 {
        each.saturating_mul(Request::new(self.collective, ranks, 0).parts())
    }
}

/// The plan of so many ranks for a call of about `bytes` bytes (as the collective counts them), and its name.
///
/// # Errors
/// If no textbook algorithm does what is called, which would be a defect.
pub(crate) fn plan(ranks: usize, kind: CallKind, bytes: u64) -> CommResult<(VerifiedProgram, Arc<str>)> {
    let mut request = Request::new(kind.collective, ranks, bytes);
    request.root = kind.root;
    request.op = kind.op;
    let demand = Demand::new(request).map_err(no_plan)?;
    let problem = Problem::new(Arc::new(machine(ranks)?), Arc::new(demand));
    let options = Options { strategy: Some(StrategyKind::Classic), ..Options::default() };
    let found = synth::synthesize(&[problem], &options, &|_| {}).map_err(no_plan)?;
    let lowering = LowerOptions { in_place: kind.in_place, ..LowerOptions::default() };
    let program = lower(&found.schedule, &lowering).map_err(no_plan)?;
    let program = check(program).map_err(no_plan)?;
    Ok((program, format!("{} {}", kind.collective, found.report.strategy).into()))
}

fn no_plan(reason: impl std::fmt::Display) -> CommError {
    CommError::NoPlan(reason.to_string())
}

/// A machine on which all ranks are alike.
fn machine(ranks: usize) -> CommResult<Topology> {
    let distances: Vec<usize> = match ranks {
        0..=MOST_DIRECT => (1..ranks).collect(),
        _ => (0..ranks.ilog2() + 1).flat_map(|bit| [1 << bit, ranks - (1 << bit).min(ranks - 1)]).collect(),
    };
    let mut links: Vec<Link> = Vec::new();
    for from in 0..ranks {
        let mut peers: Vec<usize> = distances.iter().map(|distance| (from + distance) % ranks).collect();
        peers.sort_unstable();
        peers.dedup();
        links.extend(peers.into_iter().filter(|&to| to != from).map(|to| Link {
            from: Rank::from_index(from),
            to: Rank::from_index(to),
            alpha: ALPHA,
            beta: BETA,
            latency: Latency::Occupies,
            resources: Box::new([]),
        }));
    }
    let parts = TopologyParts { name: format!("{ranks} ranks"), ranks, links, ..TopologyParts::default() };
    Topology::new(parts).map_err(no_plan)
}
