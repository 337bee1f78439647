//! How much links and resources are used.

use topology::{Bytes, Micros};

/// How much one link or resource was used.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Usage {
    /// How long it was busy.
    pub busy: Micros,
    /// The part of the makespan that it was busy, 0 to 1.
    pub utilisation: f64,
    /// The bytes that it carried.
    pub bytes: Bytes,
    /// The number of messages.
    pub messages: usize,
}

impl Usage {
    /// Counts one message that keeps it busy for `busy`.
    pub fn add(&mut self, busy: Micros, bytes: Bytes) {
        self.busy += busy;
        self.bytes += bytes;
        self.messages += 1;
    }
}

/// The most utilised of links or of resources that carry anything (the lowest among equals).
pub fn busiest(usages: &[Usage]) -> Option<usize> {
    let used = usages.iter().enumerate().filter(|(_, usage)| usage.messages > 0);
    used.reduce(|best, next| if next.1.busy > best.1.busy { next } else { best }).map(|(index, _)| index)
}
