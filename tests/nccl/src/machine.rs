//! How long messages and collectives take, by the clock that the fake driver counts.
//!
//! The principal type is [`Machine`]. `FAKE_NCCL_MACHINE` names a file with a line for each fact; without it nothing takes any time.
//! Times are in microseconds, and in microseconds for each byte:
//!
//! ```text
//! link FROM TO ALPHA BETA [SHARED]     a message from one rank to another, which also uses what is shared
//! shared NAME BETA                     what messages of several links use one after the other
//! collective NAME ALPHA BETA           a collective, such as AllReduce, for the most bytes that a rank gives or gets
//! ```

use crate::wire::Kind;
use std::collections::BTreeMap;

/// What something takes: for each message or call, and for each byte.
type Cost = (f64, f64);

/// What everything takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Machine {
    links: BTreeMap<(usize, usize), (Cost, Option<String>)>,
    shared: BTreeMap<String, f64>,
    collectives: BTreeMap<String, Cost>,
    /// Until when what is shared is busy, and the links.
    shared_busy: BTreeMap<String, u64>,
    links_busy: BTreeMap<(usize, usize), u64>,
}

fn nanoseconds((alpha, beta): Cost, bytes: u64) -> u64 {
    ((alpha + beta * bytes as f64) * 1e3).round() as u64
}

impl Machine {
    /// The one that the environment names.
    ///
    /// # Errors
    /// What is wrong with its file.
    pub(crate) fn of_environment() -> Result<Self, String> {
        let Some(path) = std::env::var_os("FAKE_NCCL_MACHINE") else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(&path).map_err(|error| format!("FAKE_NCCL_MACHINE: {error}"))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Result<Self, String> {
        let mut machine = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let words: Vec<&str> = line.split_whitespace().collect();
            machine
                .add(&words)
                .ok_or_else(|| format!("FAKE_NCCL_MACHINE has the line `{line}`, which says nothing"))?;
        }
        Ok(machine)
    }

    fn add(&mut self, words: &[&str]) -> Option<()> {
        let number = |word: &str| word.parse::<f64>().ok().filter(|number| *number >= 0.0);
        match words {
            ["link", from, to, alpha, beta, rest @ ..] if rest.len() < 2 => {
                let shared = rest.first().map(|name| (*name).to_owned());
                let cost = (number(alpha)?, number(beta)?);
                self.links.insert((from.parse().ok()?, to.parse().ok()?), (cost, shared)).is_none().then_some(())
            }
            ["shared", name, beta] => self.shared.insert((*name).to_owned(), number(beta)?).is_none().then_some(()),
            ["collective", name, alpha, beta] => {
                let cost = (number(alpha)?, number(beta)?);
                self.collectives.insert((*name).to_owned(), cost).is_none().then_some(())
            }
            _ => None,
        }
    }

    /// When a message has arrived that both ends were ready for at `begin`. One after the other uses a link, and what links share.
    pub(crate) fn message(&mut self, ends: (usize, usize), bytes: u64, begin: u64) -> u64 {
        let Some((cost, shared)) = self.links.get(&ends).cloned() else { return begin };
        let begin = begin.max(self.links_busy.get(&ends).copied().unwrap_or(0));
        let mut end = begin + nanoseconds(cost, bytes);
        if let Some(name) = shared {
            let beta = self.shared.get(&name).copied().unwrap_or(0.0);
            let begin = begin.max(self.shared_busy.get(&name).copied().unwrap_or(0));
            self.shared_busy.insert(name, begin + nanoseconds((0.0, beta), bytes));
            end = end.max(begin + nanoseconds((cost.0, cost.1.max(beta)), bytes));
        }
        self.links_busy.insert(ends, end);
        end
    }

    /// When a collective is done for which all ranks were ready at `begin`.
    pub(crate) fn collective(&self, kind: Kind, bytes: u64, begin: u64) -> u64 {
        let cost = self.collectives.get(&format!("{kind:?}")).copied().unwrap_or_default();
        begin + nanoseconds(cost, bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_file() {
        let text = "link 0 1 10 0.001\nlink 1 2 10 0.001 bus\nlink 0 2 5 0.001 bus\nshared bus 0.004\n\
            collective AllReduce 20 0.002\n";
        let mut machine = Machine::parse(text).unwrap();
        assert_eq!(machine.message((0, 1), 1000, 100), 100 + 11_000);
        assert_eq!(machine.message((0, 1), 1000, 100), 100 + 22_000, "one after the other");
        assert_eq!(machine.message((1, 2), 1000, 0), 14_000);
        assert_eq!(machine.message((0, 2), 1000, 0), 4_000 + 9_000, "when the other message has left the bus");
        assert_eq!(machine.message((2, 0), 1000, 7), 7, "nothing is said about it");
        assert_eq!(machine.collective(Kind::AllReduce, 1000, 5), 5 + 22_000);
        assert_eq!(machine.collective(Kind::AllGather, 1000, 5), 5);
        for wrong in ["link 0 1 1", "shared bus -1", "shared bus 1\nshared bus 1", "nothing"] {
            assert!(Machine::parse(wrong).is_err(), "{wrong}");
        }
    }
}
