//! New groups out of a group.

use crate::communicator::Communicator;
use crate::error::CommResult;
use crate::plans::PlanStore;
use crate::stock::CallKind;
use crate::table::PlanTable;
use std::sync::Arc;

/// Which group an identifier means, where it is not the color of a split.
const DUPLICATE: u64 = u64::MAX;

impl Communicator {
    /// Makes groups of the ranks that name the same color, in the order of their keys, then of their numbers. A rank that
    /// names no color is in none. All ranks of this group make the call.
    ///
    /// # Errors
    /// As any call.
    pub fn split(&self, color: Option<u32>, key: i64) -> CommResult<Option<Self>> {
        let own = [color.map_or(-1, i64::from), key];
        let mut all = vec![0; own.len() * self.size()];
        self.all_gather(&own, &mut all)?;
        let splits = self.state().next_split();
        let Some(color) = color else { return Ok(None) };
        let named = all.chunks_exact(2).enumerate().filter(|(_, pair)| pair[0] == i64::from(color));
        let mut members: Vec<(i64, usize)> = named.map(|(number, pair)| (pair[1], number)).collect();
        members.sort_unstable();
        let number = members.iter().position(|&(_, number)| number == self.rank()).unwrap_or_default();
        let ranks = members.into_iter().map(|(_, number)| self.shared.members[number]).collect();
        let id = mixed(mixed(self.shared.id, splits), u64::from(color));
        let plans = self.state().plans.store();
        Ok(Some(Self::new(self.shared.session.clone(), id, (ranks, number), self.limit(), plans)))
    }

    /// The same group once more: its calls and those of this one do not wait for each other.
    ///
    /// # Errors
    /// As any call.
    pub fn duplicate(&self) -> CommResult<Self> {
        let plans = self.state().plans.store();
        self.twin(plans)
    }

    /// The distinct stock plans of this group.
    pub(crate) fn stock_variants(&self, kinds: &[CallKind]) -> CommResult<PlanTable> {
        let plans = self.state().plans.store();
        plans.stock_variants(&self.shared.members, kinds)
    }

    /// The same group once more, which knows no table.
    pub(crate) fn without_table(&self) -> CommResult<Self> {
        let plans = self.state().plans.store();
        self.twin(Arc::new(plans.without_table()))
    }

    fn twin(&self, plans: Arc<PlanStore>) -> CommResult<Self> {
        let splits = {
            let mut state = self.state();
            self.check(&state)?;
            state.next_split()
        };
        let id = mixed(mixed(self.shared.id, splits), DUPLICATE);
        let members = self.shared.members.clone();
        Ok(Self::new(self.shared.session.clone(), id, (members, self.rank()), self.limit(), plans))
    }
}

/// Two numbers as one that no other two give, but with a chance of one in 2⁶⁴ (the finalizer of splitmix64).
pub(crate) fn mixed(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(32) ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x632B_E59B_D9B4_E019);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}
