//! Reorders the messages of each link such that the schedule tolerates delays best.
//!
//! The principal function is [`eased`]. In the cost model a message may leave the moment that its data has arrived. On
//! a real network data is sometimes late. Links keep their order, so the link then stands idle; a schedule without idle
//! time never makes up for that. Therefore messages of equal length on the same link change places where that leaves
//! more time between arrivals and departures.
//!
//! An order with the largest least slack is found by bisection over the slack that earliest-deadline-first [1] can
//! keep. It is used if it leaves more slack in all, where little slack weighs most. Links and resources are busy at the
//! same times as before, so the makespan stays.
//!
//! [1] Jackson, "Scheduling a production line to minimize maximum tardiness", UCLA, 1955.

use crate::problem::Problem;
use crate::problem::constraints::RuleKind;
use crate::problem::distance::Key;
use schedule::{ChunkId, Demand, Schedule, TIME_TOLERANCE, Transfer, TransferKind, clearly_before};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use topology::{LinkId, Micros, Rank};

/// Schedules that carry more chunks, summed over messages, stay as they are: a single late message hardly delays them.
const MOST_CARRIED: usize = 1 << 15;
/// The most passes over all links; a change on one link can give room to others.
const PASSES: u32 = 4;
/// Steps of bisection; each halves the interval of the least slack.
const STEPS: u32 = 10;

/// When a message may leave and must have arrived, and on which side slack is useful.
#[derive(Clone, Copy, Debug)]
struct TimeWindow {
    /// The earliest departure.
    opens: f64,
    /// The latest arrival.
    closes: f64,
    /// Whether another message brings what it carries.
    is_brought: bool,
    /// Whether another message waits for it.
    is_awaited: bool,
}

/// The transfers that bring a chunk to a rank, and those with which the rank sends it on, by index.
#[derive(Clone, Default, Debug)]
struct Visits {
    arrivals: Vec<usize>,
    departures: Vec<usize>,
}

/// `schedule` with the slack that exchanges within links bring; `None` if they bring none, or if the sketch prescribes
/// an order.
pub(crate) fn eased(problem: &Problem, schedule: &Schedule) -> Option<Schedule> {
    if schedule.deliveries() > MOST_CARRIED || problem.constraints.exceeds(&RuleKind::OF_WAYS) {
        return None;
    }
    let mut draft = EasingDraft::of(schedule)?;
    let mut changed = false;
    for _ in 0..PASSES {
        let moved = (0..draft.links.len()).filter(|&link| draft.ease(link)).count();
        if moved == 0 {
            break;
        }
        changed = true;
    }
    let mut transfers = draft.transfers;
    transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
    changed.then(|| Schedule { transfers, ..schedule.clone() })
}

/// The chunks of a message at both of its ends.
fn ends(message: &Transfer) -> impl Iterator<Item = (ChunkId, Rank)> {
    message.chunks.iter().flat_map(|&chunk| [(chunk, message.from), (chunk, message.to)])
}

struct EasingDraft<'a> {
    demand: &'a Demand,
    transfers: Vec<Transfer>,
    /// Messages of one length over one link.
    links: Vec<Vec<usize>>,
    visits: BTreeMap<(ChunkId, Rank), Visits>,
    makespan: f64,
}

impl<'a> EasingDraft<'a> {
    /// The messages that may change places; `None` if none may.
    fn of(schedule: &'a Schedule) -> Option<Self> {
        let (demand, transfers) = (&schedule.demand, &schedule.transfers);
        let mut links: BTreeMap<(LinkId, u64), Vec<usize>> = BTreeMap::new();
        for (index, transfer) in transfers.iter().enumerate() {
            let bytes = demand.message_bytes(&transfer.chunks);
            links.entry((transfer.link, bytes.0.to_bits())).or_default().push(index);
        }
        let links: Vec<Vec<usize>> = links.into_values().filter(|messages| messages.len() > 1).collect();
        let movable = links.iter().flatten().map(|&index| &transfers[index]);
        let mut visits: BTreeMap<(ChunkId, Rank), Visits> =
            movable.flat_map(ends).map(|end| (end, Visits::default())).collect();
        for (index, transfer) in transfers.iter().enumerate() {
            for &chunk in &transfer.chunks {
                visits.entry((chunk, transfer.from)).and_modify(|visits| visits.departures.push(index));
                visits.entry((chunk, transfer.to)).and_modify(|visits| visits.arrivals.push(index));
            }
        }
        let makespan = schedule.makespan().0;
        (!links.is_empty()).then(|| Self { demand, transfers: transfers.clone(), links, visits, makespan })
    }

