//! Plays a verified schedule and measures the use of links and resources.
//!
//! The principal type is [`Simulation`]. Stated times may leave gaps (a schedule from a file, an optimizer on a grid of
//! epochs), so the order is played again as early as possible. But an order alone does not say which contributions a
//! combining message carries (two ranks may exchange theirs at the same time). So the new times are used only if the
//! verifier accepts them and they are not slower; otherwise the stated times stand.

use crate::{Message, Schedule, Timeline, Usage, VerifiedSchedule, busiest, replay, verify};
use topology::{LinkId, Micros, ResourceId};

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

impl Simulation {
    /// The most utilised link and the most utilised resource that carry anything (the lowest id among equals).
    pub fn busiest(&self) -> (Option<LinkId>, Option<ResourceId>) {
        (busiest(&self.links).map(LinkId::from_index), busiest(&self.resources).map(ResourceId::from_index))
    }
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
