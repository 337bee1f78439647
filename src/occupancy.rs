//! How much of this computer other programs use while something is to be measured.
//!
//! The principal type is [`Occupancy`]. Times that were measured beside a program that computes are those of the scheduler: a rank
//! that waits for its core waits a whole turn of the other program, some milliseconds, and repeating does not show it.

use std::time::Duration;

/// How long a look takes: ten ticks of the system's statistics for each core.
const LOOK: Duration = Duration::from_millis(100);
/// Fewer busy cores than this are those of a desktop, a shell, the look itself.
const LITTLE: f64 = 0.25;

/// How many cores were busy, while no rank ran.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Occupancy {
    busy: f64,
    cores: f64,
}

impl Occupancy {
    /// Looks for a tenth of a second; `None` where the system has no statistics in `/proc/stat`.
    pub(crate) fn look() -> Option<Self> {
        let read = || std::fs::read_to_string("/proc/stat").ok();
        let before = read()?;
        std::thread::sleep(LOOK);
        Self::between(&before, &read()?)
    }

    /// What was busy between two states of `/proc/stat`.
    fn between(before: &str, after: &str) -> Option<Self> {
        let cores = after.lines().filter(|line| line.starts_with("cpu")).count().checked_sub(1)? as f64;
        let [[idle, all], [idle_after, all_after]] = [ticks(before)?, ticks(after)?];
        let (all, idle) = (all_after.saturating_sub(all), idle_after.saturating_sub(idle));
        (all > 0).then(|| Self { busy: cores * all.saturating_sub(idle) as f64 / all as f64, cores })
    }

    /// The larger one of two.
    pub(crate) fn most(self, other: Self) -> Self {
        if other.busy > self.busy { other } else { self }
    }

    /// What disturbs `ranks` of this computer, in words: other programs use cores that the ranks need.
    pub(crate) fn disturbs(self, ranks: usize) -> Option<String> {
        let Self { busy, cores } = self;
        let has_room = ranks as f64 + busy <= cores;
        (busy >= LITTLE && !has_room).then(|| {
            format!(
                "Other programs used {busy:.1} of the {cores} cores of this computer: messages waited for them, and take less time \
                 where nothing else runs."
            )
        })
    }
}

/// The ticks of all cores together: idle ones, and all. Idle is also who waits for a disk, and what other machines of the same
/// computer took ("steal") is busy.
fn ticks(stat: &str) -> Option<[u64; 2]> {
    let all = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    // user nice system idle iowait irq softirq steal; guests are part of user.
    let ticks: Vec<u64> = all.split_whitespace().take(8).map_while(|word| word.parse().ok()).collect();
    let idle = ticks.get(3)?.saturating_add(*ticks.get(4)?);
    Some([idle, ticks.iter().fold(0, |sum, ticks| u64::saturating_add(sum, *ticks))])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stat(user: u64, idle: u64) -> String {
        format!("cpu  {user} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 0 0 1 0 0 0\ncpu1 1 0 0 1 0 0 0\nintr 5\n")
    }

    #[test]
    fn what_ranks_need_and_others_use_is_said() {
        let seen = |user: u64, ranks| {
            Occupancy::between(&stat(100, 100), &stat(100 + user, 120 - user)).unwrap().disturbs(ranks)
        };
        assert_eq!(seen(0, 4), None);
        assert_eq!(seen(2, 4), None, "0.2 cores are little");
        assert_eq!(seen(10, 1), None, "one core is left for one rank");
        assert!(seen(10, 2).unwrap().starts_with("Other programs used 1.0 of the 2 cores"));
        assert!(seen(20, 1).unwrap().starts_with("Other programs used 2.0 of the 2 cores"));
    }

    #[test]
    fn strange_statistics_say_nothing() {
        for (before, after) in [("", ""), ("cpu 1 2", "cpu 1 2"), ("cpu  1 1 1 1 1", "cpu  1 1 1 1 1\ncpu0 1")] {
            assert_eq!(Occupancy::between(before, after), None, "{before:?}");
        }
        // A system that was restored from a copy counts backwards.
        assert_eq!(Occupancy::between(&stat(100, 100), &stat(50, 120)), None);
    }
}
