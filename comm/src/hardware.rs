//! What a machine is, in a few words, so that a table is known to come from another one.
//!
//! The principal function is [`hardware`].

use crate::communicator::Communicator;
use crate::error::CommResult;
use std::collections::BTreeMap;

/// The most bytes of a description.
const LENGTH: usize = 120;

/// This machine's CPU and how many logical cores it has, whatever share of them this process may use.
pub fn hardware() -> String {
    described(&std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default())
}

/// The same, from what Linux says about all CPUs.
fn described(about: &str) -> String {
    let fields =
        || about.lines().filter_map(|line| line.split_once(':')).map(|(name, value)| (name.trim(), value.trim()));
    let first = |wanted: &str| fields().find(|(name, _)| *name == wanted).map(|(_, value)| value);
    let cores = fields().filter(|(name, _)| *name == "processor").count();
    // CPUs of some kinds have numbers, and no names.
    let numbers = || Some(format!("CPU {} {}", first("CPU implementer")?, first("CPU part")?));
    let name = first("model name").map(str::to_owned).or_else(numbers);
    let name = name.unwrap_or_else(|| std::env::consts::ARCH.to_owned());
    let words: Vec<&str> = name.split_whitespace().collect();
    let cores = format!(", {}", topology::counted(cores, "logical core"));
    let mut text: String = words.join(" ").chars().filter(|letter| topology::is_printable(*letter)).collect();
    let ends = text.char_indices().map(|(at, letter)| at + letter.len_utf8());
    let fitting = ends.take_while(|end| *end <= LENGTH - cores.len()).last().unwrap_or(0);
    text.truncate(fitting);
    text + &cores
}

impl Communicator {
    /// What the machine of each member is, by the number that the session gives to the machine. All members make this call.
    ///
    /// # Errors
    /// As any call.
    pub(crate) fn hardware_of_all(&self) -> CommResult<Vec<String>> {
        let mut own = [0_u8; LENGTH];
        let text = hardware();
        own[..text.len()].copy_from_slice(text.as_bytes());
        let mut all = vec![0; LENGTH * self.size()];
        // Nobody counts this call.
        self.without_table()?.all_gather(&own, &mut all)?;
        let mut known: BTreeMap<usize, String> = BTreeMap::new();
        for (member, bytes) in all.chunks_exact(LENGTH).enumerate() {
            let text = || String::from_utf8_lossy(bytes).trim_end_matches('\0').to_owned();
            known.entry(self.machine(member) as usize).or_insert_with(text);
        }
        let count = known.last_key_value().map_or(0, |(last, _)| last + 1);
        Ok((0..count).map(|machine| known.remove(&machine).unwrap_or_default()).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_its_cpu_and_how_many_there_are() {
        let core = |name: &str| format!("processor\t: 0\nmodel name\t: {name}\ncpu cores\t: 64\n\n");
        assert_eq!(described(&core("A  B (R)")), "A B (R), 1 logical core");
        assert_eq!(described(&core("A").repeat(3)), "A, 3 logical cores");
        let long = described(&core(&"é\u{1b}".repeat(100)));
        assert!(long.len() <= LENGTH && long.ends_with("é, 1 logical core") && !long.contains('\u{1b}'), "{long}");
        let numbered = "processor : 0\nCPU implementer : 0x41\nCPU part : 0xd0c\n";
        assert_eq!(described(numbered), "CPU 0x41 0xd0c, 1 logical core");
        assert_eq!(described(""), format!("{}, 0 logical cores", std::env::consts::ARCH));
        assert!(hardware().len() <= LENGTH && hardware().contains(", "));
    }

    #[test]
    fn all_members_know_the_machines_of_all() {
        let ranks = Communicator::local(3).unwrap();
        std::thread::scope(|scope| {
            let threads: Vec<_> = ranks.iter().map(|rank| scope.spawn(|| rank.hardware_of_all().unwrap())).collect();
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), [hardware()]));
        });
        assert_eq!(ranks[0].last_plan(), "no call was made");
    }
}
