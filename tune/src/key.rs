//! For which ranks a table was measured.
//!
//! The principal type is [`TableKey`].

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use topology::counted;

/// The rules of measuring and choosing. A table that other rules have made is not used.
pub(crate) const POLICY: u32 = 1;
/// The most characters of a text in a key.
const LONGEST_TEXT: usize = 200;

/// How ranks exchange data.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RankTransport {
    /// Shared memory between ranks of one machine, TCP between machines.
    #[default]
    Auto,
    /// Shared memory only. Ranks of several machines are an error.
    Shm,
    /// TCP only: each rank counts as a machine of its own. So plans and tables serve that are for ranks on as many
    /// machines.
    Tcp,
    /// NCCL, between memory of GPUs. Only tables of `antiphon tune --device gpu` have it.
    Nccl,
    /// The same where the kernel moves messages between ranks of one machine, which have mapped each other's memory.
    #[serde(rename = "nccl-mapped")]
    NcclMapped,
}

impl RankTransport {
    /// Whether buffers are in memory of GPUs.
    pub fn is_of_gpus(self) -> bool {
        matches!(self, Self::Nccl | Self::NcclMapped)
    }

    /// The same for so many machines: between ranks of one machine, `auto` is `shm`.
    pub fn among(self, machines: usize) -> Self {
        match self {
            Self::Auto if machines == 1 => Self::Shm,
            other => other,
        }
    }
}

impl fmt::Display for RankTransport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Auto => "auto",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Nccl => "nccl",
            Self::NcclMapped => "nccl-mapped",
        })
    }
}

impl FromStr for RankTransport {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "shm" => Ok(Self::Shm),
            "tcp" => Ok(Self::Tcp),
            other => Err(format!("{} is none of auto, shm and tcp", topology::shorten(other))),
        }
    }
}

/// For which ranks a table was measured, and how. A table is used only by ranks that have the same key.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TableKey {
    /// How many ranks.
    pub ranks: usize,
    /// The machine of each rank, counted in the order of their first ranks.
    pub machines: Vec<u32>,
    /// The digest of the emulated machine that it was measured on; `None` for real machines.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub topology: Option<String>,
    /// How the ranks exchange data ([`RankTransport::among`]); `None` if it does not matter.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<RankTransport>,
    /// What each machine is, such as the name of its CPU and how many it has; empty if it does not matter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hardware: Vec<String>,
    /// The version of the library that has measured.
    pub version: String,
    /// The version of the rules of measuring and choosing ([`TuningTable::POLICY`](crate::TuningTable::POLICY)).
    pub policy: u32,
}

impl TableKey {
    /// The key of real ranks on these machines, of which nothing else is known.
    pub fn of(machines: Vec<u32>, version: impl Into<String>) -> Self {
        let policy = POLICY;
        let (topology, transport, hardware) = (None, None, Vec::new());
        Self { ranks: machines.len(), machines, topology, transport, hardware, version: version.into(), policy }
    }

    /// How many machines.
    pub fn machine_count(&self) -> usize {
        self.machines.iter().max().map_or(0, |last| (*last as usize).saturating_add(1))
    }

    /// # Errors
    /// Why no ranks can have this key.
    pub(crate) fn check(&self) -> Result<(), String> {
        let Self { ranks, machines, hardware, .. } = self;
        if machines.len() != *ranks {
            return Err(format!("the key has {ranks} ranks, and the machines of {}", machines.len()));
        }
        let mut count = 0;
        for (rank, machine) in machines.iter().enumerate() {
            if *machine > count {
                return Err(format!("the key has machine {machine} of rank {rank}, where at most {count} can be next"));
            }
            count = count.max(machine + 1);
        }
        if !hardware.is_empty() && hardware.len() != self.machine_count() {
            let machines = counted(self.machine_count(), "machine");
            return Err(format!("the key has {machines}, and the hardware of {}", hardware.len()));
        }
        let is_text = |text: &str| text.chars().all(topology::is_printable) && text.chars().count() <= LONGEST_TEXT;
        let mut texts = hardware.iter().chain(&self.topology).chain([&self.version]);
        match texts.find(|text| !is_text(text)) {
            Some(text) => {
                let text = topology::shorten(text);
                Err(format!("the key has `{text}`, which is too long, or has characters that are not printable"))
            }
            None => Ok(()),
        }
    }

