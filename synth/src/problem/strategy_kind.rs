//! The strategies by name: the one list that the command line, sketches and the planner's table agree on.

use std::str::FromStr;

/// Declares every strategy with its name, in the order in which the planner tries them.
macro_rules! strategies {
    ($($(#[$doc:meta])* $kind:ident = $name:literal,)*) => {
        /// A strategy by name.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum StrategyKind {
            $($(#[$doc])* $kind,)*
        }

        impl StrategyKind {
            /// Every strategy, in the order in which the planner tries them.
            pub const ALL: &[Self] = &[$(Self::$kind),*];

            /// The name on the command line, in sketches and in reports.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$kind => $name,)*
                }
            }
        }
    };
}

strategies! {
    /// A walk that decides once for all ranks that look alike, nearest chunks first; milliseconds.
    Orbits = "orbits",
    /// Textbook algorithms: ring, tree, recursive doubling and halving, all-pairs.
    Classic = "classic",
    /// Routes that keep nothing busy for longer than it must be, where every chunk has one destination.
    Flow = "flow",
    /// Shortest ways only, balanced over links step by step.
    Levels = "levels",
    /// Spanning trees packed to the optimal throughput, then scheduled.
    Trees = "trees",
    /// The same search as `matching`, on one link and chunk of each orbit under the symmetries.
    Symmetric = "symmetric",
    /// Causal link–chunk matching with restarts.
    Matching = "matching",
    /// Local search around the best schedule so far.
    Improve = "improve",
    /// 0/1 models under the sketch, solved with HiGHS.
    Milp = "milp",
    /// Whether a schedule can end before a time, from the bound upward; small machines.
    Exact = "exact",
}

impl FromStr for StrategyKind {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.iter().copied().find(|kind| kind.as_str() == text).ok_or_else(|| {
            let known: Vec<_> = Self::ALL.iter().map(|kind| kind.as_str()).collect();
            format!("unknown strategy `{text}`; one of: auto {}", known.join(" "))
        })
    }
}
