//! The order of messages between computers.
//!
//! The principal types are [`Turns`], the order that a rank keeps, and [`Keeper`], which keeps it in one run. A plan counts
//! on messages that share a network interface to pass it one after the other, or as far apart as their times say.
//! Sockets would share it evenly among all messages that are ready: what others wait for comes last, and where many
//! meet, queues overflow. So a rank begins to send a message in its turn, and lets messages in in theirs: beyond its
//! first bytes, a message needs credit ([`crate::transport::ReceiveLane::admit`]).
//!
//! What a lane has taken has not left: it lies in the socket, and goes at the lane's rate. A message that is not all sent when
//! the next begins is overtaken by it, in queues that take large packets whole. So who sends keeps count, and waits that long.
//!
//! A message whose turn has come need not wait for the end of those before it, only until as much of them has passed as
//! the plan has by then. Both orders are taken from one line-up of all messages ([`crate::pacing::order::line_up`]) and all waits
//! of the program point backwards in it, so no circle closes; tiles follow each other, as everywhere.
//!
//! Not all messages are held up by this rank's interface. Those that the same resource holds up are a queue, which keeps its
//! order; what another queue waits for, and is not there yet, they do not wait for.

use crate::clock::Moment;
use crate::pacing::order::line_up;
use crate::plan::RankPlan;
use program::{Connection, ConnectionId, Program, RankProgram, Step};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::time::Duration;
use topology::{Micros, MicrosPerByte, ResourceId};

/// A moment that does not come by itself.
const NEVER: Moment = Moment(u64::MAX);

/// One message of a rank.
#[derive(Clone, Debug)]
struct Passage {
    lane: ConnectionId,
    /// Where its steps are.
    block: usize,
    steps: Range<usize>,
    /// When the plan has it on its way.
    times: [Micros; 2],
    /// How fast this rank is to send it, in bytes per second, if that matters.
    rate: Option<f64>,
    /// Those that the same holds up are one queue; its number, and the place there.
    queue: usize,
    index: usize,
}

/// The messages of one direction, in order.
#[derive(Clone, Debug, Default)]
struct Line {
    passages: Vec<Passage>,
    /// The places of each queue's messages.
    queues: Vec<Vec<usize>>,
}

/// The order of one rank's messages to and from other computers.
#[derive(Clone, Debug)]
pub(crate) struct Turns {
    sends: Line,
    receives: Line,
    /// For each step of each threadblock, its message's place in the line of its direction.
    places: Vec<Vec<Option<usize>>>,
}

impl Turns {
    /// The order for a rank; `None` where there is no plan to follow, where threadblocks have orders of their own, or where
    /// no order suits. All ranks come to the same conclusion.
    pub(crate) fn of(plan: &RankPlan<'_>, remote: impl Fn(&Connection) -> bool) -> Option<Self> {
        let (program, own) = (plan.program, plan.own());
        if !plan.connections.iter().any(&remote) || program.tempo.times.is_empty() || !has_free_ends(program) {
            return None;
        }
        let ways = |lane: &Connection| match remote(lane) {
            true => vec![2 * lane.from.index(), 2 * lane.to.index() + 1],
            false => Vec::new(),
        };
        let shared: Vec<Vec<usize>> = plan.connections.iter().map(ways).collect();
        let mut messages = messages(own);
        let mut turns = Self { sends: Line::default(), receives: Line::default(), places: Vec::new() };
        turns.places.extend(own.threadblocks.iter().map(|block| vec![None; block.steps.len()]));
        let line = line_up(program, &shared);
        // Who is not in line would never be let in.
        if line.len() != sent(program) {
            return None;
        }
        for (transfer, lane) in line {
            if shared[lane.index()].is_empty() {
                continue;
            }
            let Some((block, steps)) = messages.remove(&transfer) else { continue };
            let sends = plan.connections[lane.index()].from == plan.rank;
            let line = if sends { &mut turns.sends.passages } else { &mut turns.receives.passages };
            turns.places[block][steps.clone()].fill(Some(line.len()));
            line.push(Passage {
                lane,
                block,
                steps,
                times: program.tempo.times[transfer as usize],
                rate: None,
                queue: 0,
                index: 0,
            });
        }
        let paces = turns.paces(program);
        turns.sends.passages.iter_mut().for_each(|passage| passage.rate = paces.get(&passage.lane).copied());
        for (end, line) in [&mut turns.sends, &mut turns.receives].into_iter().enumerate() {
            line.part(|lane| program.tempo.bottlenecks.get(lane.index())?[end]);
        }
        Some(turns)
    }

