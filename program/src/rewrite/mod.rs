//! Passes that change the form of a program but not its effect. Lowering uses them, and so do exporters, to satisfy the
//! limits of their targets. [`super::check`] checks each result like any other program.
//!
//! | file | afterwards |
//! |---|---|
//! | `steps` | the common part: steps become several steps, threadblocks are regrouped, waits follow |
//! | `order` | (no pass) one order of all steps of all ranks in which everything waits only for what comes before it |
//! | `pair` | the receiving end of one connection and the sending end of another share a threadblock |
//! | `fuse` | a receive and the send of what it stored are one step |
//! | `channels` | the connections of a threadblock have one channel; two between the same ranks differ |
//! | `instances` | the work is done n times over n-ths of every part, by threadblocks of their own |

mod channels;
mod fuse;
mod instances;
mod order;
mod pair;
mod steps;

pub use channels::assign;
pub use instances::replicate;
pub use pair::{Pairing, pair};
pub use steps::{cost, expand, regroup, resliced, row};
