//! Keeps messages between computers in the order of the plan, in one run.
//!
//! The principal type is [`Sequencer`]. A rank begins to send a message when the messages before it have passed as far as
//! the plan assumes for that time. It admits incoming messages by the same rule: beyond its first bytes, a message
//! needs credit ([`crate::transport::ReceiveLane::admit`]).

use crate::clock::{Moment, WaitFor};
use crate::pacing::gate::MessageGate;
use crate::pacing::messages::MessageOrder;
use crate::plan::RankPlan;
use program::{ConnectionId, Step};
use std::collections::BTreeSet;

/// A receiver admits the next message this many bytes before the end of the last one: about the bytes that are on the
/// way, or in queues, between two computers.
const LEAD: usize = 64 << 10;

/// Keeps the order in one run.
pub(crate) struct Sequencer<'a> {
    order: &'a MessageOrder,
    sends: MessageGate<'a>,
    /// The messages that could leave and have not begun.
    ready: BTreeSet<usize>,
    receives: MessageGate<'a>,
}

impl<'a> Sequencer<'a> {
    pub(crate) fn new(order: &'a MessageOrder, plan: &'a RankPlan<'a>) -> Self {
        let (sends, receives) =
            (MessageGate::new(&order.sends, plan, 0), MessageGate::new(&order.receives, plan, LEAD));
        Self { order, sends, ready: BTreeSet::new(), receives }
    }

    /// The place of the message that a step sends; `None` if the message has begun or needs no order.
    pub(crate) fn waits(&self, block: usize, index: usize, tile: usize) -> Option<usize> {
        let step = self.sends.plan.own().threadblocks[block].steps.get(index)?;
        let place = tile * self.sends.line.len() + self.order.places[block][index]?;
        (step.instruction.sends_to().is_some() && !self.sends.is_open(place)).then_some(place)
    }

    /// Records that the message at `place` could leave now.
    pub(crate) fn is_ready(&mut self, place: usize) {
        self.ready.insert(place);
    }

    /// Whether a step has to wait before it begins to send, as far as is known.
    pub(crate) fn may_send(&mut self, block: usize, index: usize, tile: usize, now: Moment) -> WaitFor {
        let Some(place) = self.waits(block, index, tile) else { return WaitFor::Nothing };
        let is_next = |&place: &usize| self.sends.is_first(place);
        if !is_next(&place) || self.ready.range(..place).any(is_next) {
            return WaitFor::Peer;
        }
        let wait = self.sends.wait(place, now);
        if !wait.is_over(now) {
            return wait;
        }
        self.sends.open(place, now);
        self.ready.remove(&place);
        WaitFor::Nothing
    }

    /// Records that `bytes` bytes of a step have been sent or received.
    pub(crate) fn passed(&mut self, block: usize, step: &Step, index: usize, tile: usize, bytes: usize) {
        let Some(place) = self.order.places[block][index] else { return };
        let gate = if step.instruction.sends_to().is_some() { &mut self.sends } else { &mut self.receives };
        gate.passed(tile * gate.line.len() + place, bytes);
    }

