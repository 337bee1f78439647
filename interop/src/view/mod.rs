//! Timelines as pictures and traces, in the formats of other tools.
//!
//! | file | what |
//! |---|---|
//! | `trace` | a Chrome/Perfetto trace: one track per link and per resource |
//! | `html` | the same timeline as one self-contained page |
//! | `dot` | the machine as a graph, with what each link carries |

mod dot;
mod html;
mod timeline;
mod trace;

pub use dot::dot;
pub use html::html;
pub use trace::trace;