    /// How fast this rank is to send to other computers, in bytes per second.
    pub(crate) fn rates(&self) -> BTreeMap<ConnectionId, f64> {
        self.sends.passages.iter().filter_map(|passage| Some((passage.lane, passage.rate?))).collect()
    }

    /// The rates of lanes to other computers: a little more than the plan counts on, but where a lane sends next to slower
    /// ones, no more than these leave it of what they share. A plan takes a slow message for done with the sender's
    /// interface once it could have left; in truth it goes at its receiver's pace, and would lose what others take.
    fn paces(&self, program: &Program) -> BTreeMap<ConnectionId, f64> {
        let mut lanes: BTreeMap<ConnectionId, Vec<[Micros; 2]>> = BTreeMap::new();
        for passage in &self.sends.passages {
            lanes.entry(passage.lane).or_default().push(passage.times);
        }
        lanes.values_mut().for_each(|times| times.sort_unstable_by(|a, b| a[0].0.total_cmp(&b[0].0)));
        let per_second = |betas: &[MicrosPerByte], lane: ConnectionId| Some(1e6 / betas.get(lane.index())?.0);
        let rate = |lane: ConnectionId| per_second(&program.tempo.rates, lane);
        let pace = |(&lane, times): (&ConnectionId, &Vec<[Micros; 2]>)| {
            let (own, port) = (rate(lane)?, per_second(&program.tempo.ports, lane)?);
            let beside = lanes
                .iter()
                .filter(|(other, theirs)| rate(**other).is_some_and(|rate| rate < SLOWER * own) && meet(times, theirs));
            let taken: f64 = beside.filter_map(|(&other, _)| rate(other)).sum();
            let pace = own.min((port - taken).max(own / 2.0)) * HEADROOM;
            Some((lane, pace)).filter(|_| pace < FASTEST_PACED)
        };
        lanes.iter().filter_map(pace).collect()
    }
}

impl Passage {
    /// The bytes of one tile.
    fn bytes(&self, plan: &RankPlan<'_>, tile: usize) -> usize {
        plan.message_bytes(&plan.own().threadblocks[self.block].steps[self.steps.clone()], tile)
    }
}

impl Line {
    /// Parts its messages into queues by what holds them up.
    fn part(&mut self, bottleneck: impl Fn(ConnectionId) -> Option<ResourceId>) {
        let mut numbers = BTreeMap::new();
        for (place, passage) in self.passages.iter_mut().enumerate() {
            let next = numbers.len();
            passage.queue = *numbers.entry(bottleneck(passage.lane)).or_insert(next);
            self.queues.resize_with(numbers.len(), Vec::new);
            passage.index = self.queues[passage.queue].len();
            self.queues[passage.queue].push(place);
        }
    }

    fn len(&self) -> usize {
        self.passages.len()
    }
}

/// Whether any messages of two lanes are on their way at once; those of a lane follow each other, in this order.
fn meet(one: &[[Micros; 2]], other: &[[Micros; 2]]) -> bool {
    let mut other = other.iter().peekable();
    one.iter().any(|one| {
        while other.next_if(|other| other[1].0 <= one[0].0).is_some() {}
        other.peek().is_some_and(|other| other[0].0 < one[1].0)
    })
}

