//! What messages cost between the machines of a session, as stock plans need to know it.
//!
//! The principal type is [`LinkCosts`]. When processes join a session, one rank of each machine and its next neighbour send
//! each other a few messages, then the first ranks of all machines do so in pairs. It takes less than a millisecond in memory.

use crate::communicator::Communicator;
use crate::error::CommResult;
use crate::log::Says;
use crate::plans::PlanStore;
use crate::split::mixed;
use crate::table::PlanTable;
use runtime::{Call, CallPlace, Moment, RunResult, Session};
use std::sync::Arc;
use std::time::Duration;
use topology::{Micros, MicrosPerByte, Rank};

/// The communicators of the measurement.
const PROBES: u64 = 2;
/// A short message, a long one, and how often each goes to and fro.
const SHORT: (usize, u32) = (8, 30);
const LONG: (usize, u32) = (256 << 10, 4);
/// With more machines, each measures this many others. The median of what two machines measured stands for the rest.
const MOST_PARTNERS: usize = 31;
/// No memory is faster: µs per byte.
const LEAST_BETA: f64 = 1e-6;
/// So long for the first messages, which form lanes and map memory.
const WARM_UP: u32 = 2;

/// What a message costs, alone.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct MessageCost {
    pub(crate) alpha: Micros,
    pub(crate) beta: MicrosPerByte,
}

impl MessageCost {
    /// Between threads of a process, about.
    const THREADS: Self = Self { alpha: Micros(0.3), beta: MicrosPerByte(1.0 / 5000.0) };

    /// From one-way times of a short and a long message.
    fn fit(short: f64, long: f64) -> Self {
        let beta = (long - short) / (LONG.0 - SHORT.0) as f64;
        Self { alpha: Micros(short.max(0.01)), beta: MicrosPerByte(beta.max(LEAST_BETA)) }
    }
}

/// What messages cost between all machines of a session.
pub(crate) struct LinkCosts {
    /// The machine of each rank of the session.
    machines: Vec<u32>,
    /// By machine and machine.
    costs: Vec<Vec<MessageCost>>,
}

impl LinkCosts {
    /// Nothing was measured.
    pub(crate) fn assumed(session: &Session) -> Self {
        let machines = session.machines().to_vec();
        let count = count(&machines);
        Self { machines, costs: vec![vec![MessageCost::THREADS; count]; count] }
    }

    /// The machines of some ranks, in their order.
    pub(crate) fn machines_of(&self, members: &[Rank]) -> Arc<[u32]> {
        members.iter().map(|member| self.machines[member.index()]).collect()
    }

    /// A message from one machine to another, or within one.
    pub(crate) fn between(&self, from: u32, to: u32) -> MessageCost {
        self.costs[from as usize][to as usize]
    }

    /// Measures. All ranks of the session do this together, and come to the same numbers.
    ///
    /// # Errors
    /// As any call.
    pub(crate) fn measure(session: &Session, limit: Duration) -> CommResult<Self> {
        let assumed = Self::assumed(session);
        let machines = assumed.machines.clone();
        let count = count(&machines);
        let all: Vec<Rank> = (0..session.ranks()).map(Rank::from_index).collect();
        let own = machines[session.rank().index()];
        let leaders: Vec<Rank> = (0..count as u32).filter_map(|of| ranks_of(&machines, of).next()).collect();
        let mut measured = vec![0.0; 2 * count];
        let mut meet = |peer: Rank, machine: usize| -> CommResult<()> {
            let pair = PingPong { session, peer, limit };
            let [short, long] = [pair.shortest(SHORT)?, pair.shortest(LONG)?];
            measured[2 * machine..][..2].copy_from_slice(&[short, long]);
            Ok(())
        };
        let mut neighbours = ranks_of(&machines, own);
        if let (Some(first), Some(second)) = (neighbours.next(), neighbours.next()) {
            match session.rank() {
                rank if rank == first => meet(second, own as usize)?,
                rank if rank == second => meet(first, own as usize)?,
                _ => {}
            }
        }
        let is_leader = leaders[own as usize] == session.rank();
        if is_leader {
            for round in 0..MOST_PARTNERS {
                match partner(own as usize, count, round) {
                    Some(partner) => meet(leaders[partner], partner)?,
                    None => {}
                }
            }
        }
        let store = Arc::new(PlanStore::new(PlanTable::default(), Says::default(), assumed));
        let group = |id: u64, members: Vec<Rank>| {
            let number = members.iter().position(|member| *member == session.rank()).unwrap_or_default();
            Communicator::new(session.clone(), id, (members, number), limit, store.clone())
        };
        let mut rows = vec![0.0; 2 * count * count];
        if is_leader {
            group(mixed(PROBES, 1), leaders.clone()).all_gather(&measured, &mut rows)?;
        }
        group(mixed(PROBES, 2), all).broadcast(&mut rows, leaders[0].index())?;
        Ok(Self { costs: costs(&rows, count), machines: machines.clone() })
    }
}

