//! Plays a verified schedule and measures the use of links and resources.
//!
//! The principal type is [`Simulation`]. Stated times may leave gaps (a schedule from a file, an optimizer on a grid of
//! epochs), so the order is played again as early as possible. But an order alone does not say which contributions a
//! combining message carries (two ranks may exchange theirs at the same time). So the new times are used only if the
//! verifier accepts them and they are not slower; otherwise the stated times stand.

use crate::{Message, Schedule, Timeline, VerifiedSchedule, replay, verify};
use topology::{Bytes, LinkId, Micros, ResourceId};

/// The result of playing a schedule.
#[derive(Clone, PartialEq, Debug)]
pub struct Simulation {
    /// The schedule with the times of this simulation.
    pub timeline: VerifiedSchedule,
    /// When the last transfer arrives.
    pub makespan: Micros,
    /// The makespan that the schedule stated; never below `makespan`.
    pub stated_makespan: Micros,
    /// The use of each link.
    pub links: Vec<Usage>,
    /// The use of each resource.
    pub resources: Vec<Usage>,
}

/// How much one link or resource was used.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Usage {
    /// How long it was busy.
    pub busy: Micros,
    /// The part of the makespan that it was busy, 0 to 1.
    pub utilisation: f64,
    /// The bytes that it carried.
    pub bytes: Bytes,
    /// The number of messages.
    pub messages: usize,
}

impl Usage {
    /// Counts one message that keeps it busy for `busy`.
    pub fn add(&mut self, busy: Micros, bytes: Bytes) {
        self.busy += busy;
        self.bytes += bytes;
        self.messages += 1;
    }
}

impl Simulation {
    /// The most utilised link and the most utilised resource that carry anything (the lowest id among equals).
    pub fn busiest(&self) -> (Option<LinkId>, Option<ResourceId>) {
        (busiest(&self.links).map(LinkId::from_index), busiest(&self.resources).map(ResourceId::from_index))
    }
}

/// The most utilised of links or of resources that carry anything (the lowest among equals).
pub fn busiest(usages: &[Usage]) -> Option<usize> {
    let used = usages.iter().enumerate().filter(|(_, usage)| usage.messages > 0);
    used.reduce(|best, next| if next.1.busy > best.1.busy { next } else { best }).map(|(index, _)| index)
}

/// Plays `schedule` as early as its order allows.
pub fn simulate(schedule: &VerifiedSchedule) -> Simulation {
    let stated_makespan = schedule.schedule().makespan();
    let timeline = retimed(schedule).unwrap_or_else(|| schedule.clone());
    let makespan = timeline.schedule().makespan();
    let (links, resources) = Timeline::of(&timeline).usage();
    Simulation { timeline, makespan, stated_makespan, links, resources }
}

/// The same order, played as early as possible; `None` where this would be another schedule, or a slower one.
fn retimed(schedule: &VerifiedSchedule) -> Option<VerifiedSchedule> {
    let (order, topology, schedule) = (schedule.order(), schedule.topology(), schedule.schedule());
    let messages: Vec<Message> =
        order.departures().iter().map(|&transfer| Message::from(&schedule.transfers[transfer as usize])).collect();
    let mut transfers = replay(&schedule.demand, topology, &messages).ok()?;
    transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
    let earlier = Schedule { transfers, ..schedule.clone() };
    if earlier.makespan() > schedule.makespan() {
        return None;
    }
    verify(earlier, topology).ok()
}