/// Whether every threadblock is one end of one connection, or local.
fn has_free_ends(program: &Program) -> bool {
    let ends = |step: &Step| (step.instruction.receives_from(), step.instruction.sends_to());
    program.ranks.iter().flat_map(|rank| &rank.threadblocks).all(|block| {
        let mut steps = block.steps.iter();
        let first = steps.next().map(ends);
        !matches!(first, Some((Some(_), Some(_)))) && steps.all(|step| Some(ends(step)) == first)
    })
}

/// How many transfers are sent.
fn sent(program: &Program) -> usize {
    let steps = program.ranks.iter().flat_map(|rank| &rank.threadblocks).flat_map(|block| &block.steps);
    steps
        .filter(|step| step.instruction.sends_to().is_some())
        .filter_map(|step| step.transfer)
        .collect::<BTreeSet<_>>()
        .len()
}

/// The threadblock and the steps of each message of a rank.
fn messages(own: &RankProgram) -> BTreeMap<u32, (usize, Range<usize>)> {
    let mut messages = BTreeMap::new();
    for (block, threadblock) in own.threadblocks.iter().enumerate() {
        let mut at = 0;
        for steps in threadblock.steps.chunk_by(|a, b| a.transfer == b.transfer) {
            let end = at + steps.len();
            messages.extend(steps[0].transfer.map(|transfer| (transfer, (block, at..end))));
            at = end;
        }
    }
    messages
}

/// A message that has had its turn and has not all passed.
struct UnderWay {
    /// In the line of all tiles.
    place: usize,
    bytes: usize,
    /// What its lane has not taken, or not brought.
    left: usize,
    /// What its lane has taken and still holds, at a moment.
    held: f64,
    at: Moment,
    /// How fast the lane lets go of it, in bytes per second, if that is known.
    rate: Option<f64>,
}

impl UnderWay {
    /// What the lane holds.
    fn held(&self, now: Moment) -> f64 {
        self.rate.map_or(0.0, |rate| (self.held - now.since(self.at).as_secs_f64() * rate).max(0.0))
    }

    fn passed(&mut self, bytes: usize, now: Moment) {
        (self.held, self.at) = (self.held(now) + bytes as f64, now);
        self.left = self.left.saturating_sub(bytes);
    }

    /// When no more than `spare` bytes of it are left; [`NEVER`] as long as that is not only a question of time.
    fn has_passed_but(&self, spare: usize, now: Moment) -> Moment {
        let over = self.left as f64 + self.held(now) - spare as f64 - EARLY;
        match self.rate {
            _ if self.left > spare => NEVER,
            Some(rate) if over > 0.0 => now.after(Duration::try_from_secs_f64(over / rate).unwrap_or(Duration::MAX)),
            _ => Moment::default(),
        }
    }
}

/// Messages of one direction in one run.
struct Gate<'a> {
    line: &'a Line,
    plan: &'a RankPlan<'a>,
    /// A message may begin so many bytes early: the next ones are on their way while the last ones pass.
    lead: usize,
    /// How many of each queue have had their turn.
    opened: Vec<usize>,
    under_way: Vec<UnderWay>,
    /// What has passed of messages before their turn, by place.
    early: BTreeMap<usize, usize>,
}

impl<'a> Gate<'a> {
    fn new(line: &'a Line, plan: &'a RankPlan<'a>, lead: usize) -> Self {
        let opened = vec![0; line.queues.len()];
        Self { line, plan, lead, opened, under_way: Vec::new(), early: BTreeMap::new() }
    }

    /// A message, and which tile of it.
    fn at(&self, place: usize) -> (&'a Passage, usize) {
        (&self.line.passages[place % self.line.len()], place / self.line.len())
    }

    /// How many messages of its queue are before this one, in all tiles.
    fn before(&self, place: usize) -> usize {
        let (passage, tile) = self.at(place);
        tile * self.line.queues[passage.queue].len() + passage.index
    }

    fn is_open(&self, place: usize) -> bool {
        self.before(place) < self.opened[self.at(place).0.queue]
    }