    /// Gives the messages of a link the order with the most slack; whether that changed their order.
    fn ease(&mut self, link: usize) -> bool {
        let messages = self.links[link].clone();
        let mut slots: Vec<(Micros, Micros)> =
            messages.iter().map(|&index| (self.transfers[index].start, self.transfers[index].end)).collect();
        let windows: Vec<TimeWindow> = messages.iter().map(|&index| self.window(index)).collect();
        let tightness = |of: &[(Micros, Micros)]| -> f64 {
            windows.iter().zip(of).map(|(window, slot)| window.tightness(*slot)).sum()
        };
        let before = tightness(&slots);
        let mut times = slots.clone();
        slots.sort_by(|a, b| a.0.total_cmp(&b.0));
        let Some(order) = best_order(&windows, &slots, self.makespan) else { return false };
        for (slot, message) in slots.into_iter().zip(order) {
            times[message] = slot;
        }
        if tightness(&times) >= before * (1.0 - TIME_TOLERANCE) {
            return false;
        }
        for (&index, (start, end)) in messages.iter().zip(times) {
            (self.transfers[index].start, self.transfers[index].end) = (start, end);
        }
        true
    }

    /// The times at which a message may be sent without changing a value anywhere.
    fn window(&self, index: usize) -> TimeWindow {
        let message = &self.transfers[index];
        let (start, end, length) = (message.start.0, message.end.0, message.end.0 - message.start.0);
        let mut window = TimeWindow { opens: 0.0, closes: self.makespan, is_brought: false, is_awaited: false };
        // Messages that meet at the same moment in a sum must keep their order, despite rounding.
        let apart = 2.0 * TIME_TOLERANCE * self.makespan;
        window.opens = self.demand.release(&message.chunks).0;
        for &chunk in &message.chunks {
            let sums = self.demand.chunk(chunk).combine;
            let [here, there] = [message.from, message.to].map(|rank| &self.visits[&(chunk, rank)]);
            if sums || !self.demand.chunk(chunk).holders.has(message.from) {
                let ends = here.arrivals.iter().map(|&arrival| self.transfers[arrival].end.0);
                let (come, later): (Vec<f64>, Vec<f64>) = ends.partition(|&arrival| is_early(arrival, start));
                // For a copy, one earlier arrival is enough. A sum includes all earlier arrivals, and no later one.
                let least = if sums { come.into_iter().reduce(f64::max) } else { come.into_iter().reduce(f64::min) };
                window.is_brought |= least.is_some();
                window.opens = window.opens.max(least.unwrap_or(0.0));
                let next = later.into_iter().reduce(f64::min).filter(|_| sums);
                window.closes = window.closes.min(next.map_or(f64::INFINITY, |next| next + length - apart));
            }
            let starts = there.departures.iter().map(|&departure| self.transfers[departure].start.0);
            let (later, gone): (Vec<f64>, Vec<f64>) = starts.partition(|&departure| is_early(end, departure));
            if let Some(needed) = later.into_iter().reduce(f64::min) {
                window.is_awaited = true;
                window.closes = window.closes.min(needed);
            }
            if sums {
                let last = gone.into_iter().reduce(f64::max);
                window.opens = window.opens.max(last.map_or(0.0, |last| last - length + apart));
                self.keep_apart(index, there, apart, &mut window);
            }
        }
        window
    }

    /// Keeps the order between a message that replaces a value and those that are added to it.
    fn keep_apart(&self, index: usize, there: &Visits, apart: f64, window: &mut TimeWindow) {
        let message = &self.transfers[index];
        let length = message.end.0 - message.start.0;
        for &arrival in there.arrivals.iter().filter(|&&arrival| arrival != index) {
            let other = &self.transfers[arrival];
            if message.kind == TransferKind::Reduce && other.kind == TransferKind::Reduce {
                continue;
            }
            if other.end < message.end {
                window.opens = window.opens.max(other.end.0 - length + apart);
            } else {
                window.closes = window.closes.min(other.end.0 - apart);
            }
        }
    }
}

/// Whether `a` is not later than `b`, within the verifier's tolerance.
fn is_early(a: f64, b: f64) -> bool {
    !clearly_before(Micros(b), Micros(a))
}

