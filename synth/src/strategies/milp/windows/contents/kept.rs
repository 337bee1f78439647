//! The messages of a window of contents: those of the schedule, and some that it adds without contents.
//!
//! The principal type is [`KeptMessage`].

use super::super::places::{BusyPlace, places};
use super::groups::{ChunkGroups, GroupKind};
use crate::problem::Problem;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::{ChunkId, Schedule, Transfer, TransferKind};
use std::collections::{BTreeMap, BTreeSet};
use topology::LinkId;

/// A message of the model, of the schedule or added, over a link and in a turn that it keeps.
pub(super) struct KeptMessage {
    pub(super) link: LinkId,
    pub(super) kind: TransferKind,
    /// Its departure and arrival in the schedule. Of an added one, both are when its link is free.
    pub(super) start: f64,
    pub(super) end: f64,
    /// How many chunks of each free group it carries in the schedule.
    pub(super) now: BTreeMap<usize, u32>,
    /// The chunks that it goes on carrying, in ascending order.
    pub(super) fixed: Vec<ChunkId>,
}

impl KeptMessage {
    /// How many chunks it carries in the schedule.
    pub(super) fn carried_now(&self) -> usize {
        self.fixed.len() + self.now.values().map(|&amount| amount as usize).sum::<usize>()
    }
}

/// The messages of a schedule, and up to `added` without contents where a link and its resources are idle, in the order of their
/// departures.
pub(super) fn kept_messages(
    problem: &Problem,
    schedule: &Schedule,
    groups: &ChunkGroups,
    free: &BTreeSet<usize>,
    added: usize,
    random: &mut Pcg64Mcg,
) -> Vec<KeptMessage> {
    let mut all: Vec<KeptMessage> = Vec::new();
    for transfer in &schedule.transfers {
        let (mut now, mut fixed) = (BTreeMap::new(), Vec::new());
        for &chunk in &transfer.chunks {
            match groups.of(chunk).filter(|group| free.contains(group)) {
                Some(group) => *now.entry(group).or_insert(0) += 1,
                None => fixed.push(chunk),
            }
        }
        fixed.sort_unstable();
        let Transfer { link, kind, start, end, .. } = *transfer;
        all.push(KeptMessage { link, kind, start: start.0, end: end.0, now, fixed });
    }
    let mut room = if added > 0 { room(problem, schedule) } else { Vec::new() };
    room.retain(|&(link, _)| free.iter().any(|&group| groups.all[group].may_use(link)));
    let adds = free.iter().any(|&group| groups.all[group].kind == GroupKind::Summed);
    for _ in 0..added.min(room.len()) {
        let (link, at) = room[random.next_u64() as usize % room.len()];
        let kind = match adds && random.next_u64().is_multiple_of(2) {
            true => TransferKind::Reduce,
            false => TransferKind::Copy,
        };
        all.push(KeptMessage { link, kind, start: at, end: at, now: BTreeMap::new(), fixed: Vec::new() });
    }
    all.sort_by(|a, b| a.start.total_cmp(&b.start).then(a.end.total_cmp(&b.end)));
    all
}

/// Where messages can be added: before or behind those of a link, when no message keeps one of its places busy. Otherwise messages
/// that share a resource with it would have to move.
fn room(problem: &Problem, schedule: &Schedule) -> Vec<(LinkId, f64)> {
    let mut busy: BTreeMap<BusyPlace, Vec<(f64, f64)>> = BTreeMap::new();
    let mut room: Vec<(LinkId, f64)> = problem.topology.link_ids().map(|link| (link, 0.0)).collect();
    for transfer in &schedule.transfers {
        let (link, start) = (transfer.link, transfer.start.0);
        let bytes = problem.demand.message_bytes(&transfer.chunks);
        for place in places(problem, link) {
            busy.entry(place).or_default().push((start, start + place.busy(problem, link, bytes)));
        }
        room.push((link, start + problem.topology.link(link).occupancy(bytes).0));
    }
    let slack = schedule.makespan().0 * 1e-12;
    let is_busy = |&(start, end): &(f64, f64), at: f64| start < at && at < end - slack;
    room.retain(|&(link, at)| {
        !places(problem, link).any(|place| busy.get(&place).into_iter().flatten().any(|interval| is_busy(interval, at)))
    });
    room
}
