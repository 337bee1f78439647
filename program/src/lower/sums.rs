//! In which order a rank adds up, where several ranks compute one sum.
//!
//! Additions of floats are commutative, but not associative. Where one rank adds up a chunk and the others get copies, any
//! order will do. But where each rank gets the values of all others and adds them up by itself, in the order in which they
//! arrive, ranks would end with different bits. The principal function is [`settle`]: it has each of them add in the order of
//! the contributors. What arrives before its turn waits in a slot of its own, so no message waits for another. This does not help
//! where ranks send each other different partial sums: [`settle`] says so.

use super::flow::{DataFlow, Value, ValueDeliveryId, ValueId};
use std::collections::BTreeSet;
use topology::Rank;

/// How a value came about.
#[derive(Clone, Copy)]
struct PartialSum {
    /// Equal for values that give the same bits, and for hardly any others: sums of the same two operands.
    fingerprint: u64,
    /// Equal for values with the same contributions, and for hardly any others.
    contributions: u64,
    /// The first of the ranks whose contributions are in it.
    first: Rank,
}

impl PartialSum {
    fn plus(self, other: Self) -> Self {
        let fingerprint = mixed(self.fingerprint.wrapping_add(other.fingerprint));
        let contributions = self.contributions.wrapping_add(other.contributions);
        Self { fingerprint, contributions, first: self.first.min(other.first) }
    }
}

fn mixed(value: u64) -> u64 {
    let value = (value ^ (value >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    value ^ (value >> 31)
}

/// Orders the additions of one chunk, which combines: its values and deliveries are those from these on. Nothing changes if
/// all ranks that want it end with the same sum anyway. Answers whether they do now.
pub(super) fn settle(flow: &mut DataFlow, first_value: u32, first_delivery: usize) -> bool {
    let at = |id: ValueId| id.index() - first_value as usize;
    let sums = partial_sums(flow, first_value);
    if are_equal(flow, first_value, &sums) {
        return true;
    }
    // A block of ranks adds up the same contributions; where only some of them send that sum on, the others must have it too.
    let values = flow.values[first_value as usize..].iter().zip(&sums);
    let sent: BTreeSet<u64> =
        values.filter(|(value, _)| !value.senders.is_empty()).map(|(_, sum)| sum.contributions).collect();
    let is_sent = |id: ValueId| sent.contains(&sums[at(id)].contributions);
    for last in first_delivery..flow.deliveries.len() {
        let chain = chain(flow, ValueDeliveryId::from_index(last), is_sent);
        if chain.len() > 1 {
            reorder(flow, &chain, |id| sums[at(id)].first);
        }
    }
    are_equal(flow, first_value, &partial_sums(flow, first_value))
}

/// How each value from this one on comes about, in their order: a value is made of earlier ones.
fn partial_sums(flow: &DataFlow, first_value: u32) -> Vec<PartialSum> {
    let at = |id: ValueId| id.index() - first_value as usize;
    let mut sums: Vec<PartialSum> = Vec::with_capacity(flow.values.len() - first_value as usize);
    for Value { rank, writer, .. } in &flow.values[first_value as usize..] {
        sums.push(match writer.map(|writer| &flow[writer]) {
            None => {
                let fingerprint = mixed(u64::from(rank.0) + 1);
                PartialSum { fingerprint, contributions: fingerprint, first: *rank }
            }
            Some(delivery) => {
                let source = sums[at(delivery.source)];
                let sum = delivery.base.map_or(source, |base| sums[at(base)].plus(source));
                delivery.then.iter().fold(sum, |sum, &next| sum.plus(sums[at(next)]))
            }
        });
    }
    sums
}

/// Whether all ranks that want the chunk end with the same sum.
fn are_equal(flow: &DataFlow, first_value: u32, sums: &[PartialSum]) -> bool {
    let values = flow.values[first_value as usize..].iter().zip(sums);
    let mut wanted = values.filter(|(value, _)| value.is_final).map(|(_, sum)| sum.fingerprint);
    let first = wanted.next();
    wanted.all(|sum| Some(sum) == first)
}

/// The deliveries of a sum of which this one makes the last addition, first to last: nobody sees what comes between, nor sends the like.
fn chain(flow: &DataFlow, last: ValueDeliveryId, is_sent: impl Fn(ValueId) -> bool) -> Vec<ValueDeliveryId> {
    let is_inside = |id: ValueId| {
        let value = &flow[id];
        value.senders.is_empty() && !value.is_final && !is_sent(id)
    };
    // What is inside is part of a longer chain, or of none that matters.
    if is_inside(flow[last].result) {
        return Vec::new();
    }
    let mut chain = Vec::new();
    let mut next = Some(last);
    while let Some((id, base)) = next.and_then(|id| Some((id, flow[id].base?))) {
        chain.push(id);
        next = flow[base].writer.filter(|_| is_inside(base));
    }
    chain.reverse();
    chain
}

/// Has the deliveries of a chain add up in the order of what is added; the last one still makes the whole sum.
fn reorder(flow: &mut DataFlow, chain: &[ValueDeliveryId], key: impl Fn(ValueId) -> Rank) {
    let Some(start) = flow[chain[0]].base else { return };
    let mut operands: Vec<ValueId> = chain.iter().map(|&id| flow[id].source).chain([start]).collect();
    operands.sort_unstable_by_key(|&operand| key(operand));
    // What has arrived of each, at this rank.
    let mut here: Vec<Option<ValueId>> = operands.iter().map(|&operand| (operand == start).then_some(start)).collect();
    let mut added = usize::from(operands[0] == start);
    let mut sum = (added > 0).then_some(start);
    for &id in chain {
        let (source, result) = (flow[id].source, flow[id].result);
        let turn = operands.iter().position(|&operand| operand == source).expect("every source is an operand");
        let is_next = turn == added;
        let base = sum.filter(|_| is_next);
        let mut then = Vec::new();
        if is_next {
            added += 1;
            while let Some(waiting) = here.get(added).copied().flatten() {
                then.push(waiting);
                added += 1;
            }
            sum = Some(result);
        } else {
            here[turn] = Some(result);
        }
        for read in base.iter().chain(&then) {
            flow.values[read.index()].reduced_by = Some(id);
        }
        let delivery = &mut flow.deliveries[id.index()];
        (delivery.base, delivery.then) = (base, then);
    }
}