impl TimeWindow {
    /// The window with this much slack on each side where slack is useful.
    fn narrowed(&self, slack: f64) -> (f64, f64) {
        let opens = if self.is_brought { self.opens + slack } else { self.opens };
        (opens, if self.is_awaited { self.closes - slack } else { self.closes })
    }

    /// The least slack of a slot over the sides where slack is useful; infinite if there is no such side.
    fn slack(&self, (start, end): (Micros, Micros)) -> f64 {
        let before = if self.is_brought { start.0 - self.opens } else { f64::INFINITY };
        before.min(if self.is_awaited { self.closes - end.0 } else { f64::INFINITY })
    }

    /// The most slack that the window has in any of these slots, which are in order.
    fn most_slack(&self, slots: &[(Micros, Micros)]) -> f64 {
        // A later slot has more slack before it and less behind it. The best slot is where both are equal, or the last
        // in time.
        let early = |slot: &(Micros, Micros)| {
            let behind = self.closes - slot.1.0;
            if self.is_awaited { slot.0.0 - self.opens < behind && self.is_brought } else { is_early(0.0, behind) }
        };
        let meeting = slots.partition_point(early);
        let near = slots[meeting.saturating_sub(1)..].iter().take(2).filter(|slot| self.admits(**slot));
        near.map(|&slot| self.slack(slot)).fold(0.0, f64::max)
    }

    fn admits(&self, (start, end): (Micros, Micros)) -> bool {
        is_early(self.opens, start.0) && is_early(end.0, self.closes)
    }

    /// How much harm a small delay may do; infinite outside the window.
    fn tightness(&self, slot: (Micros, Micros)) -> f64 {
        if !self.admits(slot) {
            return f64::INFINITY;
        }
        let (start, end) = slot;
        let of = |counts: bool, slack: f64| if counts { 1.0 / (slack.max(0.0) + (end.0 - start.0)) } else { 0.0 };
        of(self.is_brought, start.0 - self.opens) + of(self.is_awaited, self.closes - end.0)
    }
}

/// The message for each slot, such that the least slack is the largest.
fn best_order(windows: &[TimeWindow], slots: &[(Micros, Micros)], makespan: f64) -> Option<Vec<usize>> {
    let most: Vec<f64> = windows.iter().map(|window| window.most_slack(slots)).collect();
    let narrowed = |slack: f64| -> Vec<(f64, f64)> {
        windows.iter().zip(&most).map(|(window, most)| window.narrowed(slack.min(*most))).collect()
    };
    let mut best = in_order(&narrowed(0.0), slots)?;
    let (mut kept, mut missed) = (0.0, makespan);
    for _ in 0..STEPS {
        let slack = (kept + missed) / 2.0;
        match in_order(&narrowed(slack), slots) {
            Some(order) => (best, kept) = (order, slack),
            None => missed = slack,
        }
    }
    Some(best)
}

