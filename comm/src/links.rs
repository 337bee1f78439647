//! What messages cost between the machines of a session, as stock plans need to know it.
//!
//! The principal type is [`LinkCosts`].

use runtime::Session;
use std::collections::BTreeSet;
use std::sync::Arc;
use topology::{Micros, MicrosPerByte, Rank};
use tune::MachineLinks;

/// Bytes of the short and of the long message that are measured.
pub(crate) const MEASURED: [usize; 2] = [8, 256 << 10];
/// With more machines, each measures this many others. The median of what two machines measured stands for the rest.
pub(crate) const MOST_PARTNERS: usize = 31;
/// No memory is faster: µs per byte.
const LEAST_BETA: f64 = 1e-6;
/// Where messages between racks take at least so many times as long for each byte as those within them, machines of a rack share
/// their way out.
const UPLINK: f64 = 2.0;
/// Of more machines, not all pairs are measured, and nobody looks for racks.
const MOST_IN_RACKS: usize = MOST_PARTNERS + 1;

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

    /// From one-way times of a short and a long message. Where the long one took no longer, the short one was disturbed. A file gives
    /// back numbers of few digits as they were.
    fn fit(short: f64, long: f64) -> Self {
        let rounded = |number: f64| format!("{number:.3e}").parse().unwrap_or(number);
        let short = short.min(long);
        let beta = (long - short) / (MEASURED[1] - MEASURED[0]) as f64;
        Self { alpha: Micros(rounded(short.max(0.01))), beta: MicrosPerByte(rounded(beta.max(LEAST_BETA))) }
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

    /// The machines of all ranks of the session.
    pub(crate) fn machines(&self) -> &[u32] {
        &self.machines
    }

    /// The machines of some ranks, in their order.
    pub(crate) fn machines_of(&self, members: &[Rank]) -> Arc<[u32]> {
        members.iter().map(|member| self.machines[member.index()]).collect()
    }

    /// A message from one machine to another, or within one.
    pub(crate) fn between(&self, from: u32, to: u32) -> MessageCost {
        self.costs[from as usize][to as usize]
    }

    /// The racks among some machines (in ascending order): those of a rack reach each other fast, and all others slowly. None where
    /// the costs do not show at least two of them, with two machines or more in each. A slow network of a single machine looks like
    /// a slow uplink, but others do not share it.
    pub(crate) fn racks(&self, machines: &[u32]) -> Vec<Vec<u32>> {
        let pairs =
            machines.iter().enumerate().flat_map(|(at, from)| machines[..at].iter().map(move |to| (*from, *to)));
        let beta = |(from, to): (u32, u32)| self.between(from, to).beta.0.max(self.between(to, from).beta.0);
        if machines.len() > MOST_IN_RACKS {
            return Vec::new();
        }
        let mut betas: Vec<f64> = pairs.map(beta).collect();
        betas.sort_by(f64::total_cmp);
        let gaps = betas.windows(2).map(|pair| (pair[1] / pair[0], pair[0]));
        let widest = gaps.max_by(|one, other| one.0.total_cmp(&other.0)).filter(|(ratio, _)| *ratio >= UPLINK);
        let Some((_, fast)) = widest else { return Vec::new() };
        let is_near = |from: u32, to: u32| beta((from, to)) <= fast;
        let mut racks: Vec<Vec<u32>> = Vec::new();
        for &machine in machines {
            match racks.iter_mut().find(|rack| is_near(rack[0], machine)) {
                Some(rack) => rack.push(machine),
                None => racks.push(vec![machine]),
            }
        }
        // Who is near to one machine of a rack is near to all of them, and to nobody else.
        let rack_of = |machine: u32| racks.iter().position(|rack| rack.contains(&machine));
        let is_sharp = machines
            .iter()
            .enumerate()
            .all(|(at, &from)| machines[..at].iter().all(|&to| is_near(from, to) == (rack_of(from) == rack_of(to))));
        if is_sharp && racks.len() > 1 && racks.iter().all(|rack| rack.len() > 1) { racks } else { Vec::new() }
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

    /// What a table keeps of them; nothing of a single machine, whose costs are assumed.
    pub(crate) fn kept(&self) -> Option<MachineLinks> {
        let all = |of: fn(&MessageCost) -> f64| -> Vec<Vec<f64>> {
            self.costs.iter().map(|row| row.iter().map(of).collect()).collect()
        };
        (self.cores.len() > 1).then(|| MachineLinks {
            alpha_us: all(|cost| cost.alpha.0),
            beta_us_per_byte: all(|cost| cost.beta.0),
            cores: self.cores.clone(),
        })
    }

    /// Those that a table has kept, of the same machines.
    pub(crate) fn of_table(&self, MachineLinks { alpha_us, beta_us_per_byte, cores }: &MachineLinks) -> Self {
        let cost = |(alpha, beta): (&f64, &f64)| MessageCost { alpha: Micros(*alpha), beta: MicrosPerByte(*beta) };
        let rows = alpha_us.iter().zip(beta_us_per_byte);
        let costs = rows.map(|(alphas, betas)| alphas.iter().zip(betas).map(cost).collect()).collect();
        Self { machines: self.machines.clone(), costs, cores: cores.clone() }
    }

    /// Whether it knows the costs of all machines of its ranks.
    pub(crate) fn suit_machines(&self) -> bool {
        self.cores.len() == count(&self.machines)
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
    fn racks_are_machines_that_only_reach_each_other_fast() {
        // Rates between machines, in bytes per µs.
        let racks = |machines: u32, rate: fn(u32, u32) -> f64| {
            let pair = |at: u32| {
                let beta = 1.0 / rate(at / machines, at % machines);
                [10.0, 10.0 + beta * (MEASURED[1] - MEASURED[0]) as f64]
            };
            let rows: Vec<f64> = (0..machines * machines).flat_map(pair).collect();
            let all: Vec<u32> = (0..machines).collect();
            LinkCosts::of_times(all.clone(), &rows, vec![2; machines as usize]).racks(&all)
        };
        assert_eq!(racks(4, |from, to| if from / 2 == to / 2 { 60.0 } else { 12.0 }), [[0, 1], [2, 3]]);
        // Not one after the other, of different sizes, and each pair at another rate.
        let odd = |from: u32, to: u32| 1.0 + f64::from(from + to) / 100.0 + if from % 2 == to % 2 { 9.0 } else { 0.0 };
        assert_eq!(racks(5, odd), [vec![0, 2, 4], vec![1, 3]]);
        // All alike, a machine with a slow network, two of them, one rack, and a chain of machines.
        let none: [fn(u32, u32) -> f64; 5] = [
            |_, _| 60.0,
            |from, to| if from.max(to) == 3 { 12.0 } else { 60.0 },
            |from, to| if from.max(to) >= 2 { 12.0 } else { 60.0 },
            |from, to| if from.max(to) < 3 { 60.0 } else { 40.0 },
            |from, to| if from.abs_diff(to) < 2 { 60.0 } else { 12.0 },
        ];
        none.into_iter().for_each(|rate| assert!(racks(4, rate).is_empty()));
    }

    #[test]
    fn a_table_keeps_the_costs_between_machines_and_gives_them_back() {
        let rows: Vec<f64> = [[0.0, 0.0], [10.123_456, 300.0], [10.123_456, 300.0], [0.0, 0.0]].concat();
        let measured = LinkCosts::of_times(vec![0, 1, 1], &rows, vec![2, 4]);
        let kept = measured.kept().unwrap();
        assert_eq!(kept.alpha_us, [[0.3, 10.12], [10.12, 0.3]]);
        let other = LinkCosts::of_times(vec![0, 1, 1], &[1.0; 8], vec![8, 8]).of_table(&kept);
        assert_eq!((other.kept().unwrap(), other.cores(1)), (kept, 4));
        // A file gives the same numbers.
        let text = serde_json::to_string(&other.kept()).unwrap();
        assert_eq!(serde_json::from_str::<Option<MachineLinks>>(&text).unwrap(), other.kept());
        assert_eq!(LinkCosts::of_times(vec![0; 3], &[0.0; 2], vec![2]).kept(), None);
    }

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
