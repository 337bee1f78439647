//! Few plans for all sizes: which plan serves which sizes.
//!
//! The principal function is [`windows`]. It sees only the times of the plans.

use std::ops::Range;

/// A plan and the sizes that it serves, both by index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct SizeWindow {
    pub(super) plan: usize,
    pub(super) sizes: Range<usize>,
}

/// The fewest windows such that, at every size of a window, its plan takes at most 1 + `tolerance` of the best time.
///
/// `times[plan][size]` is at least zero, or `None` where the plan has no time. From left to right, every window goes as
/// far as any plan serves, so no choice has fewer windows. Of several plans, the one closest to the best over the
/// window is taken, and of equal ones the first. Sizes for which no plan has a time are in no window.
pub(super) fn windows(times: &[Vec<Option<f64>>], tolerance: f64) -> Vec<SizeWindow> {
    let count = times.first().map_or(0, Vec::len);
    let best: Vec<f64> = (0..count).map(|size| best_at(times, size)).collect();
    let serves = |plan: usize, size: usize| times[plan][size].is_some_and(|it| it <= best[size] * (1.0 + tolerance));
    let mut found = Vec::new();
    let mut from = 0;
    while from < count {
        let reach = |plan: usize| (from..count).take_while(|&size| serves(plan, size)).count();
        let farthest = (0..times.len()).map(reach).max().unwrap_or(0);
        let sizes = from..from + farthest;
        let loss = |plan: usize| sizes.clone().map(|size| excess(times[plan][size], best[size])).sum::<f64>();
        let plans = (0..times.len()).filter(|&plan| farthest > 0 && reach(plan) == farthest);
        if let Some(plan) = plans.min_by(|&a, &b| loss(a).total_cmp(&loss(b))) {
            found.push(SizeWindow { plan, sizes });
        }
        from += farthest.max(1);
    }
    found
}

/// The best time at a size; infinite if there is none.
pub(super) fn best_at(times: &[Vec<Option<f64>>], size: usize) -> f64 {
    times.iter().filter_map(|plan| plan[size]).fold(f64::INFINITY, f64::min)
}

fn excess(time: Option<f64>, best: f64) -> f64 {
    match time {
        Some(time) if best > 0.0 => time / best,
        Some(_) => 1.0,
        None => f64::INFINITY,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Just, Strategy, any, prop, prop_assert, prop_assert_eq, proptest};

    fn table() -> impl Strategy<Value = Vec<Vec<Option<f64>>>> {
        (1usize..6, 1usize..10).prop_flat_map(|(plans, sizes)| {
            let time = prop::option::weighted(0.9, (0u8..40).prop_map(|it| 1.0 + f64::from(it) * 0.005));
            (prop::collection::vec(prop::collection::vec(time, sizes), plans), Just(())).prop_map(|(table, ())| table)
        })
    }

    /// The fewest windows, by trying every way to divide the sizes.
    fn fewest(times: &[Vec<Option<f64>>], tolerance: f64) -> usize {
        let count = times[0].len();
        let served = |from: usize, to: usize| {
            let serves = |plan: &Vec<Option<f64>>| {
                (from..to).all(|size| plan[size].is_some_and(|it| it <= best_at(times, size) * (1.0 + tolerance)))
            };
            times.iter().any(serves)
        };
        let mut least = vec![usize::MAX; count + 1];
        least[0] = 0;
        for to in 1..=count {
            for from in 0..to {
                if least[from] < usize::MAX && served(from, to) {
                    least[to] = least[to].min(least[from] + 1);
                }
            }
        }
        least[count]
    }

    proptest! {
        #[test]
        fn windows_are_few_disjoint_and_good(times in table(), tolerance in (any::<bool>()).prop_map(|it| if it { 0.01 } else { 0.0 })) {
            let found = windows(&times, tolerance);
            let mut last = 0;
            for SizeWindow { plan, sizes } in &found {
                prop_assert!(sizes.start >= last && sizes.end > sizes.start);
                last = sizes.end;
                for size in sizes.clone() {
                    let time = times[*plan][size].expect("a plan that serves a size has a time there");
                    prop_assert!(time <= best_at(&times, size) * (1.0 + tolerance));
                }
            }
            let covered: usize = found.iter().map(|window| window.sizes.len()).sum();
            let possible = (0..times[0].len()).filter(|&size| best_at(&times, size) < f64::INFINITY).count();
            prop_assert_eq!(covered, possible);
            if possible == times[0].len() {
                prop_assert_eq!(found.len(), fewest(&times, tolerance));
            }
        }
    }
}
