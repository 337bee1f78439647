//! In which order messages leave: list scheduling, along fixed routes or of a schedule's own messages.
//!
//! The principal functions are [`queues::order`], [`interleaved`] and [`earliest_first`]; [`calendar::Calendar`] is the clock of the
//! searches. List scheduling along routes (`queues`) and of given messages (`list`) are policies of one [`scheduler`].

pub(crate) mod bits;
pub(crate) mod calendar;
mod dependencies;
mod exchanges;
mod interleave;
mod list;
pub(crate) mod lists;
mod prune;
pub(crate) mod queues;
mod scheduler;
mod sum_trees;

pub(crate) use exchanges::{copies_last, may_exchange, plain_messages, played, replayed, without_exchanges};
pub(crate) use interleave::{earliest_first, interleaved, outlook, reordered};
pub(crate) use prune::without_idle_copies;
use std::cmp::Ordering;
pub(crate) use sum_trees::SumTrees;

/// The positions of so many things, the least first; of equal ones, the first.
pub(crate) fn sorted(count: usize, compare: impl Fn(usize, usize) -> Ordering) -> Vec<u32> {
    let mut sorted: Vec<u32> = (0..count as u32).collect();
    sorted.sort_by(|&a, &b| compare(a as usize, b as usize));
    sorted
}

/// The place of each thing in that order.
pub(crate) fn ranked(count: usize, compare: impl Fn(usize, usize) -> Ordering) -> Vec<u32> {
    let mut places = vec![0; count];
    sorted(count, compare).iter().enumerate().for_each(|(place, &index)| places[index as usize] = place as u32);
    places
}
