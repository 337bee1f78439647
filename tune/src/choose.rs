//! Which candidates are measured further, which one is chosen, and for which sizes.
//!
//! The principal functions are [`remaining`] and [`ranges`].

use crate::store::{ChoiceRange, Evidence};
use crate::{Choice, Summary, decide};

/// A candidate must be this much faster than stock: a smaller gain is not worth a plan of its own.
pub const LEAST_GAIN: f64 = 1.02;
/// By no measure may a candidate take longer than this many times stock's time.
const MOST_LOSS: f64 = 1.05;
/// A candidate whose fastest time is this much longer than the median of the best one is measured no further.
const HOPELESS: f64 = 1.5;

/// The times of a candidate at one size, by one or two measures: of single calls, and of calls that follow each other. Neither
/// tells how a candidate does in the other: where some ranks are through early, calls in a loop overlap.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct CandidateTimes {
    /// By the measure that ranks.
    pub first: Summary,
    /// By the other one, if it was taken.
    pub second: Option<Summary>,
}

impl From<Summary> for CandidateTimes {
    fn from(first: Summary) -> Self {
        Self { first, second: None }
    }
}

impl CandidateTimes {
    /// Whether there are intervals, by all measures.
    pub fn has_intervals(&self) -> bool {
        self.first.has_interval() && self.second.is_none_or(|second| second.has_interval())
    }

    /// Stock's times and this candidate's, by each measure that both have.
    fn beside(&self, stock: &Self) -> impl Iterator<Item = (Summary, Summary)> {
        [Some((stock.first, self.first)), stock.second.zip(self.second)].into_iter().flatten()
    }

    /// Whether it takes too long beside stock, by any measure.
    fn loses(&self, stock: &Self) -> bool {
        self.beside(stock).any(|(stock, own)| own.median_us > MOST_LOSS * stock.median_us)
    }

    /// The same, beyond the noise.
    fn surely_loses(&self, stock: &Self) -> bool {
        let loses = |(stock, own): (Summary, Summary)| {
            decide(&stock, &own).choice == Choice::Stock && own.median_us > MOST_LOSS * stock.median_us
        };
        self.beside(stock).any(loses)
    }

    /// Its share of stock's time, by all measures together.
    fn share(&self, stock: &Self) -> f64 {
        self.beside(stock).map(|(stock, own)| own.median_us / stock.median_us).product()
    }

    /// Whether it is faster than stock by its medians: by no measure slower by much, and by all together faster.
    pub fn is_faster(&self, stock: &Self) -> bool {
        !self.loses(stock) && self.share(stock) < 1.0
    }

    /// The times that show that it replaces stock, stock's and its own; `None` if none do.
    pub fn proof(&self, stock: &Self) -> Option<(Summary, Summary)> {
        let wins = |(stock, own): &(Summary, Summary)| {
            let decision = decide(stock, own);
            decision.choice == Choice::Candidate && decision.speedup >= LEAST_GAIN
        };
        self.beside(stock).find(wins).filter(|_| self.is_faster(stock))
    }
}

/// Which candidates are measured further, by their times so far. The first is stock, which always stays. A candidate that is
/// slower than the best one beyond the noise of both is measured no further, and neither is one that is slower than stock by the
/// other measure; as long as there are too few times to tell, it has to be slower by far.
pub fn remaining(times: &[Option<CandidateTimes>]) -> Vec<usize> {
    let stock = times.first().copied().flatten();
    let loses = |of: &CandidateTimes| stock.is_some_and(|stock| of.surely_loses(&stock));
    let known = || times.iter().flatten().filter(|of| !loses(of)).map(|of| of.first);
    let sure = known().filter(Summary::has_interval);
    let least_high = sure.map(|summary| summary.high_us).fold(f64::INFINITY, f64::min);
    let best = known().map(|summary| summary.median_us).fold(f64::INFINITY, f64::min);
    let stays = |of: &CandidateTimes| {
        let first = &of.first;
        !loses(of) && (!first.has_interval() || first.low_us <= least_high) && first.min_us <= HOPELESS * best
    };
    let all = times.iter().enumerate().filter_map(|(index, times)| Some((index, times.as_ref()?)));
    all.filter(|(index, times)| *index == 0 || stays(times)).map(|(index, _)| index).collect()
}

/// The candidate that replaces stock, which is the first: of those that are faster beyond the noise by one measure, and slower by
/// none, the fastest by all measures together.
pub fn winner(times: &[Option<CandidateTimes>]) -> Option<usize> {
    let stock = times.first()?.as_ref()?;
    let all = times.iter().enumerate().skip(1).filter_map(|(index, times)| Some((index, times.as_ref()?)));
    let better = all.filter(|(_, times)| times.proof(stock).is_some());
    better.min_by(|one, other| one.1.share(stock).total_cmp(&other.1.share(stock))).map(|(index, _)| index)
}

