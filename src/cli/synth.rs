//! The arguments of `antiphon synth` and `antiphon bound`: what to plan, and how to search.

use super::values::{ChunkCount, PointChoice, StrategyChoice, collective, duration, op, percent, size, strategy};
use super::{RankList, SizeList, Split};
use clap::Args;
use schedule::{Collective, ReduceOp};
use std::path::PathBuf;
use std::time::Duration;

/// The request without its size.
#[derive(Args, Clone, Debug)]
pub(crate) struct RequestArgs {
    /// The machine: `name[:params][,key=value]…`, or a path to a topology file.
    #[arg(long, value_name = "SPEC")]
    pub topology: String,
    /// The operation.
    #[arg(long, value_parser = collective())]
    pub collective: Collective,
    /// Chunks per rank, or `auto` to search.
    #[arg(long, default_value = "auto", value_name = "N|auto")]
    pub chunks: ChunkCount,
    /// Only these ranks take part, such as 0-3,6.
    #[arg(long, value_name = "RANKS")]
    pub members: Option<RankList>,
    /// The same collective, of --size, in each of these groups of ranks at the same time, planned together on the links
    /// that they share: 0,2,4/1,3,5, or 0-3/4-7, or size=4 (neighbours). The root of each is its first rank. For
    /// different collectives, sizes or starts, list `groups` in --demand.
    #[arg(long, value_name = "GROUPS", conflicts_with_all = ["members", "root", "matrix", "demand"])]
    pub groups: Option<Split>,
    /// The root of a rooted collective (default: the first member).
    #[arg(long, value_name = "R")]
    pub root: Option<u32>,
    /// The reduction of a reducing collective (default: sum).
    #[arg(long, value_parser = op())]
    pub op: Option<ReduceOp>,
    /// Byte counts of an alltoallv: one CSV row per sending member.
    #[arg(long, value_name = "F.csv")]
    pub matrix: Option<PathBuf>,
    /// Chunks of a custom collective, or the collectives of several groups at the same time.
    #[arg(long, value_name = "F.yaml")]
    pub demand: Option<PathBuf>,
    /// A sketch that constrains the plan.
    #[arg(long, value_name = "F")]
    pub sketch: Option<PathBuf>,
}

/// How hard to look.
#[derive(Args, Clone, Debug)]
pub(crate) struct SearchArgs {
    /// Only this strategy, alone; or auto.
    #[arg(long, default_value = "auto", value_name = "NAME|auto", value_parser = strategy())]
    pub strategy: StrategyChoice,
    /// Stop after this time with the best so far, such as 30s or 1h30m. Time that is left is used for a better plan, until
    /// the gap is small enough. Results then depend on the machine's speed.
    #[arg(long, value_name = "T", value_parser = duration)]
    pub time_limit: Option<Duration>,
    /// Stop as soon as the makespan is this close to the bound, such as 2%; 0 never stops early.
    #[arg(long, default_value = "0.1%", value_name = "PERCENT", value_parser = percent)]
    pub gap: f64,
    /// Seed of every random choice: same seed, same bytes.
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Threads (default: all cores); the result does not depend on them.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub threads: Option<u16>,
}

impl SearchArgs {
    /// The same arguments as words of a command line.
    pub(crate) fn to_words(&self) -> Vec<String> {
        let Self { strategy, time_limit, gap, seed, threads } = self;
        let strategy = strategy.0.map_or("auto", ::synth::StrategyKind::as_str);
        let mut words =
            vec![format!("--strategy={strategy}"), format!("--gap={}%", gap * 100.0), format!("--seed={seed}")];
        words.extend(time_limit.map(|limit| format!("--time-limit={}us", limit.as_micros())));
        words.extend(threads.map(|threads| format!("--threads={threads}")));
        words
    }
}

/// `antiphon bound`
#[derive(Args, Debug)]
pub(crate) struct BoundArgs {
    /// What to bound.
    #[command(flatten, next_help_heading = "What to plan")]
    pub request: RequestArgs,
    /// Total size as nccl-tests means it: 1KB = 1000, 1KiB = 1024, plain bytes. It follows from --matrix, and from --demand
    /// where all chunks have sizes.
    #[arg(long, value_parser = size, required_unless_present_any = ["matrix", "demand"])]
    pub size: Option<u64>,
    /// How long all bounds together may take, such as 60s. Without it, only bounds that need a proof by the solver are
    /// limited, to 2s.
    #[arg(long, value_name = "T", value_parser = duration)]
    pub time_limit: Option<Duration>,
}

/// `antiphon synth`
#[derive(Args, Debug)]
pub(crate) struct SynthArgs {
    /// What to plan.
    #[command(flatten, next_help_heading = "What to plan")]
    pub request: RequestArgs,
    /// Total size as nccl-tests means it: 1KB = 1000, 1KiB = 1024, plain bytes. It follows from --matrix, and from --demand
    /// where all chunks have sizes.
    #[arg(
        long,
        value_parser = size,
        required_unless_present_any = ["sizes", "matrix", "demand"],
        conflicts_with = "sizes",
        allow_hyphen_values = true
    )]
    pub size: Option<u64>,
    /// Many sizes, such as 1KB,64KB,1MB or 1KB..1GB (each twice the one before) or 1KB..1GB:4 (four times). Gives a few
    /// plans, each for a window of sizes in which it is within 1 % of the best found. A time limit is for all of them
    /// together.
    ///
    /// The index (`antiphon-sweep/1`) lists `windows`: `from_bytes`, `to_bytes` (exclusive), `file` and facts about the
    /// plan; and `sizes`: `makespan_us` of the window's plan, `best_us` of all plans, `lower_bound_us`, `gap`, and
    /// whether the size was `searched` or uses plans of other sizes. Windows are disjoint and leave no size out.
    #[arg(long, value_name = "A..B[:F]|LIST")]
    pub sizes: Option<SizeList>,
    /// How hard to look.
    #[command(flatten, next_help_heading = "How hard to look")]
    pub search: SearchArgs,
    /// Begin with this plan, which is for the same request, cut in any way: the answer is no slower. If links or ranks
    /// are gone since, or slower, the plan is repaired first.
    #[arg(long, value_name = "PLAN.json", conflicts_with_all = ["sizes", "pareto"])]
    pub warm: Option<PathBuf>,
    /// With `--strategy exact`: all Pareto points (chunks, synchronous steps, rounds), certified, with at most
    /// `--chunks` chunks (default: 6). The fastest at this size is written.
    #[arg(long, conflicts_with = "sizes")]
    pub pareto: bool,
    /// With `--pareto`: write this point instead.
    #[arg(long, requires = "pareto", value_name = "CHUNKS,STEPS,ROUNDS")]
    pub point: Option<PointChoice>,
    /// Where to write the schedule; with --sizes the folder for `index.json` and one `plan-<i>.json` for each window.
    #[arg(short, long, value_name = "OUT.json|DIR")]
    pub output: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use crate::cli::{Cli, Command};
    use clap::Parser;

    #[test]
    fn the_planner_says_which_gap_is_good_enough() {
        let line = "antiphon synth --topology ring:4 --collective allgather --size 1";
        let parsed = Cli::try_parse_from(line.split(' ')).unwrap();
        let Command::Synth(args) = parsed.command else { panic!("it is synth") };
        assert_eq!(args.search.gap, synth::DEFAULT_GAP);
    }
}
