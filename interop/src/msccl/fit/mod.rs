//! Rewrites a program to satisfy the limits of MSCCL's runtimes, without changing its effect.
//!
//! Every pass takes a program and gives one with the same effect, like those of [`program::rewrite`]:
//!
//! | file | afterwards |
//! |---|---|
//! | `bounded` | a step moves at most 71 chunks |
//! | `lanes` | a threadblock sends over one connection and receives from one, in at most 256 steps |

mod bounded;
mod lanes;

pub(super) use bounded::bounded;
pub(super) use lanes::{cut, narrow};
