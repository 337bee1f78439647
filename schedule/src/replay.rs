//! Gives an order of messages its times.
//!
//! Strategies decide *what* goes over *which* link and in *which order*. [`replay`] is the only function that turns
//! such an order into start and end times under the topology's cost model. It is a list scheduler: every message starts
//! as soon as its chunks are at the sender, its link and its resources are free, and all earlier messages of the order
//! on the same link or resource have left. Two ranks can exchange sums: a message that adds does not wait for one that
//! its receiver has sent to be added. [`replay_rounds`] does the same for algorithms of which each round sends only what
//! was there when it began.

use crate::clearly_before;
use crate::{ChunkId, ChunkList, Demand, ReplayError, Transfer, TransferKind};
use std::collections::BTreeMap;
use topology::{FreeTimes, LinkId, Micros, Rank, Topology};

/// A transfer without times.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Message {
    /// What it carries.
    pub chunks: ChunkList,
    /// Over which link.
    pub link: LinkId,
    /// Copy or reduce.
    pub kind: TransferKind,
}

impl From<&Transfer> for Message {
    fn from(transfer: &Transfer) -> Self {
        Self { chunks: transfer.chunks.clone(), link: transfer.link, kind: transfer.kind }
    }
}

/// The state of a chunk at a rank during replay.
#[derive(Clone, Copy)]
struct HeldChunk {
    /// When its value can leave; [`NEVER`] while there is none.
    from: Micros,
    /// Of a sum, who brought its last part to be added, and when it could leave without what this rank has brought.
    last_adder: Option<Rank>,
    without: Micros,
    /// The latest departure so far: a later message must not change the value before that time.
    last_departure: Micros,
}

const NEVER: Micros = Micros(f64::INFINITY);

impl HeldChunk {
    /// When its value can leave for a rank; [`NEVER`] while there is none.
    fn ready_for(&self, to: Rank, kind: TransferKind) -> Micros {
        if kind == TransferKind::Reduce && self.last_adder == Some(to) { self.without } else { self.from }
    }

    /// Notes that a value was copied here, or a part of its sum was brought. The parts of a sum all count, of copies the first one.
    fn arrive(&mut self, transfer: &Transfer, is_sum: bool) {
        if !is_sum {
            self.from = self.from.min(transfer.end);
            return;
        }
        let adder = (transfer.kind == TransferKind::Reduce).then_some(transfer.from);
        let is_another = adder.is_none() || adder != self.last_adder;
        let later = |known: Micros| if known == NEVER { transfer.end } else { known.max(transfer.end) };
        match later(self.from) == transfer.end {
            true if is_another => (self.last_adder, self.without, self.from) = (adder, self.from, transfer.end),
            true => self.from = transfer.end,
            false if is_another => self.without = later(self.without),
            false => {}
        }
    }
}

/// The ranks that hold each chunk, one row per chunk.
struct Holdings<'a> {
    demand: &'a Demand,
    /// Whether any chunk combines. For other chunks only arrivals matter.
    combines: bool,
    rows: Vec<HoldingsRow>,
    /// If every chunk is sent only from where it arrived last: for each chunk the time of that arrival. Otherwise
    /// empty, and the rows count.
    came: Vec<Micros>,
}

/// A chunk that many messages carry has an entry for every rank. A chunk that few messages carry has entries only for
/// the ranks that they touch: a table of chunks × ranks would have N³ entries for an AllToAll among N ranks.
#[derive(Clone)]
enum HoldingsRow {
    Dense(Box<[Option<HeldChunk>]>),
    /// Ascending by rank.
    Sparse(Vec<(Rank, HeldChunk)>),
}

