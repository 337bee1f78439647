//! Makes a program fit what MSCCL's runtimes have room for, without changing what it does.
//!
//! Every pass takes a program and gives one that does the same, as those of [`program::rewrite`] do:
//!
//! | file | afterwards |
//! |---|---|
//! | `bounded` | a step moves at most 71 chunks |
//! | `lanes` | a threadblock sends over one connection and receives from one, in at most 256 steps |

mod bounded;
mod lanes;

pub(super) use bounded::bounded;
pub(super) use lanes::{cut, narrow};