    /// Whether it is the next of its queue.
    fn is_first(&self, place: usize) -> bool {
        self.before(place) == self.opened[self.at(place).0.queue]
    }

    /// The next of each queue.
    fn firsts(&self) -> impl Iterator<Item = usize> {
        let queues = self.line.queues.iter().zip(&self.opened);
        queues.filter_map(|(queue, &opened)| {
            let tile = opened / queue.len();
            (tile < self.plan.geometry.tiles()).then(|| tile * self.line.len() + queue[opened % queue.len()])
        })
    }

    /// When the turn comes of the next message of a queue, as far as is known: once enough has passed of those before it,
    /// of other queues those that have begun.
    fn turn(&self, place: usize, now: Moment) -> Moment {
        let queue = self.at(place).0.queue;
        let holds = |other: &&UnderWay| {
            other.place < place && (self.at(other.place).0.queue == queue || other.left < other.bytes)
        };
        let before = self.under_way.iter().filter(holds);
        before.map(|other| other.has_passed_but(self.spare(other, place), now)).max().unwrap_or_default()
    }

    /// How much of a message need not have passed when another one begins.
    fn spare(&self, other: &UnderWay, place: usize) -> usize {
        let ((before, tile), (next, next_tile)) = (self.at(other.place), self.at(place));
        if before.lane == next.lane {
            // A lane has an order of its own.
            return usize::MAX;
        }
        let [start, end] = before.times.map(|time| time.0);
        let together = tile == next_tile && end > start;
        let share = if together { ((end - next.times[0].0) / (end - start)).clamp(0.0, 1.0) } else { 0.0 };
        self.lead + (other.bytes as f64 * share) as usize
    }

    /// The next message of a queue has its turn: its lane and bytes.
    fn open(&mut self, place: usize, now: Moment) -> (ConnectionId, usize) {
        self.under_way.retain(|other| other.left > 0 || other.held(now) > 0.0);
        let (passage, tile) = self.at(place);
        self.opened[passage.queue] += 1;
        let (bytes, early) = (passage.bytes(self.plan, tile), self.early.remove(&place).unwrap_or(0));
        if bytes > early {
            let left = bytes - early;
            self.under_way.push(UnderWay { place, bytes, left, held: 0.0, at: now, rate: passage.rate });
        }
        (passage.lane, bytes)
    }

    fn passed(&mut self, place: usize, bytes: usize) {
        if !self.is_open(place) {
            *self.early.entry(place).or_default() += bytes;
        } else if let Some(message) = self.under_way.iter_mut().find(|other| other.place == place) {
            message.passed(bytes, Moment::now());
        }
    }
}

/// Keeps the order in one run.
pub(crate) struct Keeper<'a> {
    turns: &'a Turns,
    sends: Gate<'a>,
    /// The messages that could leave and have not begun to.
    ready: BTreeSet<usize>,
    receives: Gate<'a>,
}

/// A receiver lets in the next message this many bytes before the end of the last: about what is on the way, or in
/// queues, between two computers.
const LEAD: usize = 64 << 10;

/// The next message begins this many bytes before a lane has let go of the last, so that waking up leaves no gap.
const EARLY: f64 = 16384.0;

/// Faster than this, in bytes per second, a timer for every segment costs more than queues do.
const FASTEST_PACED: f64 = 2.5e9;

/// A lane is slower than another if it has less than this share of its rate: measured rates differ a little.
const SLOWER: f64 = 0.8;

/// By how much a lane may be faster than its plan, whose rates were measured, and which a pause must not hold up for good.
const HEADROOM: f64 = 1.05;

impl<'a> Keeper<'a> {
    pub(crate) fn new(turns: &'a Turns, plan: &'a RankPlan<'a>) -> Self {
        let (sends, receives) = (Gate::new(&turns.sends, plan, 0), Gate::new(&turns.receives, plan, LEAD));
        Self { turns, sends, ready: BTreeSet::new(), receives }
    }

