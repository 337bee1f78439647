//! The identity of a machine: which ranks can share memory.
//!
//! The principal type is [`Machine`]. Ranks share memory if they see the same kernel, the same namespaces of processes,
//! network and users, and have the same user. Two containers of one computer are two machines and use TCP. The
//! environment variable `ANTIPHON_HOST` overrides this.

use crate::error::{RunError, RunResult};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::os::linux::fs::MetadataExt;
use topology::Rank;

/// A machine, as far as ranks must distinguish it from others.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Machine {
    /// Equal for ranks that can share memory.
    key: [u8; 16],
    /// The name, for people.
    name: String,
}

impl Machine {
    /// The machine that this process runs on.
    ///
    /// # Errors
    /// If `/proc` does not identify the machine.
    pub fn here() -> RunResult<Self> {
        let seen = || {
            let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
            let space = |kind: &str| Ok(std::fs::metadata(format!("/proc/self/ns/{kind}"))?.st_ino().to_string());
            // Ranks open each other's memory under /proc, which needs the same process namespace and the same user.
            let user = rustix::process::getuid().as_raw().to_string();
            let parts: [std::io::Result<String>; 5] = [Ok(boot), space("net"), space("pid"), space("user"), Ok(user)];
            Ok(parts.into_iter().collect::<std::io::Result<Vec<_>>>()?.join("\n"))
        };
        let seen: std::io::Result<String> = seen();
        let seen = seen.map_err(RunError::system("asking /proc which machine this is"))?;
        let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        Ok(Self { key: key("seen", &seen), name: name.trim().to_owned() })
    }

    /// The machine with this name, whatever `/proc` says. Ranks that give the same name share memory.
    pub fn named(name: &str) -> Self {
        Self { key: key("named", name), name: name.to_owned() }
    }

    /// One rank of this machine as a machine of its own: it shares memory with no other rank.
    pub fn of_rank(&self, rank: Rank) -> Self {
        let space: String = self.key.iter().map(|byte| format!("{byte:02x}")).collect();
        Self { key: key("rank", &format!("{space}\n{rank}")), name: self.name.clone() }
    }

    /// The name, for people.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// A number that different machines do not share, for those who can only compare numbers.
    pub fn number(&self) -> u64 {
        self.key.iter().rev().fold(0, |number, byte| number << 8 ^ number >> 56 ^ u64::from(*byte))
    }

    pub(crate) fn key(&self) -> [u8; 16] {
        self.key
    }
}

fn key(kind: &str, what: &str) -> [u8; 16] {
    let digest: [u8; 32] = Sha256::new_with_prefix(kind).chain_update([0]).chain_update(what).finalize().into();
    std::array::from_fn(|index| digest[index])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_itself_and_named_ones_are_what_they_are_called() {
        let here = Machine::here().unwrap();
        assert_eq!(here, Machine::here().unwrap());
        assert!(!here.name().is_empty());
        let (a, b) = (Machine::named("a"), Machine::named("b"));
        assert!(a.key() != b.key() && a.key() != here.key() && a == Machine::named("a"));
        assert_ne!(Machine::named(here.name()).key(), here.key());
        let alone = [0, 1].map(|rank| here.of_rank(Rank(rank)));
        assert!(alone[0] != alone[1] && alone[0] != here && alone[0] == here.of_rank(Rank(0)));
        assert_eq!(alone[0].name(), here.name());
    }
}
