//! Batches on parallel servers, solved exactly.
//!
//! The principal types are [`CountSpace`], all combinations of chunks that may have crossed, and [`Server`]. Serial batching on one
//! server is a dynamic program over combinations: the last message of a combination carries some part of it [1]. Over several servers,
//! a combination is feasible if it splits into a part for each.
//!
//! [1] Potts and Kovalyov, "Scheduling with batching: A review", EJOR 120 (2000).

/// All vectors (x₁, x₂, …) with xᵢ ≤ cᵢ, as numbers in mixed radix, and for each the vectors below it.
pub(super) struct CountSpace {
    counts: Vec<u32>,
    /// For each state, its digits, one for each class.
    digits: Vec<u32>,
    /// For each state, the states that are nowhere above it, but not zero, ascending.
    parts: Vec<u32>,
    /// Where the parts of each state begin.
    begins: Vec<usize>,
}

impl CountSpace {
    /// The number of pairs of a state and a part of it, Π (cᵢ + 1)(cᵢ + 2)/2: the work of one server.
    pub(super) fn pairs(counts: &[u32]) -> f64 {
        counts.iter().map(|&count| f64::from(count + 1) * f64::from(count + 2) / 2.0).product()
    }

    /// The work of one server.
    pub(super) fn work(&self) -> f64 {
        (self.parts.len() + self.states()) as f64
    }

    pub(super) fn new(counts: Vec<u32>) -> Self {
        let states: usize = counts.iter().map(|&count| count as usize + 1).product();
        let mut digits = Vec::with_capacity(states * counts.len());
        for state in 0..states {
            let mut left = state;
            for &count in &counts {
                let size = count as usize + 1;
                digits.push((left % size) as u32);
                left /= size;
            }
        }
        let (mut parts, mut begins) = (Vec::new(), vec![0]);
        for state in 0..states {
            let whole = &digits[state * counts.len()..][..counts.len()];
            let first = parts.len();
            let mut weight = 1;
            parts.push(0);
            for (&count, &most) in counts.iter().zip(whole) {
                let below = parts.len();
                for more in 1..=most {
                    for at in first..below {
                        parts.push(parts[at] + more * weight);
                    }
                }
                weight *= count + 1;
            }
            // The first one is zero; the others stay in ascending order.
            parts.remove(first);
            begins.push(parts.len());
        }
        Self { counts, digits, parts, begins }
    }

    pub(super) fn states(&self) -> usize {
        self.begins.len() - 1
    }

    /// How many chunks of each class a state has.
    pub(super) fn digits(&self, state: usize) -> &[u32] {
        &self.digits[state * self.counts.len()..][..self.counts.len()]
    }

    /// The parts of a state, without the one that is empty.
    pub(super) fn parts(&self, state: usize) -> &[u32] {
        &self.parts[self.begins[state]..self.begins[state + 1]]
    }

    /// The state that has as many of each class, or none where `drop` says so.
    pub(super) fn without(&self, state: usize, drop: &[bool]) -> usize {
        let (mut weight, mut other) = (1, 0);
        for ((&digit, &count), &drop) in self.digits(state).iter().zip(&self.counts).zip(drop) {
            other += if drop { 0 } else { digit as usize * weight };
            weight *= count as usize + 1;
        }
        other
    }

    /// The state with one chunk of a class.
    pub(super) fn one_of(&self, class: usize) -> usize {
        self.counts[..class].iter().map(|&count| count as usize + 1).product()
    }

    /// For each state, the most or the sum of what its classes have.
    pub(super) fn table(&self, of_state: impl Fn(&[u32]) -> f64) -> Vec<f64> {
        (0..self.states()).map(|state| of_state(self.digits(state))).collect()
    }

    /// Whether the servers can carry all chunks such that each has arrived by `end`, tails included.
    pub(super) fn fits(&self, servers: &[Server], end: f64) -> bool {
        let all = self.states() - 1;
        let mut reached = vec![false; self.states()];
        reached[0] = true;
        for server in servers {
            let done = server.earliest(self, end);
            for state in (1..=all).rev() {
                let splits = |part: usize| done[part] < f64::INFINITY && reached[state - part];
                let is_reached = reached[state] || self.parts(state).iter().any(|&part| splits(part as usize));
                reached[state] = is_reached;
            }
        }
        reached[all]
    }

