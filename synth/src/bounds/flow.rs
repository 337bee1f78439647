//! Maximum flow with floating-point capacities: Dinic's algorithm.
//!
//! The principal type is [`FlowNetwork`]. Capacities are rates in bytes per µs, not integers; a residual below 10⁻¹² of
//! the largest finite capacity counts as zero. Cuts found here are *proposals*: the caller measures the capacity of a
//! cut again, so that a rounding error can cost tightness but never correctness.
//!
//! A flow takes many phases and paths on long rings and few on cliques, so its cost is not known beforehand. Therefore
//! every visit to an arc is counted, and a computation stops when its [`WorkBudget`] is spent.

use std::collections::VecDeque;
use std::time::Instant;

/// An unlimited capacity: larger than any rate, small enough to add up.
pub(super) const UNLIMITED: f64 = 1e30;

/// How many visits to arcs are left; a million take a few milliseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct WorkBudget {
    left: u64,
    /// The time at which the work ends as well, if time is limited.
    until: Option<Instant>,
}

/// The clock is read once in this many visits to arcs, which is every few milliseconds.
const POLLED: u64 = 1 << 20;

impl WorkBudget {
    pub(super) const fn new(looks: u64) -> Self {
        Self { left: looks, until: None }
    }

    /// The same work, but only until `instant`.
    pub(super) fn until(self, instant: Option<Instant>) -> Self {
        Self { until: instant, ..self }
    }

    fn spend(&mut self, looks: usize) -> Result<(), Spent> {
        let before = self.left;
        self.left = before.saturating_sub(looks as u64);
        if before / POLLED != self.left / POLLED && self.until.is_some_and(|until| Instant::now() >= until) {
            self.left = 0;
        }
        if self.left > 0 { Ok(()) } else { Err(Spent) }
    }
}

/// The error that the work ended before the flow was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Spent;

#[derive(Clone, Copy, Debug)]
struct Arc {
    to: u32,
    residual: f64,
    capacity: f64,
}

/// A directed network; arc 2i and arc 2i+1 are each other's reverse.
#[derive(Clone, Debug, Default)]
pub(super) struct FlowNetwork {
    arcs: Vec<Arc>,
    leaving: Vec<Vec<u32>>,
    tolerance: f64,
}

impl FlowNetwork {
    pub(super) fn new(vertices: usize) -> Self {
        Self { arcs: Vec::new(), leaving: vec![Vec::new(); vertices], tolerance: 0.0 }
    }

    /// Adds a vertex and returns its number.
    pub(super) fn add_vertex(&mut self) -> usize {
        self.leaving.push(Vec::new());
        self.leaving.len() - 1
    }

    /// Adds an arc and returns its handle.
    pub(super) fn connect(&mut self, from: usize, to: usize, capacity: f64) -> usize {
        let id = self.arcs.len();
        for (end, other, capacity) in [(from, to, capacity), (to, from, 0.0)] {
            self.leaving[end].push(self.arcs.len() as u32);
            self.arcs.push(Arc { to: other as u32, residual: capacity, capacity });
        }
        id
    }

    #[cfg(test)]
    pub(super) fn arc_count(&self) -> usize {
        self.arcs.len() / 2
    }

    pub(super) fn set_capacity(&mut self, arc: usize, capacity: f64) {
        self.arcs[arc].capacity = capacity;
    }

    /// The maximum flow from `source` to `sink`, computed from scratch.
    ///
    /// # Errors
    /// [`Spent`] if the work ends before; the residuals then have no meaning.
    pub(super) fn max_flow(&mut self, source: usize, sink: usize, work: &mut WorkBudget) -> Result<f64, Spent> {
        work.spend(self.arcs.len())?;
        let mut largest: f64 = 0.0;
        for arc in &mut self.arcs {
            arc.residual = arc.capacity;
            if arc.capacity < UNLIMITED {
                largest = largest.max(arc.capacity);
            }
        }
        self.tolerance = 1e-12 * largest;
        let mut flow = 0.0;
        while let Some(level) = self.levels(source, sink, work)? {
            let mut next = vec![0; self.leaving.len()];
            loop {
                let pushed = self.push(source, sink, &level, &mut next, work)?;
                if pushed <= self.tolerance {
                    break;
                }
                flow += pushed;
            }
        }
        Ok(flow)
    }

    /// The vertices that residual arcs reach from `source`: after [`Self::max_flow`], one side of a minimum cut.
    pub(super) fn reachable(&self, source: usize) -> Vec<bool> {
        let mut seen = vec![false; self.leaving.len()];
        let mut stack = vec![source];
        seen[source] = true;
        while let Some(vertex) = stack.pop() {
            for &id in &self.leaving[vertex] {
                let arc = self.arcs[id as usize];
                if arc.residual > self.tolerance && !seen[arc.to as usize] {
                    seen[arc.to as usize] = true;
                    stack.push(arc.to as usize);
                }
            }
        }
        seen
    }

