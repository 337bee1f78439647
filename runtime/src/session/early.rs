//! What a call may do before its turn.
//!
//! The principal type is [`EarlyActs`]: which acts of a script may be early, and what each of them needs.

use super::script::Act;
use program::{ConnectionId, Program};
use std::collections::BTreeMap;
use std::time::Duration;
use topology::{Micros, MicrosPerByte, Rank, ResourceId};

/// A receiver asks for a message when this is left of the time of the one before: about the time until its first bytes are here.
const LEAD: Micros = Micros(500.0);
/// The same in bytes, at least.
const LEAST_LEAD: usize = 64 << 10;
/// How long a send that would pass earlier ones waits at least, and at most, until it is tried again.
const LEAST_PAUSE: Duration = Duration::from_micros(50);
/// See [`LEAST_PAUSE`].
const LONGEST_PAUSE: Duration = Duration::from_millis(5);
/// A message is urgent if it is passed on within this share of its own time.
const URGENT: f64 = 0.25;

/// By less than so many acts an act may come before its turn: as many as there are bits in a word.
pub(super) const AHEAD: usize = u64::BITS as usize;

/// The acts of a script that may come before their turn.
#[derive(Default)]
pub(super) struct EarlyActs {
    /// The sends.
    pub(super) sends: Vec<EarlySend>,
    /// To whom messages go that the same resource limits, as the sender sees it; each rank once.
    pub(super) queues: BTreeMap<ResourceId, Vec<Rank>>,
    /// The receives of messages that are asked for where they come from another machine.
    pub(super) receives: Vec<EarlyReceive>,
    /// For each act which of the [`AHEAD`] acts before it must be done first; the highest bit is the act just before it.
    needs: Vec<u64>,
}

/// How the message of an act goes in the plan.
#[derive(Clone, Copy, Default)]
pub(super) struct PassagePlan {
    pub(super) arrives: Option<ArrivalPlan>,
    /// When it leaves.
    pub(super) leaves: Option<Micros>,
    pub(super) departs: Option<DeparturePlan>,
}

/// A send that may come before its turn.
#[derive(Clone, Copy, Debug)]
pub(super) struct EarlySend {
    pub(super) act: u32,
    /// How it leaves in the plan, if there is one with times.
    pub(super) plan: Option<DeparturePlan>,
}

/// What limits a message that leaves.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct DeparturePlan {
    /// The resource that limits it.
    pub(super) limited_by: ResourceId,
    /// So many bytes are on their way between two machines.
    lead: usize,
    /// How long a byte takes.
    beta: MicrosPerByte,
}

/// So many bytes are on their way over a connection between two machines.
fn lead(beta: MicrosPerByte) -> usize {
    LEAST_LEAD.max((LEAD.0 / beta.0) as usize)
}

impl DeparturePlan {
    /// Of a message over a connection of a program; `None` if it has no times, or no resource limits it.
    pub(super) fn of(program: &Program, transfer: Option<u32>, connection: ConnectionId) -> Option<Self> {
        let tempo = &program.tempo;
        tempo.times.get(transfer? as usize)?;
        let limited_by = tempo.bottlenecks.get(connection.index())?[0]?;
        let beta = *tempo.rates.get(connection.index())?;
        Some(Self { limited_by, lead: lead(beta), beta })
    }

    /// How long it waits before it passes messages that should have gone before, while so many bytes are on their way through what
    /// limits both; `None` if they are few.
    pub(super) fn pause(&self, unsent: usize) -> Option<Duration> {
        let too_many = unsent.checked_sub(self.lead).filter(|bytes| *bytes > 0)?;
        let time = Duration::try_from_secs_f64(too_many as f64 * self.beta.0 * 1e-6).unwrap_or(LONGEST_PAUSE);
        Some(time.clamp(LEAST_PAUSE, LONGEST_PAUSE))
    }
}

/// A receive that may begin before its turn.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct EarlyReceive {
    pub(super) act: u32,
    /// The act that receives from the same rank before it, if any.
    pub(super) behind: Option<u32>,
    /// When it comes in the plan, if there is one with times.
    pub(super) plan: Option<ArrivalPlan>,
}

/// When a plan has a message arrive, and what limits it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct ArrivalPlan {
    /// The resource that limits it.
    pub(super) limited_by: ResourceId,
    /// Start and end, in the plan's time.
    pub(super) times: [Micros; 2],
    /// So many bytes are on their way between two machines.
    pub(super) lead: usize,
    /// Whether this rank passes it on at once.
    pub(super) is_urgent: bool,
}

impl ArrivalPlan {
    /// Of a message over a connection of a program; `None` if it has no times, or no resource limits it.
    pub(super) fn of(program: &Program, transfer: Option<u32>, connection: ConnectionId) -> Option<Self> {
        let tempo = &program.tempo;
        let times = *tempo.times.get(transfer? as usize)?;
        let limited_by = tempo.bottlenecks.get(connection.index())?[1]?;
        let beta = *tempo.rates.get(connection.index())?;
        Some(Self { limited_by, times, lead: lead(beta), is_urgent: false })
    }