impl<'a> Holdings<'a> {
    fn new(demand: &'a Demand, topology: &Topology, messages: &[Message]) -> Self {
        let combines = demand.chunks().iter().any(|chunk| chunk.combine);
        if !combines && all_go_on(demand, topology, messages) {
            let came = demand.chunks().iter().map(|chunk| chunk.release).collect();
            return Self { demand, combines, rows: Vec::new(), came };
        }
        let mut carried = vec![0usize; demand.chunks().len()];
        messages.iter().flat_map(|message| &message.chunks).for_each(|chunk| carried[chunk.index()] += 1);
        let ranks = topology.rank_count();
        let row = |carried| match carried {
            many if many > ranks / 8 => HoldingsRow::Dense(vec![None; ranks].into()),
            _ => HoldingsRow::Sparse(Vec::new()),
        };
        Self { demand, combines, rows: carried.into_iter().map(row).collect(), came: Vec::new() }
    }

    fn combines(&self, chunk: ChunkId) -> bool {
        self.combines && self.demand.chunk(chunk).combine
    }

    /// When a rank can send a chunk to another one; [`NEVER`] while it does not hold it.
    fn from(&mut self, chunk: ChunkId, (from, to): (Rank, Rank), kind: TransferKind) -> Micros {
        match self.came.get(chunk.index()) {
            Some(&came) => came,
            None => self.at(chunk, from).ready_for(to, kind),
        }
    }

    fn at(&mut self, chunk: ChunkId, rank: Rank) -> &mut HeldChunk {
        let initial = || {
            let chunk = self.demand.chunk(chunk);
            let from = if chunk.holders.has(rank) { chunk.release } else { NEVER };
            HeldChunk { from, last_adder: None, without: NEVER, last_departure: Micros::ZERO }
        };
        match &mut self.rows[chunk.index()] {
            HoldingsRow::Dense(row) => row[rank.index()].get_or_insert_with(initial),
            HoldingsRow::Sparse(row) => {
                let place = row.binary_search_by_key(&rank, |(rank, _)| *rank).unwrap_or_else(|place| {
                    row.insert(place, (rank, initial()));
                    place
                });
                &mut row[place].1
            }
        }
    }
}

/// Whether every chunk starts at its only holder and is always sent from where it arrived last, as chunks with one
/// destination are.
fn all_go_on(demand: &Demand, topology: &Topology, messages: &[Message]) -> bool {
    let mut at: Vec<Option<Rank>> = vec![None; demand.chunks().len()];
    messages.iter().all(|message| {
        let link = topology.link(message.link);
        message.chunks.iter().all(|&chunk| {
            let before = at[chunk.index()].replace(link.to);
            let from = before.or_else(|| match demand.chunk(chunk).holders[..] {
                [only] => Some(only),
                _ => None,
            });
            from == Some(link.from)
        })
    })
}

/// Times `messages` in the given order, each as early as the order allows.
///
/// The result has the same order and length as `messages`. A message with a combining chunk waits for everything that
/// earlier messages of the order bring to its sender, and carries it. But one that adds neither waits for nor carries what
/// its receiver brings last to be added, which would count twice: the two cross. If the one leaves only after the other has
/// arrived, the sum is wrong, and the verifier refuses the schedule.
///
/// # Errors
/// [`ReplayError::NotHeld`] where a message sends a chunk that no earlier message brought.
pub fn replay(demand: &Demand, topology: &Topology, messages: &[Message]) -> Result<Vec<Transfer>, ReplayError> {
    let mut player = ReplayState::new(demand, topology, messages);
    let mut transfers = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let start = player.start(index, message)?;
        let transfer = player.occupy(message, start);
        player.deliver(&transfer);
        transfers.push(transfer);
    }
    Ok(transfers)
}

/// The same for sums that each go along a tree to one rank, and along another one from there, where neighbours in both may exchange what
/// they have. A copy of a sum need not wait for the part that its receiver brings: if it can leave before that arrives, it adds
/// what is there without it. Both ends then have the same two parts. The kinds of such transfers in the result are other than those
/// in `messages`.
///
/// # Errors
/// As [`replay`].
pub fn replay_exchanging(
    demand: &Demand,
    topology: &Topology,
    messages: &[Message],
) -> Result<Vec<Transfer>, ReplayError> {
    let mut player = ReplayState::new(demand, topology, messages);
    let mut transfers = Vec::with_capacity(messages.len());
    for (index, message) in messages.iter().enumerate() {
        let (start, kind) = match player.crossing(message) {
            Some(start) => (start, TransferKind::Reduce),
            None => (player.start(index, message)?, message.kind),
        };
        let transfer = Transfer { kind, ..player.occupy(message, start) };
        player.deliver(&transfer);
        transfers.push(transfer);
    }
    Ok(transfers)
}

