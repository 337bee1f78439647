//! What the machine is: ranks, machines, links, shared resources and what a message costs on them.
//!
//! The principal type is [`Topology`]: a directed multigraph of [`Link`]s between [`Rank`]s, where links may share
//! [`Resource`]s (a NIC port, a switch port). Switches of a physical description become links that share port
//! resources, so all later stages see one kind of edge and one cost model (α–β).
//!
//! This crate knows no solver and opens no socket; it reads files only through [`load`] and [`import::import_sys`].

mod adjacency;
mod catalog;
pub mod concurrent;
mod connectivity;
pub mod document;
mod error;
mod family;
pub mod fit;
mod free_times;
mod graph;
pub mod import;
mod interchange;
mod line;
mod link;
mod machine;
mod measured;
mod plain_words;
mod probe;
pub mod profile;
pub mod quantity;
mod resource_ids;
mod robust;
mod rounds;
mod spec;
mod spelling;
pub mod symmetry;
mod units;

pub use catalog::{
    Listing, list, load, load_named, open_input, ranks_without_ports, read_text, read_text_up_to, resolve,
};
pub use error::{TopologyError, TopologyResult};
pub use free_times::FreeTimes;
pub use graph::{Topology, TopologyParts};
pub use interchange::{Embedded, from_json, to_json};
pub use link::{Latency, Link, Resource};
pub use measured::{Measured, to_yaml};
pub use probe::{Exchange, Probe, ProbeError};
pub use resource_ids::ResourceIds;
pub use spelling::{closest, counted, is_printable, shorten, shorten_message, shorten_to};
pub(crate) use units::MAX_LISTED_LINKS;
pub use units::{Bytes, LinkId, MAX_LINKS, MAX_RANKS, Micros, MicrosPerByte, Rank, ResourceId, show_precise};