    /// How many of the `bytes` bytes of an earlier message may still be to come when this one is asked for. If it would not make that
    /// one late, all of them.
    pub(super) fn spare(&self, earlier: &Self, bytes: usize) -> usize {
        if !earlier.is_urgent || earlier.limited_by != self.limited_by {
            return bytes;
        }
        let [start, end] = earlier.times.map(|time| time.0);
        let share = if end > start { ((end - self.times[0].0) / (end - start)).clamp(0.0, 1.0) } else { 0.0 };
        earlier.lead.saturating_add((bytes as f64 * share) as usize)
    }
}

impl EarlyActs {
    /// What of some acts may be early; `plans` has for each how its message goes in the plan.
    pub(super) fn of(acts: &[Act], plans: &[PassagePlan]) -> Self {
        let mut early = Self::default();
        let mut sent: BTreeMap<Rank, usize> = BTreeMap::new();
        let mut received: BTreeMap<Rank, usize> = BTreeMap::new();
        for (index, act) in acts.iter().enumerate() {
            let mut needs = 0;
            for (back, before) in acts[..index].iter().rev().take(AHEAD).enumerate() {
                needs |= u64::from(before.must_precede(act)) << (AHEAD - 1 - back);
            }
            if let Act::Send { to, .. } = act {
                let PassagePlan { leaves, departs: plan, .. } = plans.get(index).copied().unwrap_or_default();
                early.sends.push(EarlySend { act: index as u32, plan });
                if let Some(start) = leaves {
                    early.urge(acts, index, start);
                }
                if let Some(plan) = plan {
                    let queue = early.queues.entry(plan.limited_by).or_default();
                    if !queue.contains(to) {
                        queue.push(*to);
                    }
                }
                if let Some(behind) = sent.insert(*to, index).filter(|behind| index - behind <= AHEAD) {
                    needs |= 1 << (AHEAD - (index - behind));
                }
            }
            if let Some((from, _)) = act.source() {
                let behind = received.insert(from, index).map(|behind| behind as u32);
                if act.receives_long() {
                    let plan = plans.get(index).and_then(|plan| plan.arrives);
                    early.receives.push(EarlyReceive { act: index as u32, behind, plan });
                }
            }
            early.needs.push(needs);
        }
        early
    }

    /// A send leaves at `start`: what it passes on was urgent if it came just before.
    fn urge(&mut self, acts: &[Act], send: usize, start: Micros) {
        for early in self.receives.iter_mut().rev().take(AHEAD) {
            if let Some(plan) = early.plan.as_mut().filter(|_| acts[early.act as usize].must_precede(&acts[send])) {
                let [begin, end] = plan.times;
                plan.is_urgent |= (start - end).0 <= URGENT * (end - begin).0;
            }
        }
    }

    /// How many bytes its lists take in memory.
    pub(super) fn bytes(&self) -> usize {
        let queues: usize = self.queues.values().map(|queue| size_of_val(&**queue)).sum();
        size_of_val(&*self.sends) + queues + size_of_val(&*self.receives) + size_of_val(&*self.needs)
    }