/// Times `messages` round by round. Within a round every rank sends what it had when the round began, so that two ranks
/// can exchange their sums. `rounds` are the numbers of messages in the rounds.
///
/// The result has the same order and length as `messages`.
///
/// # Errors
/// [`ReplayError::NotHeld`], and [`ReplayError::Exchange`] where an arrival would come before a departure of the same
/// round that must not carry it, even if it is delayed. This happens where ports send one message after the other.
pub fn replay_rounds(
    demand: &Demand,
    topology: &Topology,
    messages: &[Message],
    rounds: &[usize],
) -> Result<Vec<Transfer>, ReplayError> {
    let mut player = ReplayState::new(demand, topology, messages);
    let mut transfers = Vec::with_capacity(messages.len());
    for &length in rounds {
        let first = transfers.len();
        let round = player.round(first, &messages[first..first + length])?;
        round.iter().for_each(|transfer| player.deliver(transfer));
        transfers.extend(round);
    }
    Ok(transfers)
}

/// How often a round is played again because a value arrived too early.
const MOST_DELAYS: usize = 8;

/// The state of links and resources during replay.
struct ReplayState<'a> {
    topology: &'a Topology,
    holdings: Holdings<'a>,
    free: FreeTimes,
}

impl<'a> ReplayState<'a> {
    fn new(demand: &'a Demand, topology: &'a Topology, messages: &[Message]) -> Self {
        Self { topology, holdings: Holdings::new(demand, topology, messages), free: FreeTimes::new(topology) }
    }

    /// The earliest time at which a message can leave; `index` is its position, for the error.
    fn start(&mut self, index: usize, message: &Message) -> Result<Micros, ReplayError> {
        let link = self.topology.link(message.link);
        let mut start = self.free.earliest(self.topology, message.link);
        for &chunk in &message.chunks {
            let held_from = self.holdings.from(chunk, (link.from, link.to), message.kind);
            if held_from == NEVER {
                return Err(ReplayError::NotHeld { message: index, chunk, rank: link.from });
            }
            start = start.max(held_from);
            if self.holdings.combines(chunk) {
                start = start.max(self.holdings.at(chunk, link.to).last_departure);
            }
        }
        Ok(start)
    }

    /// When a copy of sums can leave as the other half of an exchange: before the parts arrive that its receiver brings last. `None` if it
    /// is no such copy, or does not leave before.
    fn crossing(&mut self, message: &Message) -> Option<Micros> {
        if message.kind == TransferKind::Reduce || !self.holdings.combines {
            return None;
        }
        let link = self.topology.link(message.link);
        let mut start = self.free.earliest(self.topology, message.link);
        let mut before = NEVER;
        for &chunk in &message.chunks {
            let held = *self.holdings.at(chunk, link.from);
            let is_half = held.last_adder == Some(link.to) && held.without != NEVER && self.holdings.combines(chunk);
            if !is_half {
                return None;
            }
            before = before.min(held.from);
            start = start.max(held.without).max(self.holdings.at(chunk, link.to).last_departure);
        }
        clearly_before(start, before).then_some(start)
    }

    /// Sends a message: its link and resources are busy from `start` on.
    fn occupy(&mut self, message: &Message, start: Micros) -> Transfer {
        let link = self.topology.link(message.link);
        let bytes = self.holdings.demand.message_bytes(&message.chunks);
        self.free.occupy(self.topology, message.link, start, bytes);
        let Message { chunks, kind, .. } = message.clone();
        let end = start + link.transfer_time(bytes);
        Transfer { chunks, from: link.from, to: link.to, link: message.link, kind, start, end }
    }