/// The message for each slot: of those that may leave, the one with the earliest deadline. `None` if one comes too
/// late.
fn in_order(windows: &[(f64, f64)], slots: &[(Micros, Micros)]) -> Option<Vec<usize>> {
    let mut opening: Vec<usize> = (0..windows.len()).collect();
    opening.sort_by(|&a, &b| windows[a].0.total_cmp(&windows[b].0));
    let mut opening = opening.into_iter().enumerate().peekable();
    let mut open: BinaryHeap<Reverse<(Key, usize, usize)>> = BinaryHeap::new();
    let mut order = Vec::with_capacity(slots.len());
    for (start, end) in slots {
        while let Some((place, message)) = opening.next_if(|&(_, message)| is_early(windows[message].0, start.0)) {
            open.push(Reverse((Key::new(windows[message].1.max(0.0)), place, message)));
        }
        let Reverse((closes, _, message)) = open.pop()?;
        if !is_early(end.0, closes.value()) {
            return None;
        }
        order.push(message);
    }
    Some(order)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::by_hand::{copies, random_machine, wired};
    use crate::problem::{Deadline, SearchOptions};
    use crate::strategies::matching::Matching;
    use crate::strategies::{Context, reversal};
    use schedule::{Collective, Request, replay, verify};
    use std::sync::Arc;
    use topology::{Latency, Topology};

    /// Three ranks in a row gather two chunks each, so that rank 1 passes on four.
    #[test]
    fn what_a_rank_has_leaves_before_what_it_has_just_got() {
        let wires =
            [(0, 1, 0.0, 1.0, false), (1, 2, 0.0, 1.0, false), (2, 1, 0.0, 1.0, false), (1, 0, 0.0, 1.0, false)];
        let topology = Arc::new(Topology::new(wired(3, &wires, Latency::Occupies, 1.0)).unwrap());
        let demand = Arc::new(Demand::new(Request::new(Collective::AllGather, 3, 6).with_chunks(2)).unwrap());
        let problem = Problem::new(topology.clone(), demand.clone());
        let there = [(0, 0, 1), (1, 0, 1), (2, 1, 2), (0, 1, 2), (1, 1, 2), (3, 1, 2)];
        let back = [(4, 2, 1), (5, 2, 1), (2, 1, 0), (4, 1, 0), (5, 1, 0), (3, 1, 0)];
        let messages = copies(&topology, &[there, back].concat());
        let transfers = replay(&demand, &topology, &messages).unwrap();
        let tight = Schedule::new(&topology, demand, transfers, "by hand");
        let eased = eased(&problem, &tight).expect("there is room");
        let sent = |to: u32| {
            let of = eased.transfers.iter().filter(|it| (it.from, it.to) == (Rank(1), Rank(to)));
            of.map(|it| it.chunks[0].0).collect::<Vec<_>>()
        };
        assert_eq!((sent(2), sent(0)), (vec![2, 3, 0, 1], vec![2, 3, 4, 5]));
        verify(eased, &topology).unwrap();
    }

    /// A message with little room gets the slot that it needs, and the others still get slack.
    #[test]
    fn who_has_little_room_does_not_take_it_from_all() {
        let slots = [10.0, 20.0, 30.0].map(|start| (Micros(start), Micros(start + 10.0)));
        let window = |opens, closes, is_brought, is_awaited| TimeWindow { opens, closes, is_brought, is_awaited };
        // The first is brought just before the first slot and needed after the second. The second is brought later. The
        // third is not brought and not awaited.
        let windows =
            [window(10.0, 30.0, true, true), window(20.0, 100.0, true, true), window(0.0, 200.0, false, false)];
        assert_eq!(best_order(&windows, &slots, 200.0), Some(vec![0, 2, 1]));
        assert_eq!(windows.map(|window| window.most_slack(&slots)), [0.0, 10.0, f64::INFINITY]);
    }

    /// How many messages leave within their own length after their data arrived, counted without any windows.
    fn rushed(schedule: &Schedule) -> usize {
        let is_rushed = |message: &&Transfer| {
            let carries = |other: &&Transfer| {
                other.to == message.from && other.end <= message.start && other.chunks == message.chunks
            };
            let last = schedule.transfers.iter().filter(carries).map(|other| other.end).reduce(Micros::max);
            last.is_some_and(|last| message.start - last < message.end - message.start)
        };
        schedule.transfers.iter().filter(is_rushed).count()
    }

    /// On random machines: the same messages and makespan, valid, and fewer messages without slack.
    #[test]
    fn plans_stay_right_and_as_short() {
        let (mut before, mut after, mut changed) = (0, 0, 0);
        for seed in 0..24 {
            let topology = Arc::new(random_machine(seed));
            for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::AllReduce] {
                let request = Request::new(collective, topology.rank_count(), 4 << 10).with_chunks(4);
                let problem = Problem::new(topology.clone(), Arc::new(Demand::new(request).unwrap()));
                let (options, deadline) = (SearchOptions::default(), Deadline::default());
                let bound = Micros::ZERO;
                let context = Context::among_others(&options, &deadline, bound);
                let attempts = reversal::propose(&problem, &context, &Matching).unwrap();
                for schedule in attempts.into_iter().filter_map(|attempt| attempt.schedule) {
                    let schedule = verify(schedule, &topology).unwrap().into_schedule();
                    let Some(eased) = eased(&problem, &schedule) else { continue };
                    changed += 1;
                    (before, after) = (before + rushed(&schedule), after + rushed(&eased));
                    let same = |it: &Schedule| {
                        let mut all: Vec<_> =
                            it.transfers.iter().map(|it| (it.link, it.chunks.clone(), it.kind)).collect();
                        all.sort();
                        all
                    };
                    assert_eq!(same(&eased), same(&schedule), "seed {seed}, {collective}");
                    let verified =
                        verify(eased, &topology).unwrap_or_else(|no| panic!("seed {seed}, {collective}: {no}"));
                    assert_eq!(verified.schedule().makespan(), schedule.makespan(), "seed {seed}, {collective}");
                }
            }
        }
        assert!(changed > 40 && 10 * after < 9 * before, "{changed} plans, {before} messages in a hurry, then {after}");
    }
}