    /// Admits the next message that may arrive, if there is one. Returns its lane and its bytes.
    pub(crate) fn admit(&mut self) -> Option<(ConnectionId, usize)> {
        let now = Moment::now();
        let place = self.receives.firsts().filter(|&place| self.receives.wait(place, now).is_over(now)).min()?;
        Some(self.receives.open(place, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::pacing::rates::HEADROOM;
    use crate::plan::geometry::Geometry;
    use program::{
        Buffer, Connection, ConnectionId, Instruction, PartShape, Program, RankProgram, Slice, Tempo, Threadblock,
    };
    use schedule::{Collective, Demand, Request};
    use std::sync::Arc;
    use std::time::Duration;
    use topology::{LinkId, Micros, MicrosPerByte, Rank, ResourceId};

    /// A program of messages of 1000 bytes between rank 0 and others, in the order of the plan. For each message:
    /// whether rank 0 sends it, the other rank, and start and end.
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
            shape: PartShape::Equal { parts: 1 },
            uniform: false,
            connections,
            ranks,
            tempo: Tempo { times: messages.iter().map(|message| message.2.map(Micros)).collect(), ..Tempo::default() },
        }
    }

    /// The plan of rank 0 if a slot has `bytes` bytes.
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

    /// The sequencer of rank 0 for messages of 1000 bytes that all leave their computer.
    fn with_sequencer(program: &Program, tiles: u32, test: impl FnOnce(&mut Sequencer<'_>, &dyn Fn(usize) -> Step)) {
        let plan = plan(program, 1000 * u64::from(tiles), tiles);
        let order = MessageOrder::of(&plan, |_| true).unwrap();
        let step = |block: usize| program.ranks[0].threadblocks[block].steps[0].clone();
        test(&mut Sequencer::new(&order, &plan), &step);
    }

    fn may_send(sequencer: &mut Sequencer<'_>, [block, index, tile]: [usize; 3]) -> bool {
        let now = Moment::now();
        sequencer.may_send(block, index, tile, now) == WaitFor::Nothing
    }

    #[test]
    fn a_message_leaves_when_the_one_before_it_has_left() {
        let program = program(&[(true, 1, [0.0, 10.0]), (true, 2, [10.0, 20.0]), (true, 1, [20.0, 30.0])]);
        with_sequencer(&program, 1, |sequencer, step| {
            assert!(!may_send(sequencer, [1, 0, 0]) && may_send(sequencer, [0, 0, 0]));
            sequencer.passed(0, &step(0), 0, 0, 999);
            assert!(!may_send(sequencer, [1, 0, 0]));
            sequencer.passed(0, &step(0), 0, 0, 1);
            assert!(may_send(sequencer, [1, 0, 0]) && !may_send(sequencer, [0, 1, 0]));
            sequencer.passed(1, &step(1), 0, 0, 1000);
            assert!(may_send(sequencer, [0, 1, 0]));
        });
    }

    /// A message does not wait for messages of another queue that are not ready. Ready messages keep the order.
    #[test]
    fn queues_wait_for_their_own() {
        let program = |sends: bool| {
            let lines = [(sends, 1, [0.0, 10.0]), (sends, 2, [10.0, 20.0]), (sends, 3, [20.0, 30.0])];
            let mut program = program(&lines);
            program.tempo.bottlenecks = [0, 1, 0].map(|id| [Some(ResourceId(id)); 2]).into();
            program
        };
        with_sequencer(&program(true), 1, |sequencer, step| {
            sequencer.is_ready(0);
            assert!(!may_send(sequencer, [1, 0, 0]) && may_send(sequencer, [0, 0, 0]));
            sequencer.passed(0, &step(0), 0, 0, 999);
            assert!(!may_send(sequencer, [1, 0, 0]));
        });
        with_sequencer(&program(true), 1, |sequencer, step| {
            assert!(!may_send(sequencer, [2, 0, 0]) && may_send(sequencer, [1, 0, 0]));
            assert!(may_send(sequencer, [0, 0, 0]) && !may_send(sequencer, [2, 0, 0]));
            sequencer.passed(0, &step(0), 0, 0, 1000);
            assert!(may_send(sequencer, [2, 0, 0]));
        });
        let program = program(false);
        let plan = plan(&program, 1 << 20, 1);
        let order = MessageOrder::of(&plan, |_| true).unwrap();
        let mut sequencer = Sequencer::new(&order, &plan);
        let lane = |index: u32| Some((ConnectionId(index), 1 << 20));
        assert_eq!([(); 3].map(|()| sequencer.admit()), [lane(0), lane(1), None]);
    }

    #[test]
    fn messages_that_the_plan_has_at_once_leave_as_far_apart() {
        let program = program(&[(true, 1, [0.0, 40.0]), (true, 2, [10.0, 20.0]), (true, 3, [10.0, 20.0])]);
        with_sequencer(&program, 1, |sequencer, step| {
            assert!(may_send(sequencer, [0, 0, 0]));
            sequencer.passed(0, &step(0), 0, 0, 249);
            assert!(!may_send(sequencer, [1, 0, 0]));
            sequencer.passed(0, &step(0), 0, 0, 1);
            assert!(may_send(sequencer, [1, 0, 0]) && may_send(sequencer, [2, 0, 0]));
        });
    }

    /// At 1 MB/s, 1 MB is under way for a second, although the socket took it at once.
    #[test]
    fn what_a_socket_has_taken_has_not_left() {
        let mut program = program(&[(true, 1, [0.0, 10.0]), (true, 2, [10.0, 20.0])]);
        program.tempo.rates = vec![MicrosPerByte(1.0); 2];
        program.tempo.ports = vec![MicrosPerByte(1.0); 2];
        let plan = plan(&program, 1_000_000, 1);
        let order = MessageOrder::of(&plan, |_| true).unwrap();
        let mut sequencer = Sequencer::new(&order, &plan);
        assert!(may_send(&mut sequencer, [0, 0, 0]));
        sequencer.passed(0, &program.ranks[0].threadblocks[0].steps[0], 0, 0, 1_000_000);
        let now = Moment::now();
        let WaitFor::Moment(turn) = sequencer.may_send(1, 0, 0, now) else { panic!("it waits for more than time") };
        let waits = turn.since(now).as_secs_f64() * HEADROOM;
        assert!((0.5..1.0).contains(&waits), "{waits} s");
        assert_eq!(sequencer.may_send(1, 0, 0, turn.after(Duration::from_micros(1))), WaitFor::Nothing);
    }

    /// A fast message beside a slow one leaves the slow one its rate of the port that both share.
    #[test]
    fn a_fast_message_leaves_a_slow_one_its_share() {
        let mut program = program(&[(true, 1, [0.0, 40.0]), (true, 2, [10.0, 20.0]), (true, 3, [50.0, 60.0])]);
        program.tempo.rates = [4.0, 1.0, 1.0].map(MicrosPerByte).into();
        for (port, share) in [(1.0, 0.75), (0.5, 1.0)] {
            program.tempo.ports = vec![MicrosPerByte(port); 3];
            let rates = MessageOrder::of(&plan(&program, 1000, 1), |_| true).unwrap().rates();
            let found: Vec<f64> = rates.into_values().map(|rate| rate / HEADROOM / 1e6).collect();
            assert!(
                found.iter().zip([0.25, share, 1.0]).all(|(found, wanted)| (found - wanted).abs() < 1e-9),
                "{found:?}"
            );
        }
    }

    /// Bytes that arrive without credit count as passed once their message begins.
    #[test]
    fn what_came_before_its_turn_has_passed() {
        let program = program(&[(false, 1, [0.0, 10.0]), (false, 2, [10.0, 20.0]), (false, 3, [20.0, 30.0])]);
        let plan = plan(&program, 1 << 20, 1);
        let order = MessageOrder::of(&plan, |_| true).unwrap();
        let mut sequencer = Sequencer::new(&order, &plan);
        let step = |block: usize| &program.ranks[0].threadblocks[block].steps[0];
        assert!(sequencer.admit().is_some() && sequencer.admit().is_none());
        sequencer.passed(1, step(1), 0, 0, LEAD);
        sequencer.passed(0, step(0), 0, 0, 1 << 20);
        assert_eq!(sequencer.admit(), Some((ConnectionId(1), 1 << 20)));
        sequencer.passed(1, step(1), 0, 0, (1 << 20) - 2 * LEAD - 1);
        assert_eq!(sequencer.admit(), None);
        sequencer.passed(1, step(1), 0, 0, 1);
        assert_eq!(sequencer.admit(), Some((ConnectionId(2), 1 << 20)));
    }

    #[test]
    fn messages_of_a_lane_follow_each_other_without_a_pause() {
        let program = program(&[(true, 1, [0.0, 10.0]), (true, 1, [10.0, 20.0]), (true, 2, [20.0, 30.0])]);
        with_sequencer(&program, 1, |sequencer, _| {
            assert!(
                may_send(sequencer, [0, 0, 0]) && may_send(sequencer, [0, 1, 0]) && !may_send(sequencer, [1, 0, 0])
            );
        });
    }

    #[test]
    fn a_tile_follows_all_of_the_one_before() {
        let program = program(&[(true, 1, [0.0, 10.0]), (true, 2, [0.0, 10.0])]);
        with_sequencer(&program, 2, |sequencer, step| {
            assert!(may_send(sequencer, [0, 0, 0]) && may_send(sequencer, [1, 0, 0]));
            sequencer.passed(0, &step(0), 0, 0, 1000);
            assert!(!may_send(sequencer, [0, 0, 1]));
            sequencer.passed(1, &step(1), 0, 0, 1000);
            assert!(
                may_send(sequencer, [0, 0, 1]) && may_send(sequencer, [1, 0, 1]) && !may_send(sequencer, [0, 0, 2])
            );
        });
    }

    #[test]
    fn messages_are_let_in_shortly_before_their_turn() {
        let program = program(&[(false, 1, [0.0, 10.0]), (false, 2, [10.0, 20.0]), (true, 3, [0.0, 5.0])]);
        with_sequencer(&program, 1, |sequencer, _| {
            // Both are shorter than the lead. Messages that are sent have an order of their own.
            assert_eq!(
                [(); 3].map(|()| sequencer.admit()),
                [Some((ConnectionId(0), 1000)), Some((ConnectionId(1), 1000)), None]
            );
            assert!(may_send(sequencer, [2, 0, 0]));
        });
        let plan = plan(&program, 1 << 20, 1);
        let order = MessageOrder::of(&plan, |_| true).unwrap();
        let mut sequencer = Sequencer::new(&order, &plan);
        assert_eq!([(); 2].map(|()| sequencer.admit()), [Some((ConnectionId(0), 1 << 20)), None]);
        let step = program.ranks[0].threadblocks[0].steps[0].clone();
        sequencer.passed(0, &step, 0, 0, (1 << 20) - LEAD - 1);
        assert_eq!(sequencer.admit(), None);
        sequencer.passed(0, &step, 0, 0, 1);
        assert_eq!(sequencer.admit(), Some((ConnectionId(1), 1 << 20)));
    }

    #[test]
    fn threadblocks_with_an_order_of_their_own_keep_it() {
        let mut program = program(&[(true, 1, [0.0, 10.0]), (false, 2, [0.0, 10.0])]);
        assert!(MessageOrder::of(&plan(&program, 1, 1), |_| true).is_some());
        let blocks = &mut program.ranks[0].threadblocks;
        let receive = blocks.remove(1).steps;
        // A local step makes no difference.
        let [src, dst] = [0, 1].map(|index| Slice { buffer: Buffer::Scratch, index, count: 1 });
        blocks[0].steps.push(Step::new(Instruction::Reduce { src, dst }));
        assert!(MessageOrder::of(&plan(&program, 1, 1), |_| true).is_some());
        let blocks = &mut program.ranks[0].threadblocks;
        blocks[0].steps.extend(receive);
        assert!(MessageOrder::of(&plan(&program, 1, 1), |_| true).is_none());
    }

    #[test]
    fn without_a_plan_there_is_no_order() {
        let mut program = program(&[(true, 1, [0.0, 10.0])]);
        assert!(
            MessageOrder::of(&plan(&program, 1, 1), |_| true).is_some()
                && MessageOrder::of(&plan(&program, 1, 1), |_| false).is_none()
        );
        program.tempo = Tempo::default();
        assert!(MessageOrder::of(&plan(&program, 1, 1), |_| true).is_none());
    }
}