    /// Records that a message reads its sender's values from its start on, and that it arrives.
    fn deliver(&mut self, transfer: &Transfer) {
        for &chunk in &transfer.chunks {
            if let Some(came) = self.holdings.came.get_mut(chunk.index()) {
                *came = transfer.end;
                continue;
            }
            let departed = &mut self.holdings.at(chunk, transfer.from).last_departure;
            *departed = departed.max(transfer.start);
            let is_sum = self.holdings.combines(chunk);
            self.holdings.at(chunk, transfer.to).arrive(transfer, is_sum);
        }
    }

    /// Sends all messages of a round; `first` is the position of the first.
    fn round(&mut self, first: usize, messages: &[Message]) -> Result<Vec<Transfer>, ReplayError> {
        let free = self.free.clone();
        let mut not_before = vec![Micros::ZERO; messages.len()];
        let mut early = None;
        for _ in 0..MOST_DELAYS {
            self.free.clone_from(&free);
            let mut transfers = Vec::with_capacity(messages.len());
            for (offset, message) in messages.iter().enumerate() {
                let start = self.start(first + offset, message)?.max(not_before[offset]);
                transfers.push(self.occupy(message, start));
            }
            early = None;
            let departures = self.departures(&transfers);
            for (offset, transfer) in transfers.iter().enumerate() {
                let departure = |chunk: &ChunkId| departures.get(&(*chunk, transfer.to)).copied();
                let Some(last) = transfer.chunks.iter().filter_map(departure).reduce(Micros::max) else { continue };
                if !clearly_before(last, transfer.end) {
                    // If a message takes any time, it is late enough to leave together with the other one.
                    not_before[offset] = last;
                    early = Some(first + offset);
                }
            }
            if early.is_none() {
                return Ok(transfers);
            }
        }
        Err(ReplayError::Exchange { message: early.unwrap_or(first) })
    }

    /// When each rank last sends a combining chunk in a round.
    fn departures(&self, transfers: &[Transfer]) -> BTreeMap<(ChunkId, Rank), Micros> {
        let mut last = BTreeMap::new();
        for transfer in transfers {
            for &chunk in transfer.chunks.iter().filter(|&&chunk| self.holdings.combines(chunk)) {
                let departure = last.entry((chunk, transfer.from)).or_insert(transfer.start);
                *departure = departure.max(transfer.start);
            }
        }
        last
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Collective, RankSet, Request};
    use topology::{Latency, Link, MicrosPerByte, Resource, ResourceId, TopologyParts};

