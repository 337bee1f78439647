//! The collectives and reduction operators, spelled as the command line and the files spell them.

use std::str::FromStr;

/// An enum whose values are words in files and on the command line.
#[macro_export]
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, ::serde::Serialize, ::serde::Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $text)] $variant),+ }

        impl $name {
            /// Every value, in the order of the documentation.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// The word in files and on the command line.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$variant => $text),+ }
            }

            /// The value of a word.
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|value| value.as_str() == word)
            }

            /// The words of all values, with spaces between.
            pub fn known() -> String {
                Self::ALL.iter().map(|value| value.as_str()).collect::<Vec<_>>().join(" ")
            }
        }

        impl ::std::fmt::Display for $name {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

words! {
    /// A collective operation. Semantics and sizes are those of nccl-tests (see `docs/formats.md`).
    Collective {
        /// Every member ends with every member's part.
        AllGather => "allgather",
        /// Every member ends with its part of the sum.
        ReduceScatter => "reducescatter",
        /// Every member ends with the whole sum.
        AllReduce => "allreduce",
        /// Every member sends a different part to every member.
        AllToAll => "alltoall",
        /// AllToAll with a matrix of byte counts.
        AllToAllV => "alltoallv",
        /// The root's buffer reaches every member.
        Broadcast => "broadcast",
        /// The root ends with the sum.
        Reduce => "reduce",
        /// The root ends with every member's part.
        Gather => "gather",
        /// Every member ends with its part of the root's buffer.
        Scatter => "scatter",
        /// Every member sends its buffer to the next member, around.
        SendRecv => "sendrecv",
        /// Chunks listed one by one.
        Custom => "custom",
    }
}

impl FromStr for Collective {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_word(text).ok_or_else(|| format!("unknown collective `{text}`; one of: {}", Self::known()))
    }
}

impl FromStr for ReduceOp {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::from_word(text).ok_or_else(|| format!("unknown reduction `{text}`; one of: {}", Self::known()))
    }
}

impl Collective {
    /// Whether values are reduced on the way.
    pub fn combines(self) -> bool {
        match self {
            Self::ReduceScatter | Self::AllReduce | Self::Reduce => true,
            Self::AllGather | Self::AllToAll | Self::AllToAllV | Self::Broadcast => false,
            Self::Gather | Self::Scatter | Self::SendRecv | Self::Custom => false,
        }
    }

    /// Whether its chunks are listed one by one, each of its own size.
    pub fn is_listed(self) -> bool {
        match self {
            Self::AllToAllV | Self::Custom => true,
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAll | Self::Broadcast => false,
            Self::Reduce | Self::Gather | Self::Scatter | Self::SendRecv => false,
        }
    }

    /// Whether its chunks are listed pair by pair: each goes from one member to one, and its size follows from theirs.
    pub fn lists_pairs(self) -> bool {
        match self {
            Self::AllToAllV => true,
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAll | Self::Broadcast => false,
            Self::Reduce | Self::Gather | Self::Scatter | Self::SendRecv | Self::Custom => false,
        }
    }

    /// Whether each member has a block for itself that is no chunk, because it does not move.
    pub fn has_own_blocks(self) -> bool {
        match self {
            Self::AllToAll => true,
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAllV | Self::Broadcast => false,
            Self::Reduce | Self::Gather | Self::Scatter | Self::SendRecv | Self::Custom => false,
        }
    }

    /// Whether a program can call it with vectors of one length.
    pub fn takes_vectors(self) -> bool {
        match self {
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAll | Self::Broadcast => true,
            Self::Reduce | Self::Gather | Self::Scatter => true,
            Self::AllToAllV | Self::SendRecv | Self::Custom => false,
        }
    }

    /// Whether the chunks say what is reduced, so that a request may name a reduction or not.
    pub fn reduces_as_listed(self) -> bool {
        match self {
            Self::Custom => true,
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAll | Self::AllToAllV => false,
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter | Self::SendRecv => false,
        }
    }

    /// Into how many equal parts its size is cut among so many members, where each part is one chunk.
    pub fn parts(self, members: usize) -> u64 {
        match self {
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAll => members as u64,
            Self::AllToAllV | Self::Gather | Self::Scatter => members as u64,
            Self::Broadcast | Self::Reduce | Self::SendRecv | Self::Custom => 1,
        }
    }

    /// How many blocks of equal length its size holds among so many members, as MPI and nccl-tests count: the vector of a
    /// reduction to all is one block. Chunks listed one by one have no blocks, and count as one.
    pub fn blocks(self, members: usize) -> u64 {
        let [input, output] = self.buffer_blocks(members as u64);
        input.max(output)
    }

    /// The same for the input and the output of a member, where it has them (the root's only at the root).
    pub fn buffer_blocks(self, members: u64) -> [u64; 2] {
        match self {
            Self::AllGather | Self::Gather => [1, members],
            Self::ReduceScatter | Self::Scatter => [members, 1],
            Self::AllToAll => [members, members],
            Self::AllReduce | Self::Broadcast | Self::Reduce | Self::SendRecv => [1, 1],
            Self::AllToAllV | Self::Custom => [1, 1],
        }
    }

    /// Whether one member is special.
    pub fn is_rooted(self) -> bool {
        match self {
            Self::Broadcast | Self::Reduce | Self::Gather | Self::Scatter => true,
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAll | Self::AllToAllV => false,
            Self::SendRecv | Self::Custom => false,
        }
    }

    /// Whether the root alone ends with the result.
    pub fn ends_at_root(self) -> bool {
        match self {
            Self::Reduce | Self::Gather => true,
            Self::AllGather | Self::ReduceScatter | Self::AllReduce | Self::AllToAll | Self::AllToAllV => false,
            Self::Broadcast | Self::Scatter | Self::SendRecv | Self::Custom => false,
        }
    }
}

words! {
    /// How values are combined. All are treated as associative and commutative; sums of floats follow the
    /// program's fixed order.
    ReduceOp {
        /// a + b
        Sum => "sum",
        /// a · b
        Prod => "prod",
        /// The smaller.
        Min => "min",
        /// The larger.
        Max => "max",
        /// The sum divided by the number of members.
        Avg => "avg",
    }
}

impl ReduceOp {
    /// Whether results of floats depend on the order in which values are combined.
    pub fn depends_on_order(self) -> bool {
        match self {
            Self::Sum | Self::Prod | Self::Avg => true,
            Self::Min | Self::Max => false,
        }
    }

    /// Whether integers, which wrap, have the same bits with and without a sign.
    pub fn ignores_signs(self) -> bool {
        match self {
            Self::Sum | Self::Prod => true,
            Self::Min | Self::Max | Self::Avg => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::{Deserialize, Serialize};
    use std::fmt;

    #[test]
    fn the_spelling_is_one_for_files_command_line_and_display() {
        fn check<T>(all: &[T])
        where
            T: Copy + PartialEq + fmt::Debug + fmt::Display + FromStr<Err = String> + Serialize,
            T: for<'de> Deserialize<'de>,
        {
            for &value in all {
                let text = value.to_string();
                assert_eq!(text.parse::<T>(), Ok(value));
                let json = serde_json::to_string(&value).unwrap();
                assert_eq!(json, format!("\"{text}\""));
                assert_eq!(serde_json::from_str::<T>(&json).unwrap(), value);
            }
        }
        check(Collective::ALL);
        check(ReduceOp::ALL);
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_known_ones() {
        expect_test::expect!["unknown reduction `mean`; one of: sum prod min max avg"]
            .assert_eq(&"mean".parse::<ReduceOp>().unwrap_err());
    }
}
