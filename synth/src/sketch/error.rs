//! What can be wrong with a sketch, always with its place in the file.
//!
//! The principal type is [`SketchError`]: a position, a [`Mistake`] with its evidence, and a hint where one is
//! known. Its text is what a person sees, in the form `file:line:column: mistake`, so that editors can jump to it.

use super::symmetry::NotASymmetry;
use std::fmt;
use topology::closest;
use topology::quantity::QuantityError;

/// A place in a sketch file; both count from 1.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Position {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

/// A mistake in a sketch, and where it is.
#[derive(Clone, PartialEq, Debug)]
pub struct SketchError {
    /// What the caller called the file.
    pub file: String,
    /// Where; `None` where the parser could not say.
    pub position: Option<Position>,
    /// What.
    pub mistake: Mistake,
}

impl std::error::Error for SketchError {}

impl fmt::Display for SketchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.position {
            Some(Position { line, column }) => write!(f, "{}:{line}:{column}: {}", self.file, self.mistake)?,
            None => write!(f, "{}: {}", self.file, self.mistake)?,
        }
        match self.mistake.hint() {
            Some(hint) => write!(f, "\n  hint: {hint}"),
            None => Ok(()),
        }
    }
}

/// What is wrong.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// The text is not YAML, or exceeds what a sketch may contain.
    #[error("{message}")]
    Unreadable {
        /// What the parser says.
        message: String,
    },
    /// The file is larger than any sketch; nothing was parsed.
    #[error("a sketch of {bytes} bytes; at most {limit} are read")]
    TooLong {
        /// Its size.
        bytes: usize,
        /// The most that is read.
        limit: usize,
    },
    /// A key that means nothing here.
    #[error("unknown key `{key}`")]
    UnknownKey {
        /// The key.
        key: String,
        /// The keys that mean something here.
        accepted: Vec<&'static str>,
    },
    /// A word that is not one of a fixed list.
    #[error("unknown word `{word}`")]
    UnknownWord {
        /// The word.
        word: String,
        /// The words accepted here.
        accepted: Vec<&'static str>,
    },
    /// A value of the wrong kind, such as a list where a number belongs.
    #[error("expected {expected}, found {found}")]
    WrongKind {
        /// What belongs here.
        expected: String,
        /// What is here.
        found: String,
    },
    /// A value of the right kind that cannot be used.
    #[error("`{given}` is not {expected}")]
    BadValue {
        /// The value.
        given: String,
        /// What belongs here.
        expected: &'static str,
    },
    /// A size or a duration that cannot be read.
    #[error(transparent)]
    Quantity(QuantityError),
    /// A list that would allow, forbid or name nothing.
    #[error("{what} is empty, which would {effect}")]
    Empty {
        /// The key.
        what: &'static str,
        /// What an empty list would mean.
        effect: &'static str,
    },
    /// More entries than a sketch may have.
    #[error("{what} has {count} entries; at most {limit} are accepted")]
    TooMany {
        /// The key.
        what: &'static str,
        /// How many there are.
        count: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A rank that does not exist.
    #[error("rank {rank} does not exist: {topology} has ranks 0 to {}", .ranks - 1)]
    NoSuchRank {
        /// The rank.
        rank: u64,
        /// How many ranks there are.
        ranks: usize,
        /// The topology's name.
        topology: String,
    },
    /// A rank of a machine that no machine has.
    #[error("local rank {rank} does not exist: the machines of {topology} have local ranks 0 to {}", .ranks - 1)]
    NoSuchLocalRank {
        /// The local rank.
        rank: u64,
        /// How many ranks the largest machine has.
        ranks: usize,
        /// The topology's name.
        topology: String,
    },
    /// The topology is not of the shape that the sketch was written for.
    #[error("this sketch is for {expected}, but {topology} has {found}")]
    WrongShape {
        /// What the sketch says.
        expected: String,
        /// What there is.
        found: String,
        /// The topology's name.
        topology: String,
        /// A SPEC that would fit, if the sketch names one.
        such_as: Option<String>,
    },
    /// A rule that names no link of the topology.
    #[error("{rule} names no link of {topology}")]
    NoSuchLink {
        /// The rule, in words.
        rule: String,
        /// The topology's name.
        topology: String,
        /// What exists nearby, in words.
        nearby: Option<String>,
    },
    /// Nothing is left to send over.
    #[error("no link of {topology} is left: every one is forbidden by this sketch")]
    NothingLeft {
        /// The topology's name.
        topology: String,
    },
    /// A sender that the relays do not let out of its machine.
    #[error("local rank {rank} is a sender, but no allowed link leads from it to another machine")]
    SenderCannotLeave {
        /// The local rank.
        rank: u64,
    },
    /// Keys that contradict or presuppose each other.
    #[error("{text}")]
    Inconsistent {
        /// What does not go together.
        text: String,
    },
    /// A symmetry that the topology, or the rest of the sketch, does not have.
    #[error("{symmetry} is not a symmetry of {topology}: {why}")]
    NotASymmetry {
        /// The symmetry, as written.
        symmetry: String,
        /// The topology's name.
        topology: String,
        /// The evidence.
        why: NotASymmetry,
    },
}

impl Mistake {
    /// What the user could do about it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownKey { key, accepted } => Some(suggestion(key, accepted)),
            Self::UnknownWord { word, accepted } => Some(suggestion(word, accepted)),
            Self::WrongShape { such_as: Some(spec), .. } => Some(format!("use it with a topology such as {spec}")),
            Self::NoSuchLink { nearby, .. } => nearby.clone(),
            Self::Empty { .. } => Some("list at least one, or remove the key".to_owned()),
            Self::SenderCannotLeave { rank } => {
                Some(format!("add `{rank}: […]` to `relays`, or give its chunks to another sender"))
            }
            Self::NotASymmetry { .. } => {
                Some("remove it, or write `symmetry: auto` to use what the topology has".to_owned())
            }
            _ => None,
        }
    }
}

fn suggestion(given: &str, accepted: &[&str]) -> String {
    let list = accepted.join(", ");
    match closest(given, accepted.iter().copied()) {
        Some(word) => format!("did you mean `{word}`? accepted here: {list}"),
        None => format!("accepted here: {list}"),
    }
}