/// What was measured at one size.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredSize {
    /// The size, in bytes as the collective counts them.
    pub bytes: u64,
    /// The times of all candidates; the first is stock. `None` if one was not measured to the end.
    pub times: Vec<Option<CandidateTimes>>,
    /// What is chosen: 0 for stock.
    pub choice: usize,
}

/// Where the choice changes between two measured sizes. Two more sizes are measured: one element below the larger, one above
/// the smaller. If the candidate of that side wins there, the change is placed there; else stock serves the gap.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ChoiceEdge {
    /// The smaller measured size, and its choice.
    pub below: (u64, usize),
    /// The larger measured size, and its choice.
    pub above: (u64, usize),
}

/// If two neighbouring sizes tie, they get the same choice. A tie means: within the noise, and the medians differ little (where
/// the noise is large, it alone must not cost time). Returns the changes of the choice that remain.
pub fn smooth(sizes: &mut [MeasuredSize]) -> Vec<ChoiceEdge> {
    for index in 1..sizes.len() {
        let [before, after] = [sizes[index - 1].choice, sizes[index].choice];
        if before == after {
            continue;
        }
        let times = |choice: usize| sizes[index].times.get(choice).copied().flatten();
        if let (Some(kept), Some(own)) = (times(before), times(after))
            && before != 0
            && kept.beside(&own).all(|(own, kept)| {
                decide(&own, &kept).choice != Choice::Stock && kept.median_us <= LEAST_GAIN * own.median_us
            })
            && winner(&[times(0), Some(kept)]).is_some()
        {
            sizes[index].choice = before;
        }
    }
    let pairs = sizes.windows(2).filter(|pair| pair[0].choice != pair[1].choice);
    pairs
        .map(|pair| ChoiceEdge { below: (pair[0].bytes, pair[0].choice), above: (pair[1].bytes, pair[1].choice) })
        .collect()
}

