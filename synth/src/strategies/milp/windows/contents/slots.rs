//! The messages that a window keeps, and those that it adds without contents.
//!
//! The principal type is [`KeptMessage`].

use super::groups::ChunkGroups;
use crate::problem::Problem;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::{ChunkId, Schedule};
use std::collections::{BTreeMap, BTreeSet};
use topology::LinkId;

/// A message of the model, over a link and in a turn that it keeps.
pub(super) struct KeptMessage {
    pub(super) link: LinkId,
    /// Its departure and arrival in the schedule. Of an added one, both are when its link is free.
    pub(super) start: f64,
    pub(super) end: f64,
    /// How many chunks of each free group it carries in the schedule.
    pub(super) now: BTreeMap<usize, u32>,
    /// The chunks that it goes on carrying.
    pub(super) fixed: Vec<ChunkId>,
}

/// The messages of a schedule, and `added` without contents behind others or before all of their link, in the order of
/// their departures.
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
        all.push(KeptMessage { link: transfer.link, start: transfer.start.0, end: transfer.end.0, now, fixed });
    }
    let is_open = |link: LinkId| free.iter().any(|&group| groups.all[group].may_use(link));
    let links: Vec<LinkId> = problem.topology.link_ids().filter(|&link| is_open(link)).collect();
    let behind = all.iter().filter(|kept| is_open(kept.link)).map(|kept| (kept.link, kept.end));
    let room: Vec<(LinkId, f64)> = links.into_iter().map(|link| (link, 0.0)).chain(behind).collect();
    for _ in 0..added.min(room.len()) {
        let (link, at) = room[random.next_u64() as usize % room.len()];
        all.push(KeptMessage { link, start: at, end: at, now: BTreeMap::new(), fixed: Vec::new() });
    }
    all.sort_by(|a, b| a.start.total_cmp(&b.start).then(a.end.total_cmp(&b.end)));
    all
}
