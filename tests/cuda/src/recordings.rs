//! What streams put into a graph, and what waits for what in it.
//!
//! The principal types are [`Recording`] and [`RecordedGraph`]. A stream that waits for an event of a recording is recorded too, from
//! there on.

use crate::clock;
use crate::device::draw;
use crate::streams::{RepeatableWork, Stream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// The longest delay before a node, in turns that its thread gives to others. There is none where the clock is counted.
const DELAY: u64 = 64;
/// Recordings are numbered from 1.
static NUMBERS: AtomicU64 = AtomicU64::new(1);

/// A piece of work of a graph.
pub(crate) struct GraphNode {
    work: RepeatableWork,
    /// Nodes that come before it; they are numbered from 1.
    after: Vec<usize>,
}

/// Nodes in an order in which nothing waits for a later one.
pub(crate) struct RecordedGraph(Vec<GraphNode>);

/// A graph that is being recorded.
pub(crate) struct Recording {
    pub(crate) number: u64,
    /// Nothing, once it was asked for something that graphs here do not have.
    nodes: Mutex<Option<Vec<GraphNode>>>,
    /// All streams that record into it; the first one is the one that began.
    streams: Mutex<Vec<Arc<Stream>>>,
}

/// What work comes after that a stream records next.
#[derive(Clone)]
pub(crate) struct RecordedPlace {
    pub(crate) recording: Arc<Recording>,
    pub(crate) after: Vec<usize>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recording {
    /// A recording that a stream begins.
    pub(crate) fn begin(stream: &Arc<Stream>) -> RecordedPlace {
        let number = NUMBERS.fetch_add(1, Ordering::Relaxed);
        let recording = Self { number, nodes: Mutex::new(Some(Vec::new())), streams: Mutex::new(vec![stream.clone()]) };
        RecordedPlace { recording: Arc::new(recording), after: Vec::new() }
    }

    /// Neither ended nor spoilt.
    pub(crate) fn is_open(&self) -> bool {
        locked(&self.nodes).is_some()
    }

    /// It is of no use any more.
    pub(crate) fn spoil(&self) {
        *locked(&self.nodes) = None;
    }

    pub(crate) fn is_begun_by(&self, stream: &Arc<Stream>) -> bool {
        locked(&self.streams).first().is_some_and(|first| Arc::ptr_eq(first, stream))
    }

    pub(crate) fn is_joined_by(&self, stream: &Arc<Stream>) {
        locked(&self.streams).push(stream.clone());
    }

    /// What was recorded: nothing if it was spoilt. Whether all of it comes before a place.
    pub(crate) fn end(&self, place: &RecordedPlace) -> (Option<RecordedGraph>, bool) {
        for stream in locked(&self.streams).drain(..) {
            stream.leave_recording();
        }
        let Some(nodes) = locked(&self.nodes).take() else { return (None, true) };
        let mut is_before = vec![false; nodes.len() + 1];
        place.after.iter().for_each(|node| is_before[*node] = true);
        // Nodes only come after those that were recorded before them.
        for node in (1..=nodes.len()).rev() {
            if is_before[node] {
                nodes[node - 1].after.iter().for_each(|before| is_before[*before] = true);
            }
        }
        let is_joined = is_before[1..].iter().all(|is_it| *is_it);
        (Some(RecordedGraph(nodes)), is_joined)
    }
}

impl RecordedPlace {
    /// Records work, and goes on after it.
    pub(crate) fn push(&mut self, work: RepeatableWork) {
        if let Some(nodes) = &mut *locked(&self.recording.nodes) {
            nodes.push(GraphNode { work, after: std::mem::take(&mut self.after) });
            self.after = vec![nodes.len()];
        }
    }

    /// Goes on after these nodes of the recording, too.
    pub(crate) fn add(&mut self, nodes: &[usize]) {
        self.after.extend(nodes);
        self.after.sort_unstable();
        self.after.dedup();
    }
}

impl RecordedGraph {
    /// The work of a graph in which each node waits for the one before it.
    pub(crate) fn row(&self) -> Option<impl Iterator<Item = &RepeatableWork>> {
        let is_row = self.0.iter().enumerate().all(|(number, node)| node.after == [number] || number == 0);
        is_row.then(|| self.0.iter().map(|node| &node.work))
    }

    /// Does all the work. Nodes that nothing orders run at the same time, each after a random delay.
    pub(crate) fn run(&self, mut seed: u64) {
        let (ends, changed) = (Mutex::new(vec![None; self.0.len() + 1]), Condvar::new());
        let (ends, changed, begin) = (&ends, &changed, clock::now());
        std::thread::scope(|scope| {
            for (index, node) in self.0.iter().enumerate() {
                let delay = if clock::counts() { 0 } else { draw(&mut seed) % DELAY };
                scope.spawn(move || {
                    let is_early = |ends: &mut Vec<Option<u64>>| node.after.iter().any(|of| ends[*of].is_none());
                    let known = changed.wait_while(locked(ends), is_early).unwrap_or_else(PoisonError::into_inner);
                    clock::advance(node.after.iter().filter_map(|of| known[*of]).fold(begin, u64::max));
                    drop(known);
                    (0..delay).for_each(|_| std::thread::yield_now());
                    (node.work)();
                    locked(ends)[index + 1] = Some(clock::now());
                    changed.notify_all();
                });
            }
        });
        clock::advance(locked(ends).iter().flatten().fold(begin, |latest, end| latest.max(*end)));
    }
}