/// The ranges of a collective. `edge` tells from where on the upper choice holds, or that neither does between
/// the two sizes. `name` is the plan of a choice, `None` for stock. Below the smallest and above the largest measured size stock
/// is the choice.
pub fn ranges(
    sizes: &[MeasuredSize],
    edge: impl Fn(ChoiceEdge) -> Option<u64>,
    name: impl Fn(usize) -> Option<String>,
    evidence: impl Fn(&MeasuredSize) -> Evidence,
) -> Vec<ChoiceRange> {
    let mut starts: Vec<(u64, usize)> = vec![(0, 0)];
    for (index, size) in sizes.iter().enumerate() {
        match index.checked_sub(1).map(|before| &sizes[before]) {
            None => starts.push((size.bytes, size.choice)),
            Some(before) if before.choice == size.choice => {}
            Some(before) => {
                let place = ChoiceEdge { below: (before.bytes, before.choice), above: (size.bytes, size.choice) };
                match edge(place) {
                    Some(at) => starts.push((at.clamp(before.bytes + 1, size.bytes), size.choice)),
                    None => starts.extend([(before.bytes + 1, 0), (size.bytes, size.choice)]),
                }
            }
        }
    }
    starts.extend(sizes.last().map(|last| (last.bytes + 1, 0)));
    let mut ranges: Vec<ChoiceRange> = Vec::new();
    for (index, &(from_bytes, choice)) in starts.iter().enumerate() {
        let to_bytes = starts.get(index + 1).map(|next| next.0);
        if to_bytes == Some(from_bytes) {
            continue;
        }
        let inside = |size: &&MeasuredSize| size.bytes >= from_bytes && to_bytes.is_none_or(|end| size.bytes < end);
        let found: Vec<Evidence> = sizes.iter().filter(inside).map(&evidence).collect();
        match ranges.last_mut() {
            Some(last) if last.plan == name(choice) => {
                last.to_bytes = to_bytes;
                last.evidence.extend(found);
            }
            _ => ranges.push(ChoiceRange { from_bytes, to_bytes, plan: name(choice), evidence: found }),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::summarize;

    fn around(centre: f64) -> Option<CandidateTimes> {
        let times: Vec<f64> = (0..21).map(|step| centre * (1.0 + f64::from(step - 10) * 0.005)).collect();
        summarize(&times).map(Into::into)
    }

    fn both(single: f64, in_loops: f64) -> Option<CandidateTimes> {
        let second = around(in_loops).map(|times| times.first);
        around(single).map(|times| CandidateTimes { second, ..times })
    }

    #[test]
    fn who_loses_in_loops_does_not_replace_stock_however_fast_its_single_calls_are() {
        assert_eq!(winner(&[both(10.0, 5.0), both(6.0, 5.5)]), None);
        assert_eq!(winner(&[both(10.0, 5.0), both(6.0, 5.1)]), Some(1));
        // Either measure may decide, and the one that is the best by both together is chosen.
        assert_eq!(winner(&[both(10.0, 5.0), both(10.2, 3.0)]), Some(1));
        assert_eq!(winner(&[both(10.0, 5.0), both(10.2, 4.8)]), None);
        assert_eq!(winner(&[both(10.0, 5.0), both(9.0, 4.9), both(9.5, 3.0)]), Some(2));
        // Who loses in loops does not end the measuring of those that are slower in single calls only.
        assert_eq!(remaining(&[both(10.0, 5.0), both(6.0, 5.5), both(8.0, 4.0)]), [0, 2]);
    }

    #[test]
    fn clear_losers_go_and_stock_stays() {
        assert_eq!(
            remaining(&[around(20.0), around(10.0), None, around(10.1), around(11.0), around(100.0)]),
            [0, 1, 3]
        );
        assert_eq!(remaining(&[around(10.0), around(20.0)]), [0]);
    }

    #[test]
    fn three_times_are_too_few_to_leave_unless_they_are_long() {
        let three = |centre: f64| summarize(&[centre, centre * 1.01, centre * 1.02]).map(CandidateTimes::from);
        assert_eq!(remaining(&[three(10.0), three(11.0), three(20.0)]), [0, 1]);
        assert_eq!(remaining(&[around(10.0), three(11.0)]), [0, 1]);
    }

    #[test]
    fn ties_keep_stock() {
        assert_eq!(winner(&[around(10.0), around(9.95), around(10.1)]), None);
        assert_eq!(winner(&[around(10.0), around(8.0), around(7.0)]), Some(2));
        assert_eq!(winner(&[None, around(8.0)]), None);
    }

    fn measured(bytes: u64, times: [f64; 3], choice: usize) -> MeasuredSize {
        MeasuredSize { bytes, times: times.map(around).to_vec(), choice }
    }

    #[test]
    fn neighbours_that_tie_get_one_choice() {
        let mut sizes = [
            measured(100, [10.0, 5.0, 7.0], 1),
            measured(200, [10.0, 6.0, 6.01], 2),
            measured(400, [10.0, 9.0, 5.0], 2),
            measured(800, [10.0, 20.0, 20.0], 0),
        ];
        let edges = smooth(&mut sizes);
        assert_eq!(sizes.each_ref().map(|size| size.choice), [1, 1, 2, 0]);
        assert_eq!(edges.len(), 2);
        assert_eq!(edges[0], ChoiceEdge { below: (200, 1), above: (400, 2) });
    }

    #[test]
    fn noise_does_not_hide_a_loss_between_neighbours() {
        let noisy = |centre: f64| {
            let times: Vec<f64> = (0..21).map(|step| centre * (1.0 + f64::from(step - 10) * 0.02)).collect();
            summarize(&times).map(CandidateTimes::from)
        };
        // At the second size the first choice takes 5 % longer, which lies within the noise.
        for (kept, expected) in [(5.25, 2), (5.05, 1)] {
            let mut sizes = [
                measured(100, [10.0, 5.0, 7.0], 1),
                MeasuredSize { bytes: 200, times: vec![around(10.0), noisy(kept), noisy(5.0)], choice: 2 },
            ];
            smooth(&mut sizes);
            assert_eq!(sizes[1].choice, expected, "{kept}");
        }
    }

    #[test]
    fn ranges_are_total_and_edges_are_where_they_were_measured() {
        let sizes = [
            measured(100, [10.0, 5.0, 7.0], 1),
            measured(200, [10.0, 5.0, 6.0], 1),
            measured(400, [10.0, 9.0, 5.0], 2),
            measured(800, [10.0, 20.0, 20.0], 0),
        ];
        let name = |choice: usize| (choice > 0).then(|| choice.to_string());
        let evidence = |size: &MeasuredSize| Evidence {
            bytes: size.bytes,
            choice: size.times[size.choice].unwrap().first,
            stock: size.times[0].unwrap().first,
            launches: 1,
            dtype: "f32".to_owned(),
            ranking: Vec::new(),
        };
        for at in [Some(201), Some(400), None] {
            let ranges = ranges(&sizes, |edge| if edge.below.1 == 1 { at } else { None }, name, evidence);
            let mut next = Some(0);
            for range in &ranges {
                assert_eq!(next, Some(range.from_bytes));
                next = range.to_bytes;
            }
            assert_eq!(next, None);
            let choice = |bytes: u64| {
                let range = ranges.iter().rfind(|range| range.from_bytes <= bytes).unwrap();
                range.plan.as_ref().map_or(0, |name| name.parse().unwrap())
            };
            assert_eq!([0, 99, 100, 200, 400, 401, 799, 800, 9000].map(choice), [0, 0, 1, 1, 2, 0, 0, 0, 0]);
            assert_eq!(choice(300), at.map_or(0, |at| if at <= 300 { 2 } else { 1 }), "{at:?}");
            assert_eq!(ranges.iter().map(|range| range.evidence.len()).sum::<usize>(), 4);
        }
    }
}
