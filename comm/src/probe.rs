//! A short measurement of what messages cost, when processes join a session.
//!
//! The principal function is [`link_costs`]. The first ranks of all machines send each other a few messages, in pairs. Within a
//! machine nothing is measured.

use crate::error::CommResult;
use crate::links::{LinkCosts, MEASURED, MOST_PARTNERS, count};
use crate::numbers::stream_of;
use runtime::{Call, CallPlace, Moment, RunResult, Session};
use std::time::Duration;
use topology::Rank;

/// The communicators of the measurement.
const PROBES: u64 = 2;
/// How often the short and the long message go to and fro.
const TIMES: [u32; 2] = [30, 4];
/// Before that, so often: the first messages form lanes and map memory.
const WARM_UP: u32 = 2;

/// Measures. All ranks of the session do this together, and come to the same numbers.
///
/// # Errors
/// As any call.
pub(crate) fn link_costs(session: &Session, limit: Duration) -> CommResult<LinkCosts> {
    let machines = session.machines();
    let count = count(machines);
    let own = machines[session.rank().index()];
    let leaders: Vec<Rank> = (0..count as u32).filter_map(|of| ranks_of(machines, of).next()).collect();
    // The times with each machine, and the number of cores.
    let mut measured = vec![0.0; 2 * count + 1];
    measured[2 * count] = session.cores() as f64;
    let mut meet = |peer: Rank, machine: usize| -> CommResult<()> {
        let pair = PingPong { session, peer, limit };
        for which in 0..MEASURED.len() {
            measured[2 * machine + which] = pair.shortest(MEASURED[which], TIMES[which])?;
        }
        Ok(())
    };
    let is_leader = leaders[own as usize] == session.rank();
    if is_leader {
        for round in 0..MOST_PARTNERS {
            if let Some(partner) = partner(own as usize, count, round) {
                meet(leaders[partner], partner)?;
            }
        }
    }
    // Each process would have to make a plan for a collective of all ranks, which takes long where many ranks share cores.
    let messages = RankMessages { session, limit };
    let mut rows = vec![0.0; measured.len() * count];
    if session.rank() == leaders[0] {
        for (row, leader) in rows.chunks_mut(measured.len()).zip(&leaders) {
            match *leader == session.rank() {
                true => row.copy_from_slice(&measured),
                false => messages.receive(*leader, 0, row)?,
            }
        }
    } else if is_leader {
        messages.send(leaders[0], 0, &measured)?;
    }
    messages.spread(1, &mut rows)?;
    let times: Vec<f64> = rows.chunks(2 * count + 1).flat_map(|row| &row[..2 * count]).copied().collect();
    let cores = rows.chunks(2 * count + 1).map(|row| row[2 * count] as usize).collect();
    Ok(LinkCosts::of_times(machines.to_vec(), &times, cores))
}

/// The numbers of all ranks of a session, by rank; `None` if all have the same.
///
/// # Errors
/// As any call.
pub(crate) fn numbers_of_all(
    session: &Session,
    numbers: [u64; 2],
    limit: Duration,
) -> CommResult<Option<Vec<[u64; 2]>>> {
    let messages = RankMessages { session, limit };
    // Halves of the numbers are exact.
    let own = numbers.map(|number| [number >> 32, number & 0xffff_ffff].map(|half| half as f64));
    let own: &[f64] = own.as_flattened();
    let mut theirs = own.to_vec();
    messages.spread(2, &mut theirs)?;
    let mut differing = [f64::from(u8::from(theirs != own))];
    messages.collect(3, &mut differing)?;
    messages.spread(4, &mut differing)?;
    if differing[0] == 0.0 {
        return Ok(None);
    }
    // Each rank has a place of its own in the sum of all.
    let mut all = vec![0.0; own.len() * session.ranks()];
    all[own.len() * session.rank().index()..][..own.len()].copy_from_slice(own);
    messages.collect(5, &mut all)?;
    messages.spread(6, &mut all)?;
    let whole = |halves: &[f64; 2]| (halves[0] as u64) << 32 | halves[1] as u64;
    let numbers: Vec<u64> = all.as_chunks::<2>().0.iter().map(whole).collect();
    Ok(Some(numbers.as_chunks::<2>().0.to_vec()))
}