    /// Three ranks, a link for every ordered pair (0→1, 0→2, 1→0, 1→2, 2→0, 2→1): α 1 µs, 1 µs per 100 bytes.
    fn machine(latency: Latency, shared: bool) -> Topology {
        let pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
        let link = |(from, to)| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(1.0),
            beta: MicrosPerByte(0.01),
            latency,
            resources: if shared { [ResourceId(from)].into() } else { [].into() },
        };
        let resource = |_| Resource::new("tx", MicrosPerByte(0.005));
        let (links, resources) = (pairs.into_iter().map(link).collect(), (0..3).map(resource).collect());
        Topology::new(TopologyParts { ranks: 3, links, resources, ..TopologyParts::default() }).unwrap()
    }

    /// Plays `(chunks, link)` messages and gives their (start, end).
    fn times(topology: &Topology, demand: &Demand, kind: TransferKind, order: &[(&[u32], u32)]) -> Vec<(f64, f64)> {
        let message = |&(chunks, link): &(&[u32], u32)| {
            let chunks = chunks.iter().copied().map(ChunkId).collect();
            Message { chunks, link: LinkId(link), kind }
        };
        let messages: Vec<_> = order.iter().map(message).collect();
        let transfers = replay(demand, topology, &messages).unwrap();
        transfers.iter().map(|transfer| (transfer.start.0, transfer.end.0)).collect()
    }

    fn broadcast(chunks: u32) -> Demand {
        Demand::new(Request::new(Collective::Broadcast, 3, 100 * u64::from(chunks)).with_chunks(chunks)).unwrap()
    }

    #[test]
    fn the_next_message_waits_for_the_link() {
        let order: [(&[u32], u32); 2] = [(&[0], 0), (&[1], 0)];
        let check = |latency, expected: [(f64, f64); 2]| {
            assert_eq!(times(&machine(latency, false), &broadcast(2), TransferKind::Copy, &order), expected);
        };
        check(Latency::Occupies, [(0.0, 2.0), (2.0, 4.0)]);
        check(Latency::Pipelines, [(0.0, 2.0), (1.0, 3.0)]);
    }

    #[test]
    fn the_next_message_waits_for_the_resource_at_its_own_speed() {
        let order: [(&[u32], u32); 2] = [(&[0], 0), (&[0], 1)];
        let check = |latency, shared, second_start: f64| {
            let found = times(&machine(latency, shared), &broadcast(1), TransferKind::Copy, &order);
            assert_eq!(found, [(0.0, 2.0), (second_start, second_start + 2.0)]);
        };
        check(Latency::Occupies, false, 0.0);
        check(Latency::Occupies, true, 1.5);
        check(Latency::Pipelines, true, 0.5);
    }

    #[test]
    fn chunks_of_one_message_pay_one_latency_and_arrive_together() {
        let found =
            times(&machine(Latency::Occupies, false), &broadcast(2), TransferKind::Copy, &[(&[0, 1], 0), (&[1], 3)]);
        assert_eq!(found, [(0.0, 3.0), (3.0, 5.0)]);
    }

    #[test]
    fn a_sum_waits_for_all_that_it_counts() {
        let demand = Demand::new(Request::new(Collective::Reduce, 3, 100)).unwrap();
        let topology = machine(Latency::Occupies, false);
        assert_eq!(times(&topology, &demand, TransferKind::Reduce, &[(&[0], 5), (&[0], 2)]), [(0.0, 2.0), (2.0, 4.0)]);
        // Played the other way round, rank 1 leaves with its own part, before anything is added to it.
        assert_eq!(times(&topology, &demand, TransferKind::Reduce, &[(&[0], 2), (&[0], 5)]), [(0.0, 2.0), (0.0, 2.0)]);
    }

    /// Rank 2 sends its part to rank 1, rank 1 sends its own to rank 0 and rank 0 its own to rank 1: those of ranks 0 and 1 cross.
    #[test]
    fn a_copy_of_a_sum_may_add_instead_while_its_last_part_is_under_way() {
        let demand = Demand::new(Request::new(Collective::AllReduce, 3, 100)).unwrap();
        let topology = machine(Latency::Occupies, false);
        let message = |link, kind| Message { chunks: [ChunkId(0)].into_iter().collect(), link: LinkId(link), kind };
        let (add, copy) = (TransferKind::Reduce, TransferKind::Copy);
        let messages = [message(5, add), message(2, add), message(0, copy), message(3, copy)];
        let part = topology.link(LinkId(0)).transfer_time(demand.message_bytes(&messages[0].chunks)).0;
        let told = |transfers: Result<Vec<Transfer>, ReplayError>| {
            let time = |it: Transfer| ((it.start.0 / part).round(), it.kind);
            transfers.unwrap().into_iter().map(time).collect::<Vec<_>>()
        };
        assert_eq!(told(replay(&demand, &topology, &messages)), [(0.0, add), (1.0, add), (2.0, copy), (3.0, copy)]);
        let crossing = [(0.0, add), (1.0, add), (1.0, add), (2.0, copy)];
        assert_eq!(told(replay_exchanging(&demand, &topology, &messages)), crossing);
        let adding = [message(5, add), message(2, add), message(0, add), message(3, copy)];
        let found = told(replay(&demand, &topology, &adding));
        assert_eq!(found, crossing, "who adds does not wait for what the other one brings");
        // Where the link back is busy until the last part is there, the sum is copied.
        let other = |chunk| Message { chunks: [ChunkId(chunk)].into_iter().collect(), ..message(0, copy) };
        let busy = [vec![other(1), other(2)], messages.to_vec()].concat();
        let found = told(replay_exchanging(&demand, &topology, &busy));
        assert_eq!(found[4], (2.0, copy), "{found:?}");
    }

    /// Two ranks exchange their values in one round; a third rank gets the sum in the next.
    #[test]
    fn a_round_sends_what_was_there_when_it_began() {
        let demand = Demand::new(Request::new(Collective::AllReduce, 3, 300)).unwrap();
        let message = |link| Message {
            chunks: [ChunkId(0)].into_iter().collect(),
            link: LinkId(link),
            kind: TransferKind::Reduce,
        };
        let messages = [message(0), message(2), message(1)];
        let times = |shared, rounds: &[usize]| {
            let transfers = replay_rounds(&demand, &machine(Latency::Occupies, shared), &messages, rounds)?;
            Ok::<_, ReplayError>(transfers.iter().map(|it| (it.start.0, it.end.0)).collect::<Vec<_>>())
        };
        assert_eq!(times(false, &[2, 1]), Ok(vec![(0.0, 2.0), (0.0, 2.0), (2.0, 4.0)]));
        // In one round rank 0 sends its own value to both, and nothing that arrives waits for it.
        assert_eq!(times(false, &[3]), Ok(vec![(0.0, 2.0), (0.0, 2.0), (0.0, 2.0)]));
        assert_eq!(times(true, &[3]), Ok(vec![(0.0, 2.0), (0.0, 2.0), (1.5, 3.5)]));
    }

    #[test]
    fn an_exchange_that_ports_take_apart_is_refused() {
        // Everybody sends to both others through one port that takes longer than a message travels.
        let link = |(from, to)| Link {
            from: Rank(from),
            to: Rank(to),
            alpha: Micros(0.0),
            beta: MicrosPerByte(0.01),
            latency: Latency::Occupies,
            resources: [ResourceId(from)].into(),
        };
        let pairs = [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)];
        let resource = |_| Resource::new("tx", MicrosPerByte(0.01));
        let (links, resources) = (pairs.into_iter().map(link).collect(), (0..3).map(resource).collect());
        let topology = Topology::new(TopologyParts { ranks: 3, links, resources, ..TopologyParts::default() }).unwrap();
        let demand = Demand::new(Request::new(Collective::AllReduce, 3, 300)).unwrap();
        let chunks: ChunkList = demand.chunk_ids().collect();
        let messages: Vec<Message> = (0..6)
            .map(|link| Message { chunks: chunks.clone(), link: LinkId(link), kind: TransferKind::Reduce })
            .collect();
        let refused = replay_rounds(&demand, &topology, &messages, &[6]);
        assert!(matches!(refused, Err(ReplayError::Exchange { .. })), "{refused:?}");
    }

    #[test]
    fn nobody_sends_what_nobody_brought() {
        let message = Message { chunks: [ChunkId(0)].into_iter().collect(), link: LinkId(3), kind: TransferKind::Copy };
        let found = replay(&broadcast(1), &machine(Latency::Occupies, false), &[message]);
        assert_eq!(found, Err(ReplayError::NotHeld { message: 0, chunk: ChunkId(0), rank: Rank(1) }));
    }

    /// Rows of both kinds give the same times: 40 ranks, so that few messages do not fill a row.
    #[test]
    fn few_messages_are_timed_as_many_are() {
        let link = |i: u32| Link {
            from: Rank(i),
            to: Rank(i + 1),
            alpha: Micros(1.0),
            beta: MicrosPerByte(0.01),
            latency: Latency::Occupies,
            resources: [].into(),
        };
        let parts = TopologyParts { ranks: 40, links: (0..39).map(link).collect(), ..TopologyParts::default() };
        let topology = Topology::new(parts).unwrap();
        let request = Request { members: RankSet::all(40), ..Request::new(Collective::Broadcast, 40, 100) };
        let demand = Demand::new(request).unwrap();
        let order: Vec<(&[u32], u32)> = (0..39).map(|link| (&[0][..], link)).collect();
        let all = times(&topology, &demand, TransferKind::Copy, &order);
        assert_eq!(times(&topology, &demand, TransferKind::Copy, &order[..3]), all[..3]);
        assert_eq!(all[38], (76.0, 78.0));
    }
}