    /// For each state, the earliest time by which the servers can have carried it to their receivers.
    pub(super) fn earliest(&self, servers: &[Server]) -> Vec<f64> {
        self.split(servers.iter().map(|server| (server, 0.0)))
    }

    /// The same for where it goes, if all chunks of a server have the same way on.
    pub(super) fn earliest_end(&self, servers: &[&Server]) -> Vec<f64> {
        self.split(servers.iter().map(|server| (*server, server.tails[1])))
    }

    fn split<'a>(&self, servers: impl Iterator<Item = (&'a Server, f64)>) -> Vec<f64> {
        let mut best = vec![f64::INFINITY; self.states()];
        best[0] = 0.0;
        for (server, tail) in servers {
            let done = server.earliest(self, f64::INFINITY);
            // What is known is known with lag and tails.
            let on = if server.known.is_some() { 0.0 } else { server.lag + tail };
            for state in (1..self.states()).rev() {
                let with = |&part: &u32| f64::max(done[part as usize] + on, best[state - part as usize]);
                best[state] = self.parts(state).iter().map(with).fold(best[state], f64::min);
            }
        }
        best
    }
}

/// What carries one message at a time across a cut: a link, or the links that share a resource. A message of x bytes keeps it for at
/// least `setup` + `per_byte`·x, and arrives at least `lag` after that (before that, where `lag` is negative).
pub(super) struct Server {
    pub(super) setup: f64,
    pub(super) per_byte: f64,
    pub(super) lag: f64,
    /// For each state, the earliest time at which all of it can be at the sender.
    pub(super) ready: Vec<f64>,
    /// For each state, the longest way on from the receiver.
    pub(super) tails: Vec<f64>,
    /// For each state, the bytes.
    pub(super) bytes: Vec<f64>,
    /// For each state, when it can be where it goes, where that is known: lag and tails included.
    pub(super) known: Option<Vec<f64>>,
    /// Whether this is one server, so that the rest says what a message of it takes; otherwise it stands for several.
    pub(super) is_one: bool,
}

impl Server {
    /// A server of which it is known when each state can be where it goes.
    pub(super) fn known(known: Vec<f64>) -> Self {
        let none = || vec![0.0; known.len()];
        let (ready, tails, bytes) = (none(), none(), none());
        Self { setup: 0.0, per_byte: 0.0, lag: 0.0, ready, tails, bytes, known: Some(known), is_one: false }
    }

    /// Some servers of one sender as one, of which it is `known` when each state can be where it goes.
    pub(super) fn as_one(mut servers: Vec<Self>, known: Vec<f64>) -> Self {
        match (servers.pop(), servers.is_empty()) {
            (Some(only), true) => Self { known: Some(known), ..only },
            _ => Self::known(known),
        }
    }

    /// When the server is free again after a message that starts at `start`.
    pub(super) fn end_of(&self, message: usize, start: f64) -> f64 {
        start + self.setup + self.per_byte * self.bytes[message]
    }

    /// For each state, the earliest time at which the server can be free after it, if every chunk has arrived where it goes by `end`;
    /// infinite where it cannot. Where it is known when states can be where they go, that time instead.
    pub(super) fn earliest(&self, space: &CountSpace, end: f64) -> Vec<f64> {
        if let Some(known) = &self.known {
            return known.iter().map(|&time| if time <= end { time } else { f64::INFINITY }).collect();
        }
        let mut done = vec![f64::INFINITY; space.states()];
        done[0] = 0.0;
        for state in 1..space.states() {
            let ready = self.ready[state];
            let mut best = f64::INFINITY;
            for &message in space.parts(state) {
                let (message, start) = (message as usize, done[state - message as usize].max(ready));
                let free = self.end_of(message, start);
                if free < best && free + self.lag + self.tails[message] <= end {
                    best = free;
                }
            }
            done[state] = best;
        }
        done
    }
}
