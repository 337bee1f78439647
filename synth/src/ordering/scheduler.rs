//! List scheduling: whenever a link and its resources are free, the link takes the most urgent of what waits for it.
//!
//! The principal function is [`list_schedule`]. What waits for a link, what is urgent and what a message is, a
//! [`ListPolicy`] decides: [`queues`](super::queues) sends chunks along fixed routes, and [`list`](super::list) sends
//! given messages with dependencies, in either direction of time.

use crate::problem::Deadline;
use crate::problem::options::DeadlinePoll;
use topology::{LinkId, Micros};

/// What a list scheduling sends.
pub(super) trait ListPolicy {
    /// What happens at an instant.
    type Event: Copy;
    /// How urgent something is; the least goes first.
    type Urgency: Ord;

    /// The next instant at which something happens, and everything that happens then; `None` if nothing is left.
    fn next(&mut self, happened: &mut Vec<Self::Event>) -> Option<Micros>;

    /// Notes an event, and adds the links that may have something to send now.
    fn happen(&mut self, event: Self::Event, awake: &mut Vec<LinkId>);

    /// How urgent the first of what waits for a link is; `None` if nothing waits.
    fn first(&self, link: LinkId) -> Option<Self::Urgency>;

    /// Whether a link and its resources can take a message now.
    fn is_free(&self, link: LinkId, now: Micros) -> bool;

    /// Sends a message over a link that is free: the first of what waits for it.
    fn send(&mut self, link: LinkId, now: Micros);
}

/// Sends everything, beginning with what waits for the links that are `awake`; `false` if the deadline passes before. It is
/// checked after `polled` messages.
pub(super) fn list_schedule<P: ListPolicy>(
    policy: &mut P,
    mut awake: Vec<LinkId>,
    deadline: &Deadline,
    polled: u64,
) -> bool {
    let mut poll = DeadlinePoll::new(deadline, polled);
    let (mut happened, mut ready) = (Vec::new(), Vec::new());
    let mut now = Micros::ZERO;
    loop {
        // First the link whose first message is the most urgent.
        ready.extend(awake.drain(..).filter_map(|link| Some((policy.first(link)?, link))));
        ready.sort_unstable();
        ready.dedup();
        let mut sent = 0;
        for (_, link) in ready.drain(..) {
            if policy.is_free(link, now) {
                policy.send(link, now);
                sent += 1;
            }
        }
        if poll.is_over_after(sent) {
            return false;
        }
        let Some(next) = policy.next(&mut happened) else { return true };
        now = next;
        for &event in &happened {
            policy.happen(event, &mut awake);
        }
    }
}
