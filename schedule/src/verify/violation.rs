//! What can be wrong with a schedule: one variant per rule, with the evidence as fields.

use crate::{ChunkId, RankSet};
use topology::{Bytes, LinkId, Micros, Rank, ResourceId, shorten, show_precise};

/// A broken rule with its evidence. Transfers are named by their position in the schedule.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum Violation {
    /// A chunk that the collective needs is not in the file.
    #[error(
        "the file has no chunk held by ranks {holders} and wanted by ranks {wanted_by}, which the collective needs{}",
        others(*more, "other")
    )]
    MissingChunk {
        /// Its id in the collective's own numbering.
        chunk: ChunkId,
        /// Who holds it.
        holders: RankSet,
        /// Who wants it.
        wanted_by: RankSet,
        /// How many other chunks are missing.
        more: usize,
    },
    /// A chunk of a file that is no part of the collective.
    #[error(
        "chunk {id} of the file, held by ranks {holders} and wanted by ranks {wanted_by}, is no part of the collective{}",
        others(*more, "other")
    )]
    ExtraChunk {
        /// Its id in the file.
        id: u64,
        /// Who holds it.
        holders: RankSet,
        /// Who wants it.
        wanted_by: RankSet,
        /// How many other chunks are not part of it either.
        more: usize,
    },
    /// A chunk size that does not follow from the request.
    #[error(
        "{} {stated}, but the request makes it {expected}",
        id.map_or("chunk_bytes is".to_owned(), |id| format!("chunk {id} of the file has"))
    )]
    WrongChunkBytes {
        /// The chunk's id in the file; `None` for the size common to all.
        id: Option<u64>,
        /// What the file says.
        stated: Bytes,
        /// What follows from the request.
        expected: Bytes,
    },
    /// A size that does not follow from the chunks.
    #[error("size_bytes is stated as {stated}, but the chunks make it {expected}")]
    WrongSize {
        /// What the file says, in bytes.
        stated: u64,
        /// What follows from its chunks, in bytes.
        expected: u64,
    },
    /// The schedule moves other chunks between some ranks than were asked for.
    #[error("from {} to {} the schedule has {claimed}, but {asked} was asked for", named(holders), named(wanted_by))]
    NotAsked {
        /// Who holds it.
        holders: RankSet,
        /// Who wants it.
        wanted_by: RankSet,
        /// What the schedule has, such as `2 chunks of 8 B in all`.
        claimed: String,
        /// What was asked for.
        asked: String,
    },
    /// A makespan that is not the end of the last transfer.
    #[error("makespan_us is stated as {stated}, but the last transfer ends at {actual}")]
    WrongMakespan {
        /// What the file says.
        stated: Micros,
        /// When the last transfer ends.
        actual: Micros,
    },
    /// A gap that does not follow from makespan and bound.
    #[error(
        "gap is stated as {}, but {}",
        show_precise(*stated),
        actual.map_or("there is no bound to compare with".to_owned(), |gap| {
            format!("makespan / bound - 1 is {}", show_precise(gap))
        })
    )]
    WrongGap {
        /// What the file says.
        stated: f64,
        /// makespan / bound − 1, if there is a bound above zero.
        actual: Option<f64>,
    },
    /// The schedule was made for another machine.
    #[error(
        "the schedule was made for topology {} with digest {}, but this one has digest {actual}",
        shorten(name),
        shorten(stated)
    )]
    WrongTopology {
        /// What the schedule calls its topology.
        name: String,
        /// The digest it was made for.
        stated: String,
        /// The digest of the topology it is checked against.
        actual: String,
    },
    /// The request has another number of ranks than the machine.
    #[error("the schedule is for {stated} ranks, but the topology has {actual}")]
    WrongRankCount {
        /// What the schedule says.
        stated: usize,
        /// What the topology has.
        actual: usize,
    },
    /// A generator of a compressed schedule is not a symmetry, or the generators together are not.
    #[error("generator {generator} of the symmetry is none of this topology and demand: {reason}")]
    NoSymmetry {
        /// Its position; the number of generators where they fail only together.
        generator: usize,
        /// The reason.
        reason: String,
    },
    /// A message without chunks.
    #[error("transfer {transfer} (link {link}) carries no chunk")]
    EmptyMessage {
        /// The transfer.
        transfer: usize,
        /// Its link.
        link: LinkId,
    },
    /// A message that lists a chunk twice.
    #[error("transfer {transfer} (link {link}) lists chunk {chunk} more than once")]
    RepeatedChunk {
        /// The transfer.
        transfer: usize,
        /// Its link.
        link: LinkId,
        /// The chunk.
        chunk: ChunkId,
    },
    /// A chunk that the demand does not have.
    #[error("transfer {transfer} carries chunk {chunk}, but there are only {chunks} chunks")]
    UnknownChunk {
        /// The transfer.
        transfer: usize,
        /// The chunk it names.
        chunk: ChunkId,
        /// How many there are.
        chunks: usize,
    },
    /// A link that the topology does not have.
    #[error(
        "transfer {transfer} uses link {link}, but there are only {links} links; a link's id is its position in the topology's list, from 0"
    )]
    UnknownLink {
        /// The transfer.
        transfer: usize,
        /// The link it names.
        link: LinkId,
        /// How many there are.
        links: usize,
    },
    /// A transfer between ranks that its link does not join.
    #[error(
        "transfer {transfer} goes from rank {from} to rank {to}, but link {link} leads from rank {link_from} to rank {link_to}; a link's id is its position in the topology's list, from 0"
    )]
    WrongEnds {
        /// The transfer.
        transfer: usize,
        /// Its link.
        link: LinkId,
        /// The stated sender.
        from: Rank,
        /// The stated receiver.
        to: Rank,
        /// Where the link starts.
        link_from: Rank,
        /// Where the link ends.
        link_to: Rank,
    },
    /// A reduce of a chunk that is not combined.
    #[error("transfer {transfer} (link {link}) reduces chunk {chunk}, which is not a combining chunk")]
    ReduceOfPlainChunk {
        /// The transfer.
        transfer: usize,
        /// Its link.
        link: LinkId,
        /// The chunk.
        chunk: ChunkId,
    },
    /// A time that is negative or not a number.
    #[error("transfer {transfer} (link {link}) is timed {start} to {end}; times must be finite and not negative")]
    BadTime {
        /// The transfer.
        transfer: usize,
        /// Its link.
        link: LinkId,
        /// Departure.
        start: Micros,
        /// Arrival.
        end: Micros,
    },
    /// An arrival that does not follow from the cost model.
    #[error(
        "transfer {transfer} (link {link}) starts at {start} and states its end as {end}; the link's cost makes it {expected}"
    )]
    WrongDuration {
        /// The transfer.
        transfer: usize,
        /// Its link.
        link: LinkId,
        /// Departure.
        start: Micros,
        /// The stated arrival.
        end: Micros,
        /// start + α + β·bytes.
        expected: Micros,
    },
    /// Transfers out of order.
    #[error(
        "transfer {transfer} starts at {start}, before the one listed ahead of it ({previous}); sort them by start"
    )]
    NotSorted {
        /// The transfer.
        transfer: usize,
        /// Its start.
        start: Micros,
        /// The start of the transfer before it.
        previous: Micros,
    },
    /// A chunk leaves a rank that does not hold it.
    #[error(
        "transfer {transfer} (link {link}) sends chunk {chunk} from rank {rank} at {start}, {}",
        held_text(*start, *held_from)
    )]
    SentBeforeHeld {
        /// The transfer.
        transfer: usize,
        /// Its link.
        link: LinkId,
        /// The chunk.
        chunk: ChunkId,
        /// The sender.
        rank: Rank,
        /// Departure.
        start: Micros,
        /// When the sender first holds it, if it ever does.
        held_from: Option<Micros>,
    },
    /// A contribution that is counted twice.
    #[error(
        "transfer {transfer} (link {link}) reduces chunk {chunk} into rank {rank} at {time}, which already counts the contribution of rank {twice}{}",
        others(*also, "other")
    )]
    DoubleReduce {
        /// The transfer.
        transfer: usize,
        /// Its link.
        link: LinkId,
        /// The chunk.
        chunk: ChunkId,
        /// The receiver.
        rank: Rank,
        /// Arrival.
        time: Micros,
        /// Whose contribution is counted twice (the lowest such rank).
        twice: Rank,
        /// How many other ranks' contributions are too.
        also: usize,
    },
    /// A copy and another arrival of a combining chunk at the same time: the result depends on which comes first.
    #[error(
        "transfer {transfer} (link {link}) brings combining chunk {chunk} to rank {rank} at {time}, the same instant as transfer {other}, and one of the two is a copy"
    )]
    CollidingCopy {
        /// The later transfer of the two (in order of arrival).
        transfer: usize,
        /// Its link.
        link: LinkId,
        /// The chunk.
        chunk: ChunkId,
        /// The receiver.
        rank: Rank,
        /// The time.
        time: Micros,
        /// The other transfer.
        other: usize,
    },
    /// A rank that ends without a chunk that it wants.
    #[error("rank {rank} wants chunk {chunk} and never gets it{}", others(*more, "other rank"))]
    NotDelivered {
        /// The chunk.
        chunk: ChunkId,
        /// The rank.
        rank: Rank,
        /// Other ranks that lack this chunk and are not listed (only in the last entry of a long list).
        more: usize,
    },
    /// A rank that ends with an incomplete sum.
    #[error(
        "rank {rank} ends with chunk {chunk} without the contribution of rank {missing}{}{}",
        others(*also_missing, "other"),
        if *more > 0 { format!("; and {more} other ranks end without parts of it") } else { String::new() }
    )]
    MissingContribution {
        /// The chunk.
        chunk: ChunkId,
        /// The rank.
        rank: Rank,
        /// Whose contribution is missing (the lowest such rank).
        missing: Rank,
        /// How many other contributions are missing.
        also_missing: usize,
        /// Ranks with incomplete sums of this chunk that are not listed one by one.
        more: usize,
    },
    /// Two messages on one link at once.
    #[error("transfer {transfer} enters link {link} at {start}, while transfer {other} keeps it busy until {free}")]
    LinkOverlap {
        /// The later transfer.
        transfer: usize,
        /// The earlier one.
        other: usize,
        /// The link.
        link: LinkId,
        /// When the later one starts.
        start: Micros,
        /// When the link is free.
        free: Micros,
    },
    /// Two messages on one resource at once.
    #[error(
        "transfer {transfer} (link {link}) enters resource {resource} ({}) at {start}, while transfer {other} keeps it busy until {free}",
        shorten(name)
    )]
    ResourceOverlap {
        /// The later transfer.
        transfer: usize,
        /// The earlier one.
        other: usize,
        /// The link of the later one.
        link: LinkId,
        /// The resource.
        resource: ResourceId,
        /// Its name.
        name: String,
        /// When the later one starts.
        start: Micros,
        /// When the resource is free.
        free: Micros,
    },
    /// A bound that is above the makespan of its own schedule.
    #[error("the lower bound {bound} ({}) is above the makespan {makespan}, so it is not a bound", shorten(name))]
    BoundAboveMakespan {
        /// The stated bound.
        bound: Micros,
        /// Its name.
        name: String,
        /// When the last transfer ends.
        makespan: Micros,
    },
}

/// ` (and 3 others)`, or nothing for zero.
fn others(count: usize, noun: &str) -> String {
    match count {
        0 => String::new(),
        1 => format!(" (and 1 {noun})"),
        _ => format!(" (and {count} {noun}s)"),
    }
}

/// When a sender holds what it has sent too early. Of messages that wait for each other at one moment, none can be the first.
fn held_text(start: Micros, held_from: Option<Micros>) -> String {
    match held_from {
        None => "which that rank never holds".to_owned(),
        Some(time) if time <= start => {
            "but it comes there, at that moment, only from messages that wait for this one".to_owned()
        }
        Some(time) => format!("but that rank holds it only from {time}"),
    }
}

/// `rank 3` or `ranks 0-2`.
fn named(ranks: &RankSet) -> String {
    format!("rank{} {ranks}", if ranks.len() == 1 { "" } else { "s" })
}
