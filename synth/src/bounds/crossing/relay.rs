//! Servers behind another one: what a rank receives over one server and sends on over the next ones.
//!
//! The principal function is [`relayed`]. Each combination alone can be at the sender by some time, but not all of them at once: what
//! comes in one message comes together. So all these servers are decided together, in a dynamic program over what has come and what has
//! left, with the undominated times at which the servers are free.

use super::batches::{CountSpace, Server};

/// More combinations would make too many pairs of them.
const MOST_STATES: usize = 128;
/// The most servers that one rank sends over.
const MOST_NEXT: usize = 3;
/// What one try costs, in pairs of combinations and parts of them.
const TRY: f64 = 18.0;
/// The most clocks of a front. Of more, two are put together, as early as the earlier one in everything.
const MOST_CLOCKS: usize = 24;

/// For each combination, the earliest time by which the `next` servers can have carried it to where it goes, where all but the classes
/// that are `at_hand` at their sender come over `into` first, which has no tails, and no sooner than is known of it; `None` if there is too
/// much to follow.
/// Takes what it does off `work`.
pub(super) fn relayed(
    space: &CountSpace,
    into: &Server,
    next: &[&Server],
    at_hand: &[bool],
    work: &mut f64,
) -> Option<Vec<f64>> {
    let states = space.states();
    if states > MOST_STATES || next.len() > MOST_NEXT {
        return None;
    }
    let all = states - 1;
    let coming = space.without(all, at_hand);
    let mut fronts: Vec<ClockFront> = (0..states * states).map(|_| ClockFront::default()).collect();
    fronts[0].insert(ServerClocks::default());
    let mut done = vec![f64::INFINITY; states];
    for come in (0..=coming).filter(|&come| space.without(come, at_hand) == come) {
        let here = come + (all - coming);
        for left in std::iter::once(0).chain(space.parts(here).iter().map(|&part| part as usize)) {
            let front = std::mem::take(&mut fronts[come * states + left]);
            let tries = space.parts(here - left).len() * next.len() + space.parts(coming - come).len();
            *work -= TRY * (front.0.len() * tries) as f64;
            if *work <= 0.0 {
                return None;
            }
            if space.without(left, at_hand) == come {
                done[left] = front.0.iter().map(|clocks| clocks.end(next)).fold(done[left], f64::min);
            }
            for clocks in &front.0 {
                let arrived = if come == 0 { 0.0 } else { clocks.received + into.lag };
                for &message in space.parts(here - left) {
                    for (at, server) in next.iter().enumerate() {
                        let mut clocks = *clocks;
                        clocks.free[at] = server.end_of(message as usize, clocks.free[at].max(arrived));
                        fronts[come * states + left + message as usize].insert(clocks);
                    }
                }
                for &message in space.parts(coming - come) {
                    let more = come + message as usize;
                    let end = into.end_of(message as usize, clocks.received.max(into.ready[more]));
                    let received = into.known.as_ref().map_or(end, |known| end.max(known[more] - into.lag));
                    fronts[more * states + left].insert(ServerClocks { received, ..*clocks });
                }
            }
        }
    }
    Some(done)
}

/// When servers are free again: the one that chunks come over, and those that they leave by.
#[derive(Clone, Copy, Default)]
struct ServerClocks {
    received: f64,
    free: [f64; MOST_NEXT],
}

impl ServerClocks {
    /// When all is where it goes; all chunks of a server have the same way on.
    fn end(&self, next: &[&Server]) -> f64 {
        let end = |(&free, server): (&f64, &&Server)| free + server.lag + server.tails[1];
        self.free.iter().zip(next).filter(|(free, _)| **free > 0.0).map(end).fold(0.0, f64::max)
    }

    /// Clocks that are no later than either in anything.
    fn earlier(mut self, other: &Self) -> Self {
        self.received = self.received.min(other.received);
        self.free.iter_mut().zip(&other.free).for_each(|(mine, other)| *mine = mine.min(*other));
        self
    }

    fn is_at_most(&self, other: &Self) -> bool {
        self.received <= other.received && self.free.iter().zip(&other.free).all(|(mine, other)| mine <= other)
    }
}

/// Clocks of which none is as early as another one in everything.
#[derive(Default)]
struct ClockFront(Vec<ServerClocks>);

impl ClockFront {
    fn insert(&mut self, clocks: ServerClocks) {
        if clocks.received.is_finite() && !self.0.iter().any(|known| known.is_at_most(&clocks)) {
            self.0.retain(|known| !clocks.is_at_most(known));
            self.0.push(clocks);
            if self.0.len() > MOST_CLOCKS {
                let (first, second) = (self.0.swap_remove(0), self.0.swap_remove(0));
                self.insert(first.earlier(&second));
            }
        }
    }
}
