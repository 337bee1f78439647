//! The names of the strategies: the one list that the command line, sketches and the planner's table share.

use std::str::FromStr;

schedule::words! {
    /// A strategy by name, in the order in which the planner tries them.
    StrategyKind {
        /// A greedy walk that decides once for all ranks of an orbit, nearest chunks first; takes milliseconds.
        Orbits => "orbits",
        /// Textbook algorithms: ring, tree, recursive doubling and halving, all-pairs.
        Classic => "classic",
        /// Routes that keep no link or resource busy for longer than necessary, where every chunk has one destination.
        Flow => "flow",
        /// Shortest paths only, with the load balanced over links step by step.
        Levels => "levels",
        /// Spanning trees packed to the optimal throughput, then scheduled.
        Trees => "trees",
        /// The same search as `matching`, on one link and chunk of each orbit under the symmetries.
        Symmetric => "symmetric",
        /// Greedy matching of links and chunks in order of time, with random restarts.
        Matching => "matching",
        /// Local search around the best schedule so far.
        Improve => "improve",
        /// 0/1 models under the sketch, solved with HiGHS.
        Milp => "milp",
        /// Decides whether a schedule can end before a time, from the bound upward; for small machines.
        Exact => "exact",
    }
}

impl FromStr for StrategyKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_word(text).ok_or_else(|| format!("unknown strategy `{text}`; one of: auto {}", Self::known()))
    }
}
