//! The loads of links and resources, and the price of one more transfer over a link.
//!
//! The principal type is [`Load`]. The price of a transfer is what it adds to Σ exp(η · (busy / target − 1)) over links
//! and resources. With a small η everything has a price, with a large η only the busiest. This is the potential of
//! multiplicative-weights packing (Garg and Könemann, 2007). The differences are exact, because trees are few and
//! whole.

use super::machine::LoadedMachine;
use topology::LinkId;

/// The largest exponent: any load beyond it is far too busy.
const STEEPEST: f64 = 80.0;

/// Busy times under the transfers added so far.
#[derive(Clone, Debug)]
pub(super) struct Load<'a> {
    machine: &'a LoadedMachine,
    busy: Vec<f64>,
    /// exp(η · (busy / target − 1)).
    weight: Vec<f64>,
    /// For each size, as the machine lists them: exp(η · added / target) − 1.
    growth: Vec<Vec<f64>>,
    target: f64,
    steepness: f64,
    /// Whether prices do not depend on the load.
    is_fixed: bool,
}

impl<'a> Load<'a> {
    /// A load without transfers; `target` is the busy time (µs) to stay below.
    pub(super) fn new(machine: &'a LoadedMachine, target: f64) -> Self {
        let slots = machine.slot_count();
        let growth = (0..machine.sizes()).map(|size| vec![0.0; machine.busy(size).len()]).collect();
        let (busy, weight) = (vec![0.0; slots], vec![0.0; slots]);
        let mut load =
            Self { machine, busy, weight, growth, target: target.max(1e-9), steepness: 1.0, is_fixed: false };
        load.set_steepness(1.0);
        load
    }

    /// Fixed prices: of each slot, for a microsecond of its time.
    pub(super) fn fixed(machine: &'a LoadedMachine, prices: Vec<f64>) -> Self {
        let growth = (0..machine.sizes()).map(|size| machine.busy(size).to_vec()).collect();
        let busy = vec![0.0; machine.slot_count()];
        Self { machine, busy, weight: prices, growth, target: 1.0, steepness: 1.0, is_fixed: true }
    }

    pub(super) fn set_steepness(&mut self, steepness: f64) {
        self.steepness = steepness;
        for (size, growth) in self.growth.iter_mut().enumerate() {
            for (growth, busy) in growth.iter_mut().zip(self.machine.busy(size)) {
                *growth = (steepness * busy / self.target).min(STEEPEST).exp() - 1.0;
            }
        }
        for slot in 0..self.busy.len() {
            self.weigh(slot);
        }
    }

    /// η.
    pub(super) fn steepness(&self) -> f64 {
        self.steepness
    }

    fn weigh(&mut self, slot: usize) {
        if self.is_fixed {
            return;
        }
        let exponent = self.steepness * (self.busy[slot] / self.target - 1.0);
        self.weight[slot] = exponent.min(STEEPEST).exp();
    }

    /// What one more transfer of this size over `link` adds to the potential.
    #[inline]
    pub(super) fn price(&self, size: usize, link: LinkId) -> f64 {
        let range = self.machine.range(link);
        let slots = self.machine.slots()[range.clone()].iter();
        slots.zip(&self.growth[size][range]).map(|(&slot, growth)| self.weight[slot as usize] * growth).sum()
    }

    pub(super) fn add(&mut self, size: usize, link: LinkId) {
        self.change(size, link, 1.0);
    }

    pub(super) fn remove(&mut self, size: usize, link: LinkId) {
        self.change(size, link, -1.0);
    }

    fn change(&mut self, size: usize, link: LinkId, times: f64) {
        for index in self.machine.range(link) {
            let slot = self.machine.slots()[index] as usize;
            self.busy[slot] = (self.busy[slot] + times * self.machine.busy(size)[index]).max(0.0);
            self.weigh(slot);
        }
    }

    /// The longest busy time of a link or a resource, in µs: no schedule of these transfers is shorter.
    pub(super) fn peak(&self) -> f64 {
        self.busy.iter().copied().fold(0.0, f64::max)
    }
}
