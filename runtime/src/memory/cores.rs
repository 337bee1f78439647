//! How many cores the ranks of this computer have together.

use rustix::thread::{CpuSet, Pid, sched_getaffinity};

/// The cores on which any of these processes may run, or this thread.
///
/// Launchers bind each rank to cores of its own: what one rank may use does not say whether ranks have to share cores. Where
/// the system gives this thread less time than its cores have (a quota), this is what counts.
pub(crate) fn cores_of(processes: impl IntoIterator<Item = u32>) -> usize {
    let own = std::thread::available_parallelism().map_or(1, usize::from);
    let Ok(mut cores) = sched_getaffinity(None) else { return own };
    if own < cores.count() as usize {
        return own;
    }
    let others = processes.into_iter().filter_map(|process| Pid::from_raw(process.cast_signed()));
    for bound in others.filter_map(|process| sched_getaffinity(Some(process)).ok()) {
        (0..CpuSet::MAX_CPU).filter(|&core| bound.is_set(core)).for_each(|core| cores.set(core));
    }
    cores.count() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::thread::sched_setaffinity;
    use std::process::{Command, Stdio};

    /// Only this core.
    fn only(core: usize) -> CpuSet {
        let mut set = CpuSet::new();
        set.set(core);
        set
    }

    #[test]
    fn ranks_that_are_bound_to_different_cores_have_them_all() {
        let all = sched_getaffinity(None).unwrap();
        let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| all.is_set(core)).collect();
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let bind = |core| sched_setaffinity(Some(Pid::from_child(&other)), &only(core)).unwrap();
        // Only this thread is bound, and it ends with the test.
        sched_setaffinity(None, &only(cores[0])).unwrap();
        assert_eq!(cores_of([]), 1);
        for &core in &cores {
            bind(core);
            assert_eq!(cores_of([other.id()]), if core == cores[0] { 1 } else { 2 });
        }
        drop(other.stdin.take());
        other.wait().unwrap();
        // A process that has ended says nothing.
        assert_eq!(cores_of([other.id()]), 1);
    }
}
