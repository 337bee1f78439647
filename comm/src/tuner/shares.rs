//! How much of the time each cell gets.
//!
//! The principal function is [`weights`].

use super::{CellWork, TuneOptions};
use crate::stock::measured_kind;
use runtime::Moment;
use std::time::Duration;
use topology::{Bytes, Topology};

/// About how long a block of calls takes, in microseconds, unless a call takes longer.
pub(super) const BLOCK_US: f64 = 20_000.0;
/// About how many candidates compete where nobody says which.
const CANDIDATES: usize = 8;

/// The time of a cell.
#[derive(Clone, Copy)]
pub(super) struct CellTime {
    pub(super) begin: Moment,
    /// About how long all of it may take.
    pub(super) share: Duration,
    /// Whether everything is measured, however long it takes.
    pub(super) is_unlimited: bool,
}

impl CellTime {
    /// What is left of a part of it, beside what was wasted.
    pub(super) fn left(self, part: f64, wasted: Duration) -> Duration {
        match self.is_unlimited {
            true => Duration::MAX,
            false => (self.share.mul_f64(part) + wasted).saturating_sub(Moment::now().since(self.begin)),
        }
    }
}

/// By which weights cells share the time that is left. Where calls take longer than a block, a decision takes as many times longer;
/// and it takes longer with more candidates. Only rank 0, which shares the time, has a model of what messages cost.
pub(super) fn weights(model: Option<&Topology>, ranks: usize, work: &[CellWork], options: &TuneOptions) -> Vec<f64> {
    let weight = |cell: &CellWork| {
        let kind = measured_kind(cell.collective, options.op);
        let count = cell.count(ranks, options.dtype.size());
        let bytes = Bytes(kind.size(ranks, (count * options.dtype.size()) as u64) as f64);
        // About how long a call takes: as all of its data over the slowest link.
        let links = model.into_iter().flat_map(Topology::links);
        let call = links.map(|link| (link.alpha + link.beta * bytes).0).fold(0.0, f64::max);
        let competing = cell.candidates.as_ref().map_or(CANDIDATES, Vec::len) + 1;
        competing as f64 * (1.0 + call / BLOCK_US)
    };
    work.iter().map(weight).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::communicator::Communicator;
    use schedule::Collective;

    #[test]
    fn long_calls_and_many_candidates_take_more_of_the_time() {
        let model = Communicator::local(2).unwrap()[0].cost_model().unwrap();
        let cell = |bytes, names: Option<&[&str]>| CellWork {
            collective: Collective::AllReduce,
            bytes,
            candidates: names.map(|names| names.iter().map(|name| (*name).to_owned()).collect()),
        };
        let work = [cell(64, None), cell(1 << 20, None), cell(1 << 30, None), cell(1 << 30, Some(&["one"]))];
        let [short, longer, long, one] = weights(Some(&model), 2, &work, &TuneOptions::default())[..] else { panic!() };
        // 5000 bytes a µs: 0.2 ms are short beside a block of 20 ms, and 0.2 s are not.
        assert!(longer < 1.02 * short && (10.0..13.0).contains(&(long / short)), "{short} {longer} {long}");
        assert!((one / long - 2.0 / 9.0).abs() < 1e-9, "{one}");
    }
}