    /// The distance of every vertex from `source`, in arcs; `None` if `sink` cannot be reached.
    fn levels(&self, source: usize, sink: usize, work: &mut WorkBudget) -> Result<Option<Vec<u32>>, Spent> {
        let mut level = vec![u32::MAX; self.leaving.len()];
        level[source] = 0;
        let mut queue = VecDeque::from([source]);
        while let Some(vertex) = queue.pop_front() {
            work.spend(self.leaving[vertex].len())?;
            for &id in &self.leaving[vertex] {
                let arc = self.arcs[id as usize];
                if arc.residual > self.tolerance && level[arc.to as usize] == u32::MAX {
                    level[arc.to as usize] = level[vertex] + 1;
                    queue.push_back(arc.to as usize);
                }
            }
        }
        Ok((level[sink] != u32::MAX).then_some(level))
    }

    /// One augmenting path along the levels, found without recursion; `next` remembers exhausted arcs.
    fn push(
        &mut self,
        source: usize,
        sink: usize,
        level: &[u32],
        next: &mut [usize],
        work: &mut WorkBudget,
    ) -> Result<f64, Spent> {
        let mut path: Vec<u32> = Vec::new();
        let mut vertex = source;
        while vertex != sink {
            let found = self.leaving[vertex][next[vertex]..].iter().position(|&id| {
                let arc = self.arcs[id as usize];
                arc.residual > self.tolerance && level[arc.to as usize] == level[vertex] + 1
            });
            match (found, path.pop()) {
                (Some(skipped), last) => {
                    work.spend(skipped + 1)?;
                    path.extend(last);
                    next[vertex] += skipped;
                    let id = self.leaving[vertex][next[vertex]];
                    path.push(id);
                    vertex = self.arcs[id as usize].to as usize;
                }
                (None, Some(last)) => {
                    // A dead end: the arc that led here is exhausted.
                    work.spend(self.leaving[vertex].len().saturating_sub(next[vertex]) + 1)?;
                    next[vertex] = self.leaving[vertex].len();
                    vertex = self.arcs[last as usize ^ 1].to as usize;
                    next[vertex] += 1;
                }
                (None, None) => return Ok(0.0),
            }
        }
        let pushed = path.iter().map(|&id| self.arcs[id as usize].residual).fold(f64::INFINITY, f64::min);
        for id in path {
            self.arcs[id as usize].residual -= pushed;
            self.arcs[id as usize ^ 1].residual += pushed;
        }
        Ok(pushed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLENTY: WorkBudget = WorkBudget::new(u64::MAX);

    #[test]
    fn work_is_counted_and_ends() {
        // A line whose vertices are all fed: it takes as many phases as vertices, each as long as the line.
        let line = |vertices: usize| {
            let mut network = FlowNetwork::new(vertices + 1);
            for vertex in 0..vertices {
                network.connect(vertices, vertex, 1.0);
                if vertex > 0 {
                    network.connect(vertex, vertex - 1, vertices as f64);
                }
            }
            network
        };
        let spent = |vertices: usize| {
            let mut work = PLENTY;
            assert_eq!(line(vertices).max_flow(vertices, 0, &mut work), Ok(vertices as f64));
            PLENTY.left - work.left
        };
        assert!(spent(200) > 3 * spent(100), "{} and {} looks", spent(200), spent(100));
        let mut work = WorkBudget::new(spent(200) / 2);
        assert_eq!((line(200).max_flow(200, 0, &mut work), work), (Err(Spent), WorkBudget::new(0)));
    }

    #[test]
    fn a_textbook_network() {
        let mut network = FlowNetwork::new(6);
        for (from, to, capacity) in
            [(0, 1, 16.0), (0, 2, 13.0), (1, 3, 12.0), (2, 1, 4.0), (2, 4, 14.0), (3, 2, 9.0), (3, 5, 20.0)]
        {
            network.connect(from, to, capacity);
        }
        network.connect(4, 3, 7.0);
        network.connect(4, 5, 4.0);
        assert_eq!(network.max_flow(0, 5, &mut PLENTY.clone()), Ok(23.0));
        assert_eq!(network.reachable(0), [true, true, true, false, true, false]);
    }

    #[test]
    fn unlimited_arcs_do_not_blur_small_ones() {
        let mut network = FlowNetwork::new(3);
        network.connect(0, 1, UNLIMITED);
        let narrow = network.connect(1, 2, 0.1);
        assert_eq!(network.max_flow(0, 2, &mut PLENTY.clone()), Ok(0.1));
        network.set_capacity(narrow, 0.3);
        assert_eq!(network.max_flow(0, 2, &mut PLENTY.clone()), Ok(0.3));
    }
}