    /// The place of what a step sends, unless that has had its turn or needs none.
    pub(crate) fn waits(&self, block: usize, index: usize, tile: usize) -> Option<usize> {
        let step = self.sends.plan.own().threadblocks[block].steps.get(index)?;
        let place = tile * self.sends.line.len() + self.turns.places[block][index]?;
        (step.instruction.sends_to().is_some() && !self.sends.is_open(place)).then_some(place)
    }

    /// A message could leave now.
    pub(crate) fn is_ready(&mut self, place: usize) {
        self.ready.insert(place);
    }

    /// When a step may begin to send, as far as is known: in the past, if it may; others may in any case.
    pub(crate) fn may_send(&mut self, block: usize, index: usize, tile: usize, now: Moment) -> Moment {
        let Some(place) = self.waits(block, index, tile) else { return now };
        let is_next = |&place: &usize| self.sends.is_first(place);
        if !is_next(&place) || self.ready.range(..place).any(is_next) {
            return NEVER;
        }
        let turn = self.sends.turn(place, now);
        if turn > now {
            return turn;
        }
        self.sends.open(place, now);
        self.ready.remove(&place);
        now
    }

    /// So many bytes of a step have been sent, or received.
    pub(crate) fn passed(&mut self, block: usize, step: &Step, index: usize, tile: usize, bytes: usize) {
        let Some(place) = self.turns.places[block][index] else { return };
        let gate = if step.instruction.sends_to().is_some() { &mut self.sends } else { &mut self.receives };
        gate.passed(tile * gate.line.len() + place, bytes);
    }

