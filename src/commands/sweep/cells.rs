//! The cells of a sweep, and the cells that must be finished before others start.
//!
//! The principal type is [`SweepCell`], one problem at one size. Cells that differ only in size are a *series* and
//! share their work: the plans of two sizes are warm starts for the size in the middle between them. Which two sizes
//! these are follows from the list of sizes alone, so the answer does not depend on the number or the speed of workers.
//! Series share nothing with each other.

use crate::cli::{ChunkCount, SweepArgs};
use schedule::Collective;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::path::{Path, PathBuf};

/// One problem.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SweepCell {
    /// A SPEC or a path.
    pub topology: String,
    /// The operation.
    pub collective: Collective,
    /// The sketch to plan under.
    pub sketch: Option<PathBuf>,
    /// Chunks per rank; `None` where they are searched.
    pub chunks: Option<u32>,
    /// The size, in bytes.
    pub size_bytes: u64,
}

/// All cells of a sweep.
pub(crate) struct SweepGrid {
    /// Series by series, each by size.
    pub cells: Vec<SweepCell>,
    /// For each cell, the cells whose plans are its warm starts.
    pub warm: Vec<Vec<usize>>,
    /// How many sizes each series has.
    pub sizes: usize,
}

impl SweepGrid {
    /// Every combination of what the user asked for.
    pub(crate) fn new(args: &SweepArgs) -> Self {
        let sketches = match &args.sketch[..] {
            [] => vec![None],
            list => list.iter().map(|path| Some(path.clone()).filter(|path| path != Path::new("none"))).collect(),
        };
        let sizes = &args.sizes.0;
        let order = warm_starts(sizes.len());
        let (mut cells, mut warm) = (Vec::new(), Vec::new());
        for topology in args.topology.iter().flat_map(|list| &list.0) {
            for &collective in &args.collective {
                for sketch in &sketches {
                    for &chunks in &args.chunks {
                        let chunks = match chunks {
                            ChunkCount::Auto => None,
                            ChunkCount::Pinned(count) => Some(count),
                        };
                        let first = cells.len();
                        warm.extend(order.iter().map(|list| list.iter().map(|at| first + at).collect::<Vec<_>>()));
                        cells.extend(sizes.iter().map(|&size_bytes| SweepCell {
                            topology: topology.clone(),
                            collective,
                            sketch: sketch.clone(),
                            chunks,
                            size_bytes,
                        }));
                    }
                }
            }
        }
        Self { cells, warm, sizes: sizes.len() }
    }

    /// The numbers of the cells of each series.
    pub(crate) fn series(&self) -> impl Iterator<Item = std::ops::Range<usize>> + use<> {
        let sizes = self.sizes;
        (0..self.cells.len() / sizes.max(1)).map(move |series| series * sizes..(series + 1) * sizes)
    }
}

/// For each of `count` sizes, the sizes whose plans it starts from: none for both ends, else the two ends of the
/// interval that it halves.
fn warm_starts(count: usize) -> Vec<Vec<usize>> {
    let mut warm = vec![Vec::new(); count];
    let mut open = VecDeque::from([(0, count.saturating_sub(1))]);
    while let Some((low, high)) = open.pop_front() {
        if high - low >= 2 {
            let middle = usize::midpoint(low, high);
            warm[middle] = vec![low, high];
            open.extend([(low, middle), (middle, high)]);
        }
    }
    warm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_middle_starts_from_both_ends() {
        assert_eq!(warm_starts(0).len(), 0);
        assert_eq!(warm_starts(2), [Vec::<usize>::new(), Vec::new()]);
        assert_eq!(warm_starts(5), [vec![], vec![0, 2], vec![0, 4], vec![2, 4], vec![]]);
    }
}