    /// Whether an act may be done when it is `ahead` acts before its turn (1 to [`AHEAD`]), of which those in `done` are done:
    /// one bit for each, the lowest for the act whose turn it is.
    pub(super) fn may_begin(&self, act: usize, ahead: usize, done: u64) -> bool {
        self.needs[act] >> (AHEAD - ahead) & !done == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plan::ByteSpan;
    use crate::transport::SHORT_AT_MOST;
    use program::Buffer;
    use std::ops::Range;

    fn span(bytes: Range<usize>) -> ByteSpan {
        ByteSpan { buffer: Buffer::Output, bytes }
    }

    fn send(to: u32, bytes: Range<usize>) -> Act {
        Act::Send { to: Rank(to), tag: 0, src: span(bytes) }
    }

    fn receive(from: u32, bytes: Range<usize>) -> Act {
        Act::Receive { from: Rank(from), tag: 0, dst: span(bytes) }
    }

    /// Which acts an act needs, if none is done.
    fn needs(acts: &[Act], act: usize) -> Vec<usize> {
        let early = EarlyActs::of(acts, &[]);
        let first = act.saturating_sub(AHEAD);
        (first..act).filter(|&before| !early.may_begin(act, act - first, !(1 << (before - first)))).collect()
    }

    /// Rank 3 receives from rank 1 for 40 µs, and sends that on at once or later; a second message comes from rank 2 meanwhile.
    #[test]
    fn what_is_passed_on_at_once_does_not_share_what_limits_it() {
        const LONG: usize = 8 * LEAST_LEAD;
        let at = |limited_by, times: [f64; 2]| ArrivalPlan {
            limited_by: ResourceId(limited_by),
            times: times.map(Micros),
            lead: LEAST_LEAD,
            is_urgent: false,
        };
        let spare = |limited_by, start: f64, leaves: f64| {
            let acts = [receive(1, 0..LONG), receive(2, LONG..2 * LONG), send(0, 0..LONG)];
            let arrives = |plan| PassagePlan { arrives: Some(plan), ..PassagePlan::default() };
            let first = arrives(at(0, [0.0, 40.0]));
            let second = arrives(at(limited_by, [start, start + 40.0]));
            // Also if nothing limits it there, as within a machine.
            let passed_on = PassagePlan { leaves: Some(Micros(leaves)), ..PassagePlan::default() };
            let early = EarlyActs::of(&acts, &[first, second, passed_on]);
            let [first, second] = [0, 1].map(|place| early.receives[place].plan.unwrap());
            second.spare(&first, LONG)
        };
        assert_eq!(spare(0, 40.0, 41.0), LEAST_LEAD, "after the first");
        assert_eq!(spare(0, 20.0, 41.0), LEAST_LEAD + LONG / 2, "with the second half of the first");
        assert_eq!(spare(0, 40.0, 90.0), LONG, "nobody waits for the first");
        assert_eq!(spare(1, 40.0, 41.0), LONG, "something else limits the second");
    }

    #[test]
    fn what_would_pass_an_earlier_send_waits_until_little_is_on_its_way() {
        // At 15 MB/s, as much is on its way as anywhere at least.
        let slow = DeparturePlan {
            limited_by: ResourceId(0),
            lead: lead(MicrosPerByte(1.0 / 15.0)),
            beta: MicrosPerByte(1.0 / 15.0),
        };
        assert_eq!([0, LEAST_LEAD].map(|unsent| slow.pause(unsent)), [None, None]);
        let pause = |more| slow.pause(LEAST_LEAD + more).unwrap();
        assert_eq!(pause(15_000), Duration::from_millis(1));
        assert_eq!([pause(1), pause(1 << 30)], [LEAST_PAUSE, LONGEST_PAUSE]);
        // Over a fast network, more is.
        let fast = DeparturePlan { lead: lead(MicrosPerByte(1e-4)), beta: MicrosPerByte(1e-4), ..slow };
        assert_eq!(
            [fast.pause(5_000_000), fast.pause(5_000_000 + 1_000_000)],
            [None, Some(Duration::from_micros(100))]
        );
        let acts = [receive(2, 0..8), send(1, 0..8), send(3, 8..16), send(1, 16..24)];
        let plans =
            [0, 1, 2, 3].map(|act| PassagePlan { departs: (act > 0).then_some(slow), ..PassagePlan::default() });
        assert_eq!(EarlyActs::of(&acts, &plans).queues, [(ResourceId(0), vec![Rank(1), Rank(3)])].into());
    }

    #[test]
    fn a_send_needs_what_writes_its_bytes_and_the_send_before_it_to_the_same_rank() {
        let acts =
            [receive(1, 0..8), receive(1, 8..16), send(2, 4..12), send(3, 16..24), send(2, 16..24), send(3, 0..4)];
        assert_eq!(needs(&acts, 2), [0, 1]);
        assert!(needs(&acts, 3).is_empty());
        assert_eq!(needs(&acts, 4), [2]);
        assert_eq!(needs(&acts, 5), [0, 3]);
        let sends = EarlyActs::of(&acts, &[]).sends;
        assert_eq!(sends.iter().map(|send| send.act).collect::<Vec<_>>(), [2, 3, 4, 5]);
    }

    #[test]
    fn a_receive_needs_what_reads_or_writes_the_bytes_that_it_replaces() {
        const LONG: usize = 2 * SHORT_AT_MOST;
        let from = |rank, part: usize| receive(rank, part * LONG..(part + 1) * LONG);
        let acts = [from(1, 0), from(2, 1), send(3, 0..LONG), from(3, 0), receive(3, 0..8), from(3, 3)];
        assert!(needs(&acts, 1).is_empty());
        assert_eq!(needs(&acts, 3), [0, 2]);
        assert!(needs(&acts, 5).is_empty());
        let receives = EarlyActs::of(&acts, &[]).receives;
        let behind: Vec<(u32, Option<u32>)> = receives.iter().map(|early| (early.act, early.behind)).collect();
        assert_eq!(behind, [(0, None), (1, None), (3, None), (5, Some(4))]);
    }

    #[test]
    fn what_is_too_far_before_is_done_when_an_act_may_begin() {
        let mut acts = vec![receive(1, 8..16)];
        acts.extend((0..AHEAD).map(|_| receive(1, 0..8)));
        acts.push(send(2, 8..16));
        let early = EarlyActs::of(&acts, &[]);
        assert!(early.may_begin(AHEAD + 1, AHEAD, 0));
        acts.remove(1);
        let early = EarlyActs::of(&acts, &[]);
        assert!(!early.may_begin(AHEAD, AHEAD, 0) && early.may_begin(AHEAD, AHEAD, 1));
        assert!(early.may_begin(AHEAD, AHEAD - 1, 0), "the first act is done, since its turn has passed");
    }
}
