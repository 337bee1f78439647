//! Checks, before any allocation, whether trials fit into this machine's memory and their report into a message.

use crate::error::{RunError, RunResult};
use crate::execution::concurrent::{Concurrent, Work};
use crate::execution::options::ExecutionOptions;
use crate::measure::trial::MOST_REPETITIONS;
use crate::plan::geometry::Geometry;
use program::Buffer;
use topology::Rank;

/// # Errors
/// [`RunError::TooManyRepetitions`]; [`RunError::NotEnoughMemory`] if the buffers of the ranks that run here need more
/// than is available.
pub(crate) fn check(
    concurrent: &Concurrent<'_>,
    repetitions: u32,
    options: &ExecutionOptions,
    is_here: impl Fn(Rank) -> bool,
) -> RunResult<()> {
    // A rank may have to report on every work.
    let limit = MOST_REPETITIONS / concurrent.works().len().max(1) as u32;
    if repetitions > limit {
        return Err(RunError::TooManyRepetitions { repetitions, limit });
    }
    let mut needed: u64 = 0;
    for work in concurrent.works() {
        let &Work { program, count, dtype, .. } = work;
        let tiles = work.tiles(options);
        for (number, _) in work.group.ranks().iter().enumerate().filter(|&(_, &rank)| is_here(rank)) {
            let geometry = Geometry::new(program, Rank::from_index(number), count, dtype, tiles)?;
            for buffer in [Buffer::Input, Buffer::Output, Buffer::Scratch] {
                needed = needed.saturating_add(geometry.buffer_bytes(buffer) as u64);
            }
        }
    }
    match available() {
        Some(available) if needed > available => Err(RunError::NotEnoughMemory { needed, available }),
        _ => Ok(()),
    }
}

/// The bytes that the kernel can provide without swapping; `None` if it does not report them.
fn available() -> Option<u64> {
    let report = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = report.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says_how_much_there_is() {
        assert!(available().unwrap() > 1 << 20);
    }
}