    /// In what this key differs from another one, with both values. What one of them does not say is not compared, except
    /// whether it is of an emulated machine.
    pub fn difference(&self, other: &Self) -> Option<String> {
        let two =
            |what: &str, own: &dyn fmt::Display, their: &dyn fmt::Display| Some(format!("{what}{own}, not {their}"));
        let placed = |of: &Self| format!("{} on {}", counted(of.ranks, "rank"), counted(of.machine_count(), "machine"));
        if (self.ranks, self.machine_count()) != (other.ranks, other.machine_count()) {
            return two("", &placed(self), &placed(other));
        }
        if let Some(rank) = self.machines.iter().zip(&other.machines).position(|(own, their)| own != their) {
            let what = format!("rank {rank} on machine ");
            return two(&what, &self.machines[rank], &other.machines[rank]);
        }
        if self.topology != other.topology {
            let shown =
                |of: &Option<String>| of.as_ref().map_or("a real one".to_owned(), |digest| format!("`{digest}`"));
            return two("the emulated machine ", &shown(&self.topology), &shown(&other.topology));
        }
        if let (Some(own), Some(their)) = (self.transport, other.transport)
            && own != their
        {
            return two("the transport ", &own, &their);
        }
        let differing = self.hardware.iter().zip(&other.hardware).enumerate().find(|(_, (own, their))| own != their);
        if let Some((machine, (own, their))) = differing {
            return two(&format!("machine {machine} as "), &format!("`{own}`"), &format!("`{their}`"));
        }
        if self.version != other.version {
            return two("version ", &self.version, &other.version);
        }
        if self.policy != other.policy {
            return two("rules ", &self.policy, &other.policy);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key() -> TableKey {
        TableKey {
            transport: Some(RankTransport::Auto),
            hardware: vec!["A, 2 CPUs".to_owned(), "B, 4 CPUs".to_owned()],
            ..TableKey::of(vec![0, 0, 1, 1], "1")
        }
    }

    /// A change of a key, and what is said about it.
    type KeyChange = (fn(&mut TableKey), &'static str);

    #[test]
    fn every_field_makes_another_key() {
        let changes: [KeyChange; 8] = [
            (|key| (key.ranks, key.machines) = (3, vec![0, 0, 1]), "3 ranks on 2 machines, not 4 ranks on 2 machines"),
            (|key| key.machines = vec![0; 4], "4 ranks on 1 machine, not 4 ranks on 2 machines"),
            (|key| key.machines = vec![0, 1, 0, 1], "rank 1 on machine 1, not 0"),
            (|key| key.topology = Some("abc".to_owned()), "the emulated machine `abc`, not a real one"),
            (|key| key.transport = Some(RankTransport::Tcp), "the transport tcp, not auto"),
            (|key| key.hardware[1] = "C, 4 CPUs".to_owned(), "machine 1 as `C, 4 CPUs`, not `B, 4 CPUs`"),
            (|key| key.version = "2".to_owned(), "version 2, not 1"),
            (|key| key.policy = 2, "rules 2, not 1"),
        ];
        assert_eq!(key().difference(&key()), None);
        for (change, expected) in changes {
            let mut other = key();
            change(&mut other);
            assert_eq!(other.difference(&key()).as_deref(), Some(expected));
        }
        let of_before = TableKey { transport: None, hardware: Vec::new(), ..key() };
        assert_eq!(of_before.difference(&key()), None, "what a table of before does not say is not compared");
    }

    #[test]
    fn keys_that_no_ranks_can_have_are_refused() {
        let changes: [KeyChange; 7] = [
            (|key| key.ranks = 3, "has 3 ranks, and the machines of 4"),
            (|key| key.machines = vec![7; 4], "machine 7 of rank 0, where at most 0 can be next"),
            (|key| key.machines[3] = u32::MAX, "machine 4294967295 of rank 3, where at most 2 can be next"),
            (|key| key.hardware.truncate(1), "2 machines, and the hardware of 1"),
            (|key| key.hardware[0].push('\u{1b}'), "not printable"),
            (|key| key.version = "1".repeat(201), "too long"),
            (|key| key.topology = Some("\n".to_owned()), "not printable"),
        ];
        assert_eq!(key().check(), Ok(()));
        for (change, expected) in changes {
            let mut other = key();
            change(&mut other);
            let why = other.check().unwrap_err();
            assert!(why.contains(expected), "{why}");
        }
    }
}
