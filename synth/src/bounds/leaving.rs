//! How long it takes until all data of a group of ranks can have begun to leave it.
//!
//! The principal type is [`LeavingTerms`].
//!
//! If all ranks want everything, all data of a group must leave it. Some of it leaves late, because no rank of the
//! group has much of it at first. Look only at data that has not left yet: it moves by messages inside of the group.
//! Let a be the least α of the links there, p the most ports by which a rank gets such messages, and c the most bytes
//! that a rank has to begin with. When j units of a are over, a port has brought at most j messages, of which the i-th
//! from the end started i units earlier or more. So a rank has at most c + pK(j − 1) + … + pK(0) = K(j) = c(1 + p)^j of
//! it. Messages that leave by one port start at least α apart. Hence those that start until a time s take at most
//! q·(K(⌊s/a⌋) + K(⌊(s − α)/a⌋) + …) with them by q ports. As long as this is less than what the group has, some byte
//! starts to leave later than s. For sums the same counts ranks of which a message contains the part: each has one to
//! begin with.

use topology::Micros;

/// Of more shares, it is counted how so many leave.
const MOST_SHARES: f64 = 256.0;
/// Rounding may only make more leave.
const SLIGHTLY: f64 = 1e-9;

/// Since when all data of a group may be on its way out.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeavingTime {
    pub(super) before: Micros,
    /// The least α inside of the group.
    pub(super) alpha: Micros,
    /// The most ports by which a rank gets messages from inside of the group.
    pub(super) ports: usize,
}

/// What decides how data leaves a group.
pub(super) struct LeavingTerms {
    /// The least α inside of the group.
    pub(super) alpha: f64,
    /// The most ports by which a rank gets messages there.
    pub(super) ports: usize,
    /// The least α of links to other groups.
    pub(super) alpha_out: f64,
    /// The ports by which messages leave.
    pub(super) ports_out: usize,
}

impl LeavingTerms {
    /// The time until which all that a group has can have begun to leave: so many times what a rank has at most.
    pub(super) fn time(&self, shares: f64) -> f64 {
        let shares = shares.min(MOST_SHARES);
        let most = shares.ceil() as u32;
        // Something changes only when a message may have come inside, so long after one has left.
        let units = (0..=most.ilog2() + 1).map(f64::from);
        let starts = units.flat_map(|unit| (0..=most).map(move |sent| (unit, f64::from(sent))));
        let mut times: Vec<f64> = starts.map(|(unit, sent)| unit * self.alpha + sent * self.alpha_out).collect();
        times.sort_unstable_by(f64::total_cmp);
        times.into_iter().find(|&time| self.left(time) >= shares * (1.0 - SLIGHTLY)).unwrap_or(0.0)
    }

    /// How many times what a rank has at most can have begun to leave until a time.
    fn left(&self, time: f64) -> f64 {
        // Rounding may only make it more.
        let starts = (0..).map(|sent| time - f64::from(sent) * self.alpha_out);
        let starts = starts.take_while(|start| *start >= -SLIGHTLY * self.alpha_out);
        let known =
            starts.map(|start| (1.0 + self.ports as f64).powf((start / self.alpha + SLIGHTLY).floor().max(0.0)));
        self.ports_out as f64 * known.sum::<f64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Eight ranks, of which each gets a message in half a unit: 1 share leaves at 0 and 4 at 1, so only at 1.5 all eight can be on their
    /// way; with two ports out already at 1.
    #[test]
    fn a_group_leaves_as_fast_as_its_ranks_gather() {
        let terms = |alpha, ports, ports_out| LeavingTerms { alpha, ports, alpha_out: 1.0, ports_out };
        for (terms, shares, time) in [
            (terms(0.5, 1, 1), 8.0, 1.5),
            (terms(0.5, 1, 2), 8.0, 1.0),
            (terms(0.5, 1, 8), 8.0, 0.0),
            (terms(0.5, 7, 1), 8.0, 0.5),
            (terms(10.0, 1, 1), 4.0, 3.0),
            (terms(1.0, 0, 1), 4.0, 3.0),
            (terms(0.5, 1, 1), 1.5, 0.5),
        ] {
            assert_eq!(terms.time(shares), time, "{shares} shares");
            // Nothing less is left at that time, and less before.
            assert!(terms.left(time) >= shares && (time == 0.0 || terms.left(time - 1e-6) < shares));
        }
    }
}