/// Numbers to and from other ranks, without a plan: along a binomial tree with rank 0 as its root.
struct RankMessages<'a> {
    session: &'a Session,
    limit: Duration,
}

impl RankMessages<'_> {
    fn at(&self, from: Rank, to: Rank, which: u64) -> CallPlace {
        let stream = stream_of(PROBES, u64::MAX - which, from, to);
        CallPlace { communicator: PROBES, stream, number: 0 }
    }

    fn send(&self, to: Rank, which: u64, numbers: &[f64]) -> RunResult<()> {
        let bytes: Vec<u8> = numbers.iter().flat_map(|number| number.to_ne_bytes()).collect();
        let prepared = self.session.prepare_send(to, bytes.len());
        let call = Call::OutOfPlace { input: &bytes, output: &mut [] };
        self.session.call(&prepared, self.at(self.session.rank(), to, which), call, self.limit)
    }

    fn receive(&self, from: Rank, which: u64, numbers: &mut [f64]) -> RunResult<()> {
        let mut bytes = vec![0; size_of_val(numbers)];
        let prepared = self.session.prepare_receive(from, bytes.len());
        let call = Call::OutOfPlace { input: &[], output: &mut bytes };
        self.session.call(&prepared, self.at(from, self.session.rank(), which), call, self.limit)?;
        let (words, _) = bytes.as_chunks::<8>();
        numbers.iter_mut().zip(words).for_each(|(number, word)| *number = f64::from_ne_bytes(*word));
        Ok(())
    }

    /// This rank's parent in the tree, and its children.
    fn relatives(&self) -> (Option<Rank>, Vec<Rank>) {
        let (own, ranks) = (self.session.rank().index(), self.session.ranks());
        let lowest = if own == 0 { ranks.next_power_of_two() } else { 1 << own.trailing_zeros() };
        let steps = (0..usize::BITS).map(|bit| 1_usize << bit).take_while(|step| *step < lowest);
        let children = steps.map(|step| own + step).filter(|child| *child < ranks).map(Rank::from_index).collect();
        ((own > 0).then(|| Rank::from_index(own - lowest)), children)
    }

    /// All ranks get rank 0's numbers.
    fn spread(&self, which: u64, numbers: &mut [f64]) -> RunResult<()> {
        let (parent, children) = self.relatives();
        if let Some(parent) = parent {
            self.receive(parent, which, numbers)?;
        }
        // The child with the most descendants first.
        children.into_iter().rev().try_for_each(|child| self.send(child, which, numbers))
    }

    /// Rank 0 gets the sums of all ranks' numbers.
    fn collect(&self, which: u64, numbers: &mut [f64]) -> RunResult<()> {
        let (parent, children) = self.relatives();
        let mut theirs = vec![0.0; numbers.len()];
        for child in children {
            self.receive(child, which, &mut theirs)?;
            numbers.iter_mut().zip(&theirs).for_each(|(own, their)| *own += their);
        }
        parent.map_or(Ok(()), |parent| self.send(parent, which, numbers))
    }
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

/// Messages to and fro between two ranks.
struct PingPong<'a> {
    session: &'a Session,
    peer: Rank,
    limit: Duration,
}

impl PingPong<'_> {
    /// The shortest one-way time in µs.
    fn shortest(&self, bytes: usize, times: u32) -> RunResult<f64> {
        let Self { session, peer, limit } = *self;
        let (send, receive) = (session.prepare_send(peer, bytes), session.prepare_receive(peer, bytes));
        let stream = |from, to| stream_of(PROBES, bytes as u64, from, to);
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
}
