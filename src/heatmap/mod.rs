//! The costs of all pairs of ranks as a picture: in the terminal and as SVG.
//!
//! The principal type is [`HeatMap`]: α and bandwidth of every ordered pair, ranks in the order of their machines. A
//! sender has a row, a receiver a column. The scale of colours is logarithmic, so half the speed has the same distance
//! everywhere.

mod svg;
mod terminal;

pub(crate) use svg::{escaped, svg};
pub(crate) use terminal::terminal;

use topology::{LinkId, Rank, Topology, quantity};

/// The quantity that a map shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Quantity {
    Alpha,
    Bandwidth,
}

/// The costs of a topology by pair.
pub(crate) struct HeatMap<'t> {
    topology: &'t Topology,
    /// Ranks in the order in which they are drawn.
    order: Vec<Rank>,
}

impl<'t> HeatMap<'t> {
    pub(crate) fn new(topology: &'t Topology) -> Self {
        Self { topology, order: topology.machines().iter().flatten().copied().collect() }
    }

    /// The fastest link between two ranks.
    fn link(&self, from: Rank, to: Rank) -> Option<LinkId> {
        let beta = |id: &LinkId| self.topology.link(*id).beta;
        self.topology.between(from, to).min_by(|one, other| beta(one).total_cmp(&beta(other)))
    }

    /// The value of two ranks: µs, or GB/s.
    fn value(&self, quantity: Quantity, from: Rank, to: Rank) -> Option<f64> {
        let link = self.topology.link(self.link(from, to)?);
        Some(match quantity {
            Quantity::Alpha => link.alpha.0,
            Quantity::Bandwidth => link.beta.gbps(),
        })
    }

    /// All values, ascending. An α may be zero, and a bandwidth may be unlimited.
    fn values(&self, quantity: Quantity) -> Vec<f64> {
        let pairs = self.order.iter().flat_map(|&from| self.order.iter().map(move |&to| (from, to)));
        let mut values: Vec<f64> = pairs.filter_map(|(from, to)| self.value(quantity, from, to)).collect();
        values.sort_by(f64::total_cmp);
        values
    }

    /// For each machine but the first, the number of ranks before it.
    fn borders(&self) -> Vec<usize> {
        let ends = self.topology.machines().iter().scan(0, |end, machine| {
            *end += machine.len();
            Some(*end)
        });
        ends.filter(|&end| end < self.order.len()).collect()
    }
}

impl Quantity {
    fn title(self) -> &'static str {
        match self {
            Self::Alpha => "α",
            Self::Bandwidth => "bandwidth",
        }
    }

    fn show(self, value: f64) -> String {
        match self {
            Self::Alpha => quantity::show_duration(topology::Micros(three_digits(value))),
            Self::Bandwidth if value == f64::INFINITY => quantity::show_bandwidth(topology::MicrosPerByte::ZERO),
            Self::Bandwidth => quantity::show_bandwidth(topology::MicrosPerByte::from_gbps(three_digits(value))),
        }
    }
}

fn three_digits(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

/// Whether a value has a place on a logarithmic scale.
fn is_on_scale(value: f64) -> bool {
    value.is_finite() && value > 0.0
}

/// Dark blue to yellow for 0 to 1. Steps look equal, also in print and to colour-blind people.
pub(crate) fn colour(share: f64) -> [u8; 3] {
    const STOPS: [[f64; 3]; 5] =
        [[68.0, 1.0, 84.0], [59.0, 82.0, 139.0], [33.0, 145.0, 140.0], [94.0, 201.0, 98.0], [253.0, 231.0, 37.0]];
    let place = share.clamp(0.0, 1.0) * (STOPS.len() - 1) as f64;
    let below = (place as usize).min(STOPS.len() - 2);
    let mix = |channel: usize| {
        let (low, high) = (STOPS[below][channel], STOPS[below + 1][channel]);
        (low + (high - low) * (place - below as f64)).round() as u8
    };
    [mix(0), mix(1), mix(2)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_run_from_dark_to_bright() {
        let brightness = |share: f64| colour(share).iter().map(|&part| u32::from(part)).sum::<u32>();
        assert_eq!((colour(-1.0), colour(2.0)), ([68, 1, 84], [253, 231, 37]));
        let steps: Vec<u32> = (0..=20).map(|step| brightness(f64::from(step) / 20.0)).collect();
        assert!(steps.windows(2).all(|pair| pair[0] <= pair[1] + 6) && steps[20] > 3 * steps[0], "{steps:?}");
    }
}
