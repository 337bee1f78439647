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
    /// Looks for a tenth of a second; `None` where the system has no statistics.
    pub(crate) fn look() -> Option<Self> {
        let read = |path| std::fs::read_to_string(path).ok();
        let status = read("/proc/self/status")?;
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        let before = read("/proc/stat")?;
        std::thread::sleep(LOOK);
        Self::between(allowed, &before, &read("/proc/stat")?)
    }

    /// What was busy between two states of `/proc/stat`, of the cores that this process may use (as `0-3,8`).
    fn between(allowed: &str, before: &str, after: &str) -> Option<Self> {
        let cores: Vec<u32> = allowed.trim().split(',').map_while(range).flatten().collect();
        let [[idle, all], [idle_after, all_after]] = [ticks(before, &cores), ticks(after, &cores)];
        let (all, idle) = (all_after.saturating_sub(all), idle_after.saturating_sub(idle));
        let cores = cores.len() as f64;
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
                "Other programs used {busy:.1} of the {cores} cores that the ranks have here. Messages wait for them, and take less \
                 time where nothing else runs."
            )
        })
    }
}

/// The numbers of a range such as `0-3` or `8`.
fn range(text: &str) -> Option<std::ops::RangeInclusive<u32>> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

/// The ticks of these cores together: idle ones, and all. Time that waits for a disk counts as idle; time that other virtual
/// machines took ("steal") counts as busy.
fn ticks(stat: &str, cores: &[u32]) -> [u64; 2] {
    let mut sums = [0u64; 2];
    for line in stat.lines() {
        let mut words = line.split_whitespace();
        let core = words.next().and_then(|name| name.strip_prefix("cpu")?.parse().ok());
        if !core.is_some_and(|core| cores.contains(&core)) {
            continue;
        }
        // user nice system idle iowait irq softirq steal; guests are part of user.
        let ticks: Vec<u64> = words.take(8).map_while(|word| word.parse().ok()).collect();
        let sum = |some: &[u64]| some.iter().fold(0u64, |sum, ticks| sum.saturating_add(*ticks));
        let idle = sum(ticks.get(3..5).unwrap_or(&[]));
        sums = [sums[0].saturating_add(idle), sums[1].saturating_add(sum(&ticks))];
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two cores of four, with these ticks together; the other two are always busy.
    fn stat(user: u64, idle: u64) -> String {
        format!(
            "cpu  9 0 0 9\ncpu0 {user} 0 0 5 0 0 0 0 0 0\ncpu1 7 0 0 {idle} 0 0 0\ncpu2 {user}00 0 0 1\ncpu3 {user}00 0 0 1\n"
        )
    }

    #[test]
    fn what_ranks_need_and_others_use_is_said() {
        let seen = |user: u64, ranks| {
            let found = Occupancy::between(" 0-1\n", &stat(100, 100), &stat(100 + user, 120 - user));
            found.expect("ticks").disturbs(ranks)
        };
        assert_eq!(seen(0, 4), None);
        assert_eq!(seen(2, 4), None, "0.2 cores are little");
        assert_eq!(seen(10, 1), None, "one core is left for one rank");
        assert!(seen(10, 2).is_some_and(|said| said.starts_with("Other programs used 1.0 of the 2 cores")));
        assert!(seen(20, 1).is_some_and(|said| said.starts_with("Other programs used 2.0 of the 2 cores")));
        let all = Occupancy::between("0,1-3", &stat(100, 100), &stat(110, 110)).expect("ticks");
        assert_eq!(all.cores, 4.0);
    }

    #[test]
    fn strange_statistics_say_nothing() {
        for (allowed, before, after) in
            [("0-1", "", ""), ("0", "cpu0 1 2", "cpu0 1 2"), ("", "cpu0 1", "cpu0 2"), ("x-1", "cpu0 1", "cpu0 2")]
        {
            assert_eq!(Occupancy::between(allowed, before, after), None, "{before:?}");
        }
        // A system that was restored from a copy counts backwards.
        assert_eq!(Occupancy::between("0-1", &stat(100, 100), &stat(50, 120)), None);
    }
}
