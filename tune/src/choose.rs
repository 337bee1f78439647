//! Which candidates are measured further, which one is chosen, and for which sizes.
//!
//! The principal functions are [`remaining`] and [`ranges`].

use crate::store::{ChoiceRange, Evidence};
use crate::{Choice, Summary, decide};

/// A candidate must be this much faster than stock: a smaller gain is not worth a plan of its own.
pub const LEAST_GAIN: f64 = 1.02;
/// A candidate whose fastest time is this much longer than the median of the best one is measured no further.
const HOPELESS: f64 = 1.5;

/// Which candidates are measured further, by their times so far. The first is stock, which always stays. A candidate that is
/// slower than the best one beyond the noise of both is measured no further; as long as there are too few times to tell, it
/// has to be slower by far.
pub fn remaining(times: &[Option<Summary>]) -> Vec<usize> {
    let known = || times.iter().flatten();
    let sure = known().filter(|summary| summary.has_interval());
    let least_high = sure.map(|summary| summary.high_us).fold(f64::INFINITY, f64::min);
    let best = known().map(|summary| summary.median_us).fold(f64::INFINITY, f64::min);
    let stays = |summary: &Summary| {
        (!summary.has_interval() || summary.low_us <= least_high) && summary.min_us <= HOPELESS * best
    };
    let all = times.iter().enumerate().filter_map(|(index, summary)| Some((index, summary.as_ref()?)));
    all.filter(|(index, summary)| *index == 0 || stays(summary)).map(|(index, _)| index).collect()
}

/// The candidate that replaces stock, which is the first: the one with the shortest median among those that are faster beyond
/// the noise.
pub fn winner(times: &[Option<Summary>]) -> Option<usize> {
    let stock = times.first()?.as_ref()?;
    let better = times.iter().enumerate().skip(1).filter_map(|(index, times)| Some((index, times.as_ref()?)));
    let better = better.filter(|(_, times)| {
        let decision = decide(stock, times);
        decision.choice == Choice::Candidate && decision.speedup >= LEAST_GAIN
    });
    better.min_by(|one, other| one.1.median_us.total_cmp(&other.1.median_us)).map(|(index, _)| index)
}

/// What was measured at one size.
#[derive(Clone, PartialEq, Debug)]
pub struct MeasuredSize {
    /// The size, in bytes as the collective counts them.
    pub bytes: u64,
    /// The times of all candidates; the first is stock. `None` if one was not measured to the end.
    pub times: Vec<Option<Summary>>,
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
            && decide(&own, &kept).choice == Choice::Tie
            && kept.median_us <= LEAST_GAIN * own.median_us
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

    fn around(centre: f64) -> Option<Summary> {
        let times: Vec<f64> = (0..21).map(|step| centre * (1.0 + f64::from(step - 10) * 0.005)).collect();
        summarize(&times)
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
        let three = |centre: f64| summarize(&[centre, centre * 1.01, centre * 1.02]);
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
            summarize(&times)
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
            choice: size.times[size.choice].unwrap(),
            stock: size.times[0].unwrap(),
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
