//! Whether the plan of a table is still faster than stock, in the calls of the program itself.
//!
//! The principal type is [`Confirmation`]. A few calls are timed, in turn with the plan and with stock, so both see the
//! program as it is. All ranks add the same times, so they decide alike, after the same call.

use tune::{Choice, decide, summarize};

/// So many timed calls of each kind are compared.
const PROBES: usize = 25;

/// What is known of one kind of call at one size.
#[derive(Default)]
pub(crate) struct Confirmation {
    /// Times of the plan, and of stock, in microseconds.
    times: [Vec<f64>; 2],
    is_lost: bool,
}

impl Confirmation {
    /// Whether the next timed call runs stock.
    pub(crate) fn is_stocks_turn(&self) -> bool {
        self.times[1].len() < self.times[0].len()
    }

    /// Whether stock was found to be faster. Then it serves these calls from now on.
    pub(crate) fn is_lost(&self) -> bool {
        self.is_lost
    }

    /// Adds the time of the call whose turn it was. After enough of them, stock replaces the plan if it is faster beyond the
    /// noise of both; otherwise comparing begins anew. Returns by which factor stock is faster, when it replaces the plan.
    pub(crate) fn add(&mut self, time_us: f64) -> Option<f64> {
        self.times[usize::from(self.is_stocks_turn())].push(time_us);
        if self.times.iter().any(|times| times.len() < PROBES) {
            return None;
        }
        let [plan, stock] = std::mem::take(&mut self.times).map(|times| summarize(&times));
        let decision = decide(&stock?, &plan?);
        self.is_lost = decision.choice == Choice::Stock;
        self.is_lost.then_some(1.0 / decision.speedup)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The number of timed calls after which stock replaces the plan.
    fn replaced(plan: impl Fn(u32) -> f64, stock: impl Fn(u32) -> f64) -> Option<u32> {
        let mut confirmation = Confirmation::default();
        (0..200).find(|call| {
            let time = if confirmation.is_stocks_turn() { stock(*call) } else { plan(*call) };
            confirmation.add(time).is_some()
        })
    }

    #[test]
    fn a_plan_that_became_slow_is_replaced_and_one_that_ties_is_not() {
        let noise = |call: u32| f64::from(call * 7919 % 13) * 0.01;
        assert_eq!(replaced(|call| 5.0 + noise(call), |call| 10.0 + noise(call)), None);
        assert_eq!(replaced(|call| 10.0 + noise(call), |call| 10.0 + noise(call + 5)), None);
        // The first comparison is over after 50 timed calls.
        assert_eq!(replaced(|call| 20.0 + noise(call), |call| 10.0 + noise(call)), Some(49));
        let slowed = |call: u32| if call < 40 { 5.0 } else { 50.0 } + noise(call);
        let at = replaced(slowed, |call| 10.0 + noise(call)).unwrap();
        assert!((41..100).contains(&at), "{at}");
    }
}