    /// The next message that may come in: its lane and bytes.
    pub(crate) fn admit(&mut self) -> Option<(ConnectionId, usize)> {
        let now = Moment::now();
        let place = self.receives.firsts().filter(|&place| self.receives.turn(place, now) <= now).min()?;
        Some(self.receives.open(place, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::plan::geometry::Geometry;
    use program::{Buffer, Instruction, Shape, Slice, Tempo, Threadblock};
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use topology::{LinkId, Rank, ResourceId};

    /// As all pairs of messages say.
    #[test]
    fn lanes_meet_where_any_of_their_messages_do() {
        let lane = |mut bits: u32| {
            let mut times = Vec::new();
            while bits != 0 {
                let start = bits.trailing_zeros();
                let end = start + (bits >> start).trailing_ones();
                times.push([Micros(f64::from(start)), Micros(f64::from(end))]);
                bits &= !0 << end;
            }
            times
        };
        for (one, other) in (0..64).flat_map(|one| (0..64).map(move |other| (one, other))) {
            assert_eq!(meet(&lane(one), &lane(other)), one & other != 0, "{one:b} {other:b}");
        }
    }

    /// Messages of 1000 bytes between rank 0 and others, in the order of the plan: whether rank 0 sends it, to or from
    /// whom, and when.
    fn program(messages: &[(bool, u32, [f64; 2])]) -> Program {
        let mut connections: Vec<Connection> = Vec::new();
        let mut ranks = vec![RankProgram::default(); 4];
        for (transfer, &(sends, peer, _)) in messages.iter().enumerate() {
            let (from, to) = if sends { (Rank(0), Rank(peer)) } else { (Rank(peer), Rank(0)) };
            let known = connections.iter().position(|lane| (lane.from, lane.to) == (from, to));
            let lane = known.unwrap_or_else(|| {
                for rank in [from, to] {
                    ranks[rank.index()].threadblocks.push(Threadblock::default());
                }
                connections.push(Connection { from, to, channel: 0, link: LinkId(0) });
                connections.len() - 1
            });
            let id = ConnectionId(lane as u32);
            for (rank, sends) in [(from, true), (to, false)] {
                let own = &mut ranks[rank.index()];
                let slice = Slice { buffer: Buffer::Scratch, index: own.scratch_parts.len() as u32, count: 1 };
                own.scratch_parts.push(0);
                let instruction = match sends {
                    true => Instruction::Send { to: id, src: slice },
                    false => Instruction::Receive { from: id, dst: slice },
                };
                let of_rank = connections[..=lane].iter().filter(|lane| lane.from == rank || lane.to == rank);
                let block = of_rank.count() - 1;
                own.threadblocks[block].steps.push(Step { transfer: Some(transfer as u32), ..Step::new(instruction) });
            }
        }
        Program {
            demand: Arc::new(Demand::new(Request::new(Collective::AllGather, 4, 0)).unwrap()),
            op: None,
            in_place: false,
            shape: Shape::Equal { parts: 1 },
            uniform: false,
            connections,
            ranks,
            tempo: Tempo { times: messages.iter().map(|message| message.2.map(Micros)).collect(), ..Tempo::default() },
        }
    }

    /// What rank 0 does where a slot has so many bytes.
    fn plan(program: &Program, bytes: u64, tiles: u32) -> RankPlan<'_> {
        RankPlan {
            rank: Rank(0),
            number: Rank(0),
            program,
            connections: program.connections.clone(),
            geometry: Geometry::new(program, Rank(0), bytes, DType::U8, tiles).unwrap(),
            dtype: DType::U8,
            kernel: None,
            averages: Vec::new(),
        }
    }

    /// The keeper of rank 0 for messages of 1000 bytes that all leave their computer.
    fn with_keeper(program: &Program, tiles: u32, test: impl FnOnce(&mut Keeper<'_>, &dyn Fn(usize) -> Step)) {
        let plan = plan(program, 1000 * u64::from(tiles), tiles);
        let turns = Turns::of(&plan, |_| true).unwrap();
        let step = |block: usize| program.ranks[0].threadblocks[block].steps[0].clone();
        test(&mut Keeper::new(&turns, &plan), &step);
    }

    fn may_send(keeper: &mut Keeper<'_>, [block, index, tile]: [usize; 3]) -> bool {
        let now = Moment::now();
        keeper.may_send(block, index, tile, now) <= now
    }

    #[test]
    fn a_message_leaves_when_the_one_before_it_has_left() {
        let program = program(&[(true, 1, [0.0, 10.0]), (true, 2, [10.0, 20.0]), (true, 1, [20.0, 30.0])]);
        with_keeper(&program, 1, |keeper, step| {
            assert!(!may_send(keeper, [1, 0, 0]) && may_send(keeper, [0, 0, 0]));
            keeper.passed(0, &step(0), 0, 0, 999);
            assert!(!may_send(keeper, [1, 0, 0]));
            keeper.passed(0, &step(0), 0, 0, 1);
            assert!(may_send(keeper, [1, 0, 0]) && !may_send(keeper, [0, 1, 0]));
            keeper.passed(1, &step(1), 0, 0, 1000);
            assert!(may_send(keeper, [0, 1, 0]));
        });
    }

    /// Whom something else holds up does not wait for what is not there; who is ready goes in order.
    #[test]
    fn queues_wait_for_their_own() {
        let program = |sends: bool| {
            let lines = [(sends, 1, [0.0, 10.0]), (sends, 2, [10.0, 20.0]), (sends, 3, [20.0, 30.0])];
            let mut program = program(&lines);
            program.tempo.bottlenecks = [0, 1, 0].map(|id| [Some(ResourceId(id)); 2]).into();
            program
        };
        with_keeper(&program(true), 1, |keeper, step| {
            keeper.is_ready(0);
            assert!(!may_send(keeper, [1, 0, 0]) && may_send(keeper, [0, 0, 0]));
            keeper.passed(0, &step(0), 0, 0, 999);
            assert!(!may_send(keeper, [1, 0, 0]));
        });
        with_keeper(&program(true), 1, |keeper, step| {
            assert!(!may_send(keeper, [2, 0, 0]) && may_send(keeper, [1, 0, 0]));
            assert!(may_send(keeper, [0, 0, 0]) && !may_send(keeper, [2, 0, 0]));
            keeper.passed(0, &step(0), 0, 0, 1000);
            assert!(may_send(keeper, [2, 0, 0]));
        });
        let program = program(false);
        let plan = plan(&program, 1 << 20, 1);
        let turns = Turns::of(&plan, |_| true).unwrap();
        let mut keeper = Keeper::new(&turns, &plan);
        let lane = |index: u32| Some((ConnectionId(index), 1 << 20));
        assert_eq!([(); 3].map(|()| keeper.admit()), [lane(0), lane(1), None]);
    }

    #[test]
    fn messages_that_the_plan_has_at_once_leave_as_far_apart() {
        let program = program(&[(true, 1, [0.0, 40.0]), (true, 2, [10.0, 20.0]), (true, 3, [10.0, 20.0])]);
        with_keeper(&program, 1, |keeper, step| {
            assert!(may_send(keeper, [0, 0, 0]));
            keeper.passed(0, &step(0), 0, 0, 249);
            assert!(!may_send(keeper, [1, 0, 0]));
            keeper.passed(0, &step(0), 0, 0, 1);
            assert!(may_send(keeper, [1, 0, 0]) && may_send(keeper, [2, 0, 0]));
        });
    }

    /// At 1 MB/s, 1 MB is under way for a second, though the socket took it at once.
    #[test]
    fn what_a_socket_has_taken_has_not_left() {
        let mut program = program(&[(true, 1, [0.0, 10.0]), (true, 2, [10.0, 20.0])]);
        program.tempo.rates = vec![MicrosPerByte(1.0); 2];
        program.tempo.ports = vec![MicrosPerByte(1.0); 2];
        let plan = plan(&program, 1_000_000, 1);
        let turns = Turns::of(&plan, |_| true).unwrap();
        let mut keeper = Keeper::new(&turns, &plan);
        assert!(may_send(&mut keeper, [0, 0, 0]));
        keeper.passed(0, &program.ranks[0].threadblocks[0].steps[0], 0, 0, 1_000_000);
        let now = Moment::now();
        let turn = keeper.may_send(1, 0, 0, now);
        let waits = turn.since(now).as_secs_f64() * HEADROOM;
        assert!((0.5..1.0).contains(&waits), "{waits} s");
        assert!(keeper.may_send(1, 0, 0, turn.after(Duration::from_micros(1))) <= turn.after(Duration::from_micros(1)));
    }

    /// A fast message that is planned next to a slow one leaves it its rate of what both share.
    #[test]
    fn a_fast_message_leaves_a_slow_one_its_share() {
        let mut program = program(&[(true, 1, [0.0, 40.0]), (true, 2, [10.0, 20.0]), (true, 3, [50.0, 60.0])]);
        program.tempo.rates = [4.0, 1.0, 1.0].map(MicrosPerByte).into();
        for (port, share) in [(1.0, 0.75), (0.5, 1.0)] {
            program.tempo.ports = vec![MicrosPerByte(port); 3];
            let rates = Turns::of(&plan(&program, 1000, 1), |_| true).unwrap().rates();
            let found: Vec<f64> = rates.into_values().map(|rate| rate / HEADROOM / 1e6).collect();
            assert!(
                found.iter().zip([0.25, share, 1.0]).all(|(found, wanted)| (found - wanted).abs() < 1e-9),
                "{found:?}"
            );
        }
    }

    /// What comes without credit counts once its turn has come.
    #[test]
    fn what_came_before_its_turn_has_passed() {
        let program = program(&[(false, 1, [0.0, 10.0]), (false, 2, [10.0, 20.0]), (false, 3, [20.0, 30.0])]);
        let plan = plan(&program, 1 << 20, 1);
        let turns = Turns::of(&plan, |_| true).unwrap();
        let mut keeper = Keeper::new(&turns, &plan);
        let step = |block: usize| &program.ranks[0].threadblocks[block].steps[0];
        assert!(keeper.admit().is_some() && keeper.admit().is_none());
        keeper.passed(1, step(1), 0, 0, LEAD);
        keeper.passed(0, step(0), 0, 0, 1 << 20);
        assert_eq!(keeper.admit(), Some((ConnectionId(1), 1 << 20)));
        keeper.passed(1, step(1), 0, 0, (1 << 20) - 2 * LEAD - 1);
        assert_eq!(keeper.admit(), None);
        keeper.passed(1, step(1), 0, 0, 1);
        assert_eq!(keeper.admit(), Some((ConnectionId(2), 1 << 20)));
    }

    #[test]
    fn messages_of_a_lane_follow_each_other_without_a_pause() {
        let program = program(&[(true, 1, [0.0, 10.0]), (true, 1, [10.0, 20.0]), (true, 2, [20.0, 30.0])]);
        with_keeper(&program, 1, |keeper, _| {
            assert!(may_send(keeper, [0, 0, 0]) && may_send(keeper, [0, 1, 0]) && !may_send(keeper, [1, 0, 0]));
        });
    }

    #[test]
    fn a_tile_follows_all_of_the_one_before() {
        let program = program(&[(true, 1, [0.0, 10.0]), (true, 2, [0.0, 10.0])]);
        with_keeper(&program, 2, |keeper, step| {
            assert!(may_send(keeper, [0, 0, 0]) && may_send(keeper, [1, 0, 0]));
            keeper.passed(0, &step(0), 0, 0, 1000);
            assert!(!may_send(keeper, [0, 0, 1]));
            keeper.passed(1, &step(1), 0, 0, 1000);
            assert!(may_send(keeper, [0, 0, 1]) && may_send(keeper, [1, 0, 1]) && !may_send(keeper, [0, 0, 2]));
        });
    }

    #[test]
    fn messages_are_let_in_shortly_before_their_turn() {
        let program = program(&[(false, 1, [0.0, 10.0]), (false, 2, [10.0, 20.0]), (true, 3, [0.0, 5.0])]);
        with_keeper(&program, 1, |keeper, _| {
            // Both are shorter than the lead; what is sent has a line of its own.
            assert_eq!(
                [(); 3].map(|()| keeper.admit()),
                [Some((ConnectionId(0), 1000)), Some((ConnectionId(1), 1000)), None]
            );
            assert!(may_send(keeper, [2, 0, 0]));
        });
        let plan = plan(&program, 1 << 20, 1);
        let turns = Turns::of(&plan, |_| true).unwrap();
        let mut keeper = Keeper::new(&turns, &plan);
        assert_eq!([(); 2].map(|()| keeper.admit()), [Some((ConnectionId(0), 1 << 20)), None]);
        let step = program.ranks[0].threadblocks[0].steps[0].clone();
        keeper.passed(0, &step, 0, 0, (1 << 20) - LEAD - 1);
        assert_eq!(keeper.admit(), None);
        keeper.passed(0, &step, 0, 0, 1);
        assert_eq!(keeper.admit(), Some((ConnectionId(1), 1 << 20)));
    }

    #[test]
    fn threadblocks_with_an_order_of_their_own_keep_it() {
        let mut program = program(&[(true, 1, [0.0, 10.0]), (false, 2, [0.0, 10.0])]);
        assert!(Turns::of(&plan(&program, 1, 1), |_| true).is_some());
        let blocks = &mut program.ranks[0].threadblocks;
        let receive = blocks.remove(1).steps;
        blocks[0].steps.extend(receive);
        assert!(Turns::of(&plan(&program, 1, 1), |_| true).is_none());
    }

    #[test]
    fn without_a_plan_there_is_no_order() {
        let mut program = program(&[(true, 1, [0.0, 10.0])]);
        assert!(
            Turns::of(&plan(&program, 1, 1), |_| true).is_some()
                && Turns::of(&plan(&program, 1, 1), |_| false).is_none()
        );
        program.tempo = Tempo::default();
        assert!(Turns::of(&plan(&program, 1, 1), |_| true).is_none());
    }
}
