//! Where the ranks of a communicator are, and what their GPUs are: by that tables serve them or not.
//!
//! The principal type is [`MemberPlaces`]. Each rank tells the others what its GPU is called, so all of them come to the same.

use crate::settings::{Settings, say};
use comm::{PlanTable, RankPlaces, RankTransport, gpu_hardware};
use std::collections::BTreeSet;

/// Of what plans for GPUs were measured with.
const TRANSPORTS: [RankTransport; 2] = [RankTransport::Nccl, RankTransport::NcclMapped];
/// How many words the name of a GPU takes. The driver's names are no longer.
pub(crate) const NAME_WORDS: usize = 32;

/// The places of all ranks of a communicator.
pub(crate) struct MemberPlaces {
    /// The machine of each rank, counted in the order of their first ranks.
    pub(crate) machines: Vec<u32>,
    /// What each machine is; `None` if it does not matter.
    hardware: Option<Vec<String>>,
    /// Ranks of one machine have mapped each other's memory, and the kernel moves their messages.
    pub(crate) is_mapped: bool,
}

/// A name as words that all ranks give equally many of.
pub(crate) fn words_of(name: &str) -> [u64; NAME_WORDS] {
    let bytes = name.as_bytes();
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    std::array::from_fn(|word| u64::from_le_bytes(std::array::from_fn(|at| byte(8 * word + at))))
}

/// The name that such words stand for. One that was cut in the middle of a letter ends before it.
pub(crate) fn name_of(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&bytes).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned()
}

/// The machine of each rank, counted in the order of their first ranks.
fn machines_of(hosts: &[u64]) -> Vec<u32> {
    let mut known: Vec<u64> = Vec::new();
    let machines = hosts.iter().map(|host| {
        let seen = known.iter().position(|of| of == host).unwrap_or(known.len());
        if seen == known.len() {
            known.push(*host);
        }
        seen as u32
    });
    machines.collect()
}

impl MemberPlaces {
    /// Of ranks on these hosts, with these GPUs.
    pub(crate) fn new(hosts: &[u64], names: &[String], nccl_version: &str) -> Self {
        let machines = machines_of(hosts);
        let matters = !Settings::of_process().takes_any_hardware;
        let hardware = matters.then(|| gpu_hardware(&machines, names, nccl_version));
        Self { machines, hardware, is_mapped: false }
    }

    /// For whom a table has to be. One that was measured between hosts is none for these ranks.
    pub(crate) fn ranks(&self) -> RankPlaces<'_> {
        self.over(if self.is_mapped { RankTransport::NcclMapped } else { RankTransport::Nccl })
    }

    /// The same if ranks of one machine have mapped each other's memory.
    pub(crate) fn mapped(&self) -> RankPlaces<'_> {
        self.over(RankTransport::NcclMapped)
    }

    fn over(&self, transport: RankTransport) -> RankPlaces<'_> {
        RankPlaces { machines: &self.machines, transport: Some(transport), hardware: self.hardware.as_deref() }
    }

    /// The same if it did not matter what the machines are, and what they map.
    pub(crate) fn on_any_hardware(&self) -> [RankPlaces<'_>; 2] {
        TRANSPORTS.map(|transport| RankPlaces { hardware: None, ..self.over(transport) })
    }

    /// Says which tables serve no calls because they were measured on other hardware.
    pub(crate) fn say_others(&self, table: &PlanTable) {
        // A table that leaves the transport open is found for each.
        let all: BTreeSet<String> =
            TRANSPORTS.iter().flat_map(|transport| table.of_other_hardware(self.over(*transport))).collect();
        for why in all {
            say(&format!("{why} (hint: tune again here, or set ANTIPHON_TABLE_ANY_HARDWARE=1 on all ranks)"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_survive_their_words() {
        for name in ["", "NVIDIA H200", "a GPU with a name of letters like é and 猫"] {
            assert_eq!(name_of(&words_of(name)), name);
        }
        let long = "é".repeat(200);
        assert_eq!(name_of(&words_of(&long)), "é".repeat(128));
        assert_eq!(name_of(&words_of(&format!("a{long}"))), format!("a{}", "é".repeat(127)));
    }

    #[test]
    fn machines_are_counted_in_the_order_of_their_first_ranks() {
        assert_eq!(machines_of(&[9, 4, 9, 7, 4]), [0, 1, 0, 2, 1]);
    }
}