fn count(machines: &[u32]) -> usize {
    machines.iter().max().map_or(0, |last| *last as usize + 1)
}

/// The ranks of a machine.
fn ranks_of(machines: &[u32], machine: u32) -> impl Iterator<Item = Rank> {
    (0..).map(Rank).zip(machines).filter(move |(_, of)| **of == machine).map(|(rank, _)| rank)
}

/// Who a machine measures with in a round: in each round every machine has one partner, or none, and never the same twice (the
/// circle method of tournaments).
fn partner(own: usize, count: usize, round: usize) -> Option<usize> {
    let slots = count.next_multiple_of(2);
    if count < 2 || round + 1 >= slots {
        return None;
    }
    // The last slot stays, the others turn around it.
    let turning = slots - 1;
    let other = match own == turning {
        true => {
            // Whose mirror image is itself.
            (0..turning).find(|&slot| (2 * slot) % turning == (2 * round) % turning)?
        }
        false => match (2 * round + turning - own) % turning {
            mirrored if mirrored == own => turning,
            mirrored => mirrored,
        },
    };
    (other < count).then_some(other)
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
        known.get(known.len() / 2).copied().unwrap_or(MessageCost::THREADS)
    };
    let medians: Vec<MessageCost> = (0..count).map(median).collect();
    let slower = |one: MessageCost, other: MessageCost| if one.beta < other.beta { other } else { one };
    let cost = |from: usize, to: usize| match measured(from, to) {
        Some(cost) => cost,
        // One rank is alone there.
        None if from == to => MessageCost::THREADS,
        None => slower(medians[from], medians[to]),
    };
    (0..count).map(|from| (0..count).map(|to| cost(from, to)).collect()).collect()
}

/// Messages to and fro between two ranks.
struct PingPong<'a> {
    session: &'a Session,
    peer: Rank,
    limit: Duration,
}

impl PingPong<'_> {
    /// The shortest one-way time in µs.
    fn shortest(&self, (bytes, times): (usize, u32)) -> RunResult<f64> {
        let Self { session, peer, limit } = *self;
        let (send, receive) = (session.prepare_send(peer, bytes), session.prepare_receive(peer, bytes));
        let stream =
            |from: Rank, to: Rank| mixed(mixed(PROBES, bytes as u64), u64::from(from.0) << 32 | u64::from(to.0));
        let (there, back) = (stream(session.rank(), peer), stream(peer, session.rank()));
        let (data, mut heard) = (vec![0; bytes], vec![0; bytes]);
        let at = |stream: u64, number: u32| CallPlace { communicator: PROBES, stream, number };
        let say =
            |number| session.call(&send, at(there, number), Call::OutOfPlace { input: &data, output: &mut [] }, limit);
        let mut hear = |number| {
            session.call(&receive, at(back, number), Call::OutOfPlace { input: &[], output: &mut heard }, limit)
        };
        let mut shortest = f64::INFINITY;
        for number in 0..WARM_UP + times {
            let begin = Moment::now();
            match session.rank() < peer {
                true => say(number).and_then(|()| hear(number))?,
                false => hear(number).and_then(|()| say(number))?,
            }
            if number >= WARM_UP {
                shortest = shortest.min(Moment::now().since(begin).as_secs_f64() * 1e6 / 2.0);
            }
        }
        Ok(shortest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn all_machines_meet_once_in_pairs() {
        for count in 0..40 {
            let mut met = BTreeSet::new();
            for round in 0..count.max(1) {
                for own in 0..count {
                    let Some(other) = partner(own, count, round) else { continue };
                    assert_eq!(partner(other, count, round), Some(own), "{count} machines, round {round}");
                    assert!(own != other && (own > other || met.insert((own, other))), "{own} and {other} twice");
                }
            }
            assert_eq!(met.len(), count * count.saturating_sub(1) / 2, "{count} machines");
        }
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
        assert_eq!(costs[0][0], MessageCost::THREADS);
    }
}
