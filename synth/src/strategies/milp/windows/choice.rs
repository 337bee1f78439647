//! What a window frees.
//!
//! The principal functions are [`chosen`], for messages, and [`chosen_groups`], for what messages carry.

use super::contents::{ChunkGroups, FreeContents};
use super::deliveries::MOST_PARTS;
use super::kinds::unit;
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use schedule::{ChunkId, Schedule, Transfer, TransferKind};
use std::collections::{BTreeMap, BTreeSet};
use topology::Micros;

/// A chunk that so few messages carry is freed as a whole: with a part of its way fixed, it could not take another one.
const SHORT_WAY: usize = 4;
/// Of a window of contents: the most of the makespan within which messages may wait or not, and the most messages without contents for
/// each link; both times the width of the window.
const MARGIN: f64 = 0.06;
const ADDED: f64 = 0.25;
/// The most steps from a late message to what it has waited for.
const STEPS: u64 = 6;

/// Messages of about `size` deliveries to free, which copy: a late one, and others near it in time, at its ranks first.
pub(super) fn chosen(schedule: &Schedule, begin: f64, size: usize, random: &mut Pcg64Mcg) -> BTreeSet<usize> {
    let transfers = &schedule.transfers;
    let copies = |index: &usize| transfers[*index].kind == TransferKind::Copy;
    let mut late: Vec<usize> = (0..transfers.len()).filter(copies).collect();
    if late.is_empty() {
        return BTreeSet::new();
    }
    late.sort_by(|&a, &b| transfers[b].end.total_cmp(&transfers[a].end).then(a.cmp(&b)));
    // From a late message, go back a random number of steps along what made it late.
    let all_late = late.iter().take_while(|&&index| transfers[index].end.0 > begin).count();
    let mut pivot = late[random.next_u64() as usize % all_late.clamp(1, late.len())];
    for _ in 0..random.next_u64() % STEPS {
        let waited_for = |it: &&usize| {
            let (other, own) = (&transfers[**it], &transfers[pivot]);
            let touches = other.to == own.from || other.from == own.from || other.to == own.to;
            touches && other.start < own.start
        };
        let Some(&before) = late.iter().find(waited_for) else { break };
        pivot = before;
    }
    // Messages of the same chunk are near at any time, as near as those at the same ranks, or nothing special.
    let nearness = random.next_u64() % 3;
    let near = |index: usize| {
        let (other, own): (&Transfer, &Transfer) = (&transfers[index], &transfers[pivot]);
        let shared = [own.from, own.to].iter().filter(|&&rank| other.from == rank || other.to == rank).count();
        let has_same_chunk = other.chunks.iter().any(|chunk| own.chunks.binary_search(chunk).is_ok());
        let (shared, weight) = match nearness {
            0 if has_same_chunk => (2, 0.0),
            1 if has_same_chunk => (2, 1.0),
            _ => (shared, 1.0),
        };
        let apart = Micros((other.start.0 - own.start.0).abs());
        let blur = 1.0 + (random_unit(index, pivot) - 0.5) * 0.5;
        weight * apart.0 * blur + schedule.makespan().0 * 0.25 * (2 - shared) as f64
    };
    let distances: Vec<f64> = (0..transfers.len()).map(near).collect();
    let mut order: Vec<usize> = (0..transfers.len()).filter(copies).collect();
    order.sort_by(|&a, &b| distances[a].total_cmp(&distances[b]).then(a.cmp(&b)));
    let mut carriers: BTreeMap<ChunkId, Vec<usize>> = BTreeMap::new();
    for (index, transfer) in transfers.iter().enumerate().filter(|(index, _)| copies(index)) {
        transfer.chunks.iter().for_each(|&chunk| carriers.entry(chunk).or_default().push(index));
    }
    let mut free = BTreeSet::new();
    let mut deliveries = 0;
    for index in order {
        let with = transfers[index].chunks.iter().map(|chunk| &carriers[chunk]).filter(|all| all.len() <= SHORT_WAY);
        for index in std::iter::once(index).chain(with.flatten().copied()) {
            if free.insert(index) {
                deliveries += transfers[index].chunks.len().min(MOST_PARTS);
            }
        }
        if deliveries >= size {
            break;
        }
    }
    free
}

/// What a window of contents frees: so many groups of chunks, those of a late message first. Where the size is more than the number
/// of groups, the window is as many times as wide in time.
pub(super) fn chosen_groups(
    schedule: &Schedule,
    begin: f64,
    groups: &ChunkGroups,
    (size, links): (usize, usize),
    random: &mut Pcg64Mcg,
) -> FreeContents {
    let all = groups.all.len();
    let late: Vec<&Transfer> = schedule.transfers.iter().filter(|transfer| transfer.end.0 >= begin).collect();
    let pivot = late.get(random.next_u64() as usize % late.len().max(1));
    let carried = pivot.into_iter().flat_map(|transfer| transfer.chunks.iter());
    let first: BTreeSet<usize> = carried.filter_map(|&chunk| groups.of(chunk)).collect();
    let mut order: Vec<(bool, u64, usize)> =
        (0..all).map(|group| (!first.contains(&group), random.next_u64(), group)).collect();
    order.sort_unstable();
    let width = (size as f64 / all.max(1) as f64).max(1.0);
    FreeContents {
        groups: order.into_iter().take(size).map(|(.., group)| group).collect(),
        margin: schedule.makespan().0 * MARGIN * width * unit(random),
        added: (links as f64 * ADDED * width * unit(random)) as usize,
        seed: random.next_u64(),
    }
}

/// A number from 0 to 1 that differs from pair to pair.
fn random_unit(one: usize, other: usize) -> f64 {
    let mixed = (one as u64 * 0x9E37_79B9 + other as u64).wrapping_mul(0xD1B5_4A32_D192_ED03);
    (mixed >> 11) as f64 / (1u64 << 53) as f64
}
