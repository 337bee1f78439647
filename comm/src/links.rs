//! What messages cost between the machines of a session, as stock plans need to know it.
//!
//! The principal type is [`LinkCosts`].

use runtime::Session;
use std::collections::BTreeSet;
use std::sync::Arc;
use topology::{Micros, MicrosPerByte, Rank};

/// Bytes of the short and of the long message that are measured.
pub(crate) const MEASURED: [usize; 2] = [8, 256 << 10];
/// No memory is faster: µs per byte.
const LEAST_BETA: f64 = 1e-6;

/// What a message costs, alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct MessageCost {
    pub(crate) alpha: Micros,
    pub(crate) beta: MicrosPerByte,
}

impl MessageCost {
    /// Within a machine, about. It is not measured: two short measurements of the same memory differ by a factor of two, and
    /// stock would be another algorithm at each start.
    const WITHIN: Self = Self { alpha: Micros(0.3), beta: MicrosPerByte(1.0 / 5000.0) };

    /// From one-way times of a short and a long message. Where the long one took no longer, the short one was disturbed.
    fn fit(short: f64, long: f64) -> Self {
        let short = short.min(long);
        let beta = (long - short) / (MEASURED[1] - MEASURED[0]) as f64;
        Self { alpha: Micros(short.max(0.01)), beta: MicrosPerByte(beta.max(LEAST_BETA)) }
    }
}

/// What messages cost between all machines of a session.
#[derive(Clone)]
pub(crate) struct LinkCosts {
    /// The machine of each rank of the session.
    machines: Vec<u32>,
    /// By machine and machine.
    costs: Vec<Vec<MessageCost>>,
    /// By machine.
    cores: Vec<usize>,
}

impl LinkCosts {
    /// Nothing was measured.
    pub(crate) fn assumed(session: &Session) -> Self {
        let machines = session.machines().to_vec();
        let count = count(&machines);
        Self { machines, costs: vec![vec![MessageCost::WITHIN; count]; count], cores: vec![session.cores(); count] }
    }

    /// The machines of some ranks, in their order.
    pub(crate) fn machines_of(&self, members: &[Rank]) -> Arc<[u32]> {
        members.iter().map(|member| self.machines[member.index()]).collect()
    }

    /// A message from one machine to another, or within one.
    pub(crate) fn between(&self, from: u32, to: u32) -> MessageCost {
        self.costs[from as usize][to as usize]
    }

    /// The largest α and the largest β between some ranks, given by their machines.
    pub(crate) fn slowest(&self, machines: &[u32]) -> MessageCost {
        let machines: BTreeSet<u32> = machines.iter().copied().collect();
        let pairs = machines.iter().flat_map(|from| machines.iter().map(|to| self.between(*from, *to)));
        let larger = |one: MessageCost, other: MessageCost| MessageCost {
            alpha: one.alpha.max(other.alpha),
            beta: if one.beta < other.beta { other.beta } else { one.beta },
        };
        pairs.reduce(larger).unwrap_or(MessageCost::WITHIN)
    }

    /// From the one-way times of a short and a long message, by machine and machine; zeros where nothing was measured.
    pub(crate) fn of_times(machines: Vec<u32>, rows: &[f64], cores: Vec<usize>) -> Self {
        let count = count(&machines);
        Self { machines, costs: costs(rows, count), cores }
    }

    /// How many cores a machine has.
    pub(crate) fn cores(&self, machine: u32) -> usize {
        self.cores[machine as usize]
    }
}

/// How many machines there are.
pub(crate) fn count(machines: &[u32]) -> usize {
    machines.iter().max().map_or(0, |last| *last as usize + 1)
}

/// The costs out of all machines' measurements.
fn costs(rows: &[f64], count: usize) -> Vec<Vec<MessageCost>> {
    let given = |from: usize, to: usize| {
        let [short, long] = [0, 1].map(|which| rows[2 * (from * count + to) + which]);
        (short > 0.0).then(|| MessageCost::fit(short, long))
    };
    // Both ends have measured a pair. They came to about the same.
    let measured = |from: usize, to: usize| given(from.min(to), from.max(to));
    let median = |machine: usize| {
        let others = (0..count).filter(|&other| other != machine);
        let mut known: Vec<MessageCost> = others.filter_map(|other| measured(machine, other)).collect();
        known.sort_by(|one, other| one.beta.0.total_cmp(&other.beta.0));
        known.get(known.len() / 2).copied().unwrap_or(MessageCost::WITHIN)
    };
    let medians: Vec<MessageCost> = (0..count).map(median).collect();
    let slower = |one: MessageCost, other: MessageCost| if one.beta < other.beta { other } else { one };
    let cost = |from: usize, to: usize| match measured(from, to) {
        _ if from == to => MessageCost::WITHIN,
        Some(cost) => cost,
        None => slower(medians[from], medians[to]),
    };
    (0..count).map(|from| (0..count).map(|to| cost(from, to)).collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_that_did_not_meet_counts_as_the_slower_of_the_two() {
        // Three machines with one rank each: 0 and 1 are 10 µs apart at 1000 bytes a µs, 1 and 2 a hundred times slower.
        let row = |from: usize, to: usize| match (from, to) {
            (0, 1) => [10.0, 10.0 + 262.136],
            (1, 2) => [1000.0, 1000.0 + 26213.6],
            _ => [0.0, 0.0],
        };
        let rows: Vec<f64> = (0..9).flat_map(|at| row(at / 3, at % 3)).collect();
        let costs = costs(&rows, 3);
        assert_eq!(costs[1][0], costs[0][1]);
        assert!((costs[0][1].beta.0 - 0.001).abs() < 1e-9 && (costs[0][1].alpha.0 - 10.0).abs() < 1e-9);
        assert_eq!(costs[0][2], costs[1][2]);
        assert_eq!(costs[0][0], MessageCost::WITHIN);
    }
}
