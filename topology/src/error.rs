//! What can be wrong with a description of a machine.

use crate::document::TextError;
use crate::quantity::show_number;
use crate::spelling::shorten;
use crate::{LinkId, Rank, ResourceId, show_precise};

/// The result of anything in this crate that can fail.
pub type TopologyResult<T> = Result<T, TopologyError>;

/// Why a topology was refused. The text says what, where and with which evidence.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The topology has no ranks.
    #[error("a topology needs at least one rank")]
    NoRanks,
    /// The count is above a limit of this build. Nothing was allocated.
    #[error("{what}: {count} is more than the {limit} that are supported")]
    TooMany {
        /// What was counted.
        what: &'static str,
        /// How many were asked for.
        count: u64,
        /// The most that is accepted.
        limit: u64,
    },
    /// A link starts or ends at a rank that does not exist.
    #[error("link {link} names rank {rank}, but the ranks are 0..{ranks}")]
    UnknownRank {
        /// The link.
        link: LinkId,
        /// The rank it names.
        rank: Rank,
        /// How many ranks there are.
        ranks: usize,
    },
    /// A link from a rank to itself.
    #[error("link {link} leads from rank {rank} to itself")]
    SelfLink {
        /// The link.
        link: LinkId,
        /// The rank at both ends.
        rank: Rank,
    },
    /// A link uses a resource that does not exist.
    #[error("link {link} uses resource {resource}, but there are {resources} resources")]
    UnknownResource {
        /// The link.
        link: LinkId,
        /// The resource it names.
        resource: ResourceId,
        /// How many resources there are.
        resources: usize,
    },
    /// A link lists a resource twice.
    #[error("link {link} lists resource {resource} twice")]
    RepeatedResource {
        /// The link.
        link: LinkId,
        /// The resource.
        resource: ResourceId,
    },
    /// A cost is negative, infinite or not a number.
    #[error("{owner}: {what} is {}, but must be a number from 0 to 10¹⁵", show_number(*.value))]
    BadCost {
        /// The link or resource, in words.
        owner: String,
        /// Which cost.
        what: &'static str,
        /// The value given.
        value: f64,
    },
    /// A link claims to be faster than a resource that it uses.
    #[error(
        "link {link} has β {} µs/B, below the {} µs/B of resource {resource} ({}) that it uses",
        show_precise(*.link_beta),
        show_precise(*.resource_beta),
        shorten(.name)
    )]
    FasterThanResource {
        /// The link.
        link: LinkId,
        /// Its β.
        link_beta: f64,
        /// The resource.
        resource: ResourceId,
        /// The resource's β.
        resource_beta: f64,
        /// The resource's name.
        name: String,
    },
    /// A link claims to pass messages in less time than a resource that it uses.
    #[error(
        "link {link} has α {} µs, below the {} µs of resource {resource} ({}) that it uses",
        show_precise(*.link_alpha),
        show_precise(*.resource_alpha),
        shorten(.name)
    )]
    QuickerThanResource {
        /// The link.
        link: LinkId,
        /// Its α in microseconds.
        link_alpha: f64,
        /// The resource.
        resource: ResourceId,
        /// The resource's α in microseconds.
        resource_alpha: f64,
        /// The resource's name.
        name: String,
    },
    /// The machines do not partition the ranks.
    #[error("rank {rank} is in {count} machines; every rank belongs to exactly one")]
    NotAPartition {
        /// The rank.
        rank: Rank,
        /// In how many machines it was found.
        count: usize,
    },
    /// Something is wrong in the SPEC that was asked for.
    #[error("{}", in_spec(.spec, .cause))]
    InSpec {
        /// The SPEC as typed (shortened if long).
        spec: String,
        /// What is wrong with it.
        cause: Box<TopologyError>,
    },
    /// No topology has this name.
    #[error("unknown topology `{name}`{}; known are {}", hint(.suggestion), .known.join(", "))]
    UnknownName {
        /// The name asked for.
        name: String,
        /// Every name there is.
        known: Vec<String>,
        /// The nearest of them.
        suggestion: Option<String>,
    },
    /// A key or a value that this topology does not take.
    #[error("unknown {what} `{word}`{}; accepted: {}", hint(.suggestion), list(.accepted))]
    UnknownWord {
        /// What kind of word was expected there.
        what: String,
        /// The word found.
        word: String,
        /// Every word accepted there.
        accepted: Vec<String>,
        /// The nearest of them.
        suggestion: Option<String>,
    },
    /// A part of a SPEC that cannot be read.
    #[error("{part}: {reason}")]
    BadPart {
        /// The part, as typed.
        part: String,
        /// Why it was refused and what is accepted.
        reason: String,
    },
    /// Something is wrong at a place in a text.
    #[error(transparent)]
    InText(#[from] TextError),
    /// A file that cannot be read.
    #[error("cannot read {path}: {reason}")]
    Unreadable {
        /// The file.
        path: String,
        /// Why, in the words of the operating system.
        reason: String,
    },
}

/// The SPEC is not repeated where the cause quotes it.
fn in_spec(spec: &str, cause: &TopologyError) -> String {
    let (quoted, cause) = (format!("`{spec}`"), cause.to_string());
    if cause.contains(&quoted) { cause } else { format!("{quoted}: {cause}") }
}

fn hint(suggestion: &Option<String>) -> String {
    suggestion.as_ref().map_or_else(String::new, |word| format!(" (did you mean `{word}`?)"))
}

fn list(words: &[String]) -> String {
    if words.is_empty() { "none".to_owned() } else { words.join(", ") }
}
