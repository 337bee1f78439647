//! What a user tells the planner about good schedules on a machine: a sketch, after TACCL [1].
//!
//! A [`SketchFile`] is a sketch as written; [`SketchFile::resolve`] turns it into a [`Sketch`] for one topology:
//! tables over links ([`crate::Constraints`]) that strategies obey, and pins for the planner. A sketch only forbids,
//! orders and prefers; it never changes what the machine is. [`obey`] checks the result independently.
//!
//! ```yaml
//! # The first lines say why the sketch exists.
//! name: two-boxes
//! topology: {machines: 2, ranks_per_machine: 8, such_as: "ndv2x2"}   # refuses any other shape
//! links:
//!   forbid: [[0, 3], {from: 4, to: [5, 6], both_ways: true}]    # ranks; or between_machines, inside_machine,
//!   allow_only: [{class: inside_machine, from: 0}]              # or local ranks of every machine
//! relays: {1: [0], 3: [2]}     # between machines: local sender → local receivers; or `direct` (i → i), `all`
//! senders: {1: [0, 1], 3: [2, 3]}    # the chunks of these local ranks leave their machine through this one
//! own_chunks_first: true       # between machines, a sender's own chunks go before those it relays
//! max_machine_hops: 1          # no chunk crosses between machines more than once
//! symmetry: [{rotate: 8, within: 16}, {permutation: [1, 0, …]}]      # or `auto`, `none`
//! connections: few             # per switch: `few` or `many`
//! objective: bandwidth         # or `latency`
//! chunks_per_rank: 2
//! sizes: {from: 1KB, to: 1MB}
//! strategy: milp
//! time_limit: 60s
//! ```
//!
//! Every key may be left out, and then leaves all freedom.
//!
//! [1] Shah et al., "TACCL: Guiding Collective Algorithm Synthesis using Communication Sketches", NSDI 2023.

mod describe;
mod error;
mod file;
mod links;
mod obey;
mod resolve;
mod shapes;
mod symmetry;

pub use describe::{Restriction, SketchSummary, describe};
pub use error::{Mistake, Position, SketchError};
pub use file::{Connections, Objective, SizeRange, SketchFile};
pub use obey::{BrokenRule, SketchViolation, obey};
pub use resolve::{Pins, Sketch};
pub use symmetry::{Ends, NotASymmetry};
