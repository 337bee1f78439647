//! Makes a program fit what MSCCL's runtimes have room for, without changing what it does.
//!
//! Every pass takes a program and gives one that does the same, so each can be proved by [`crate::program::check`]:
//!
//! | file | afterwards |
//! |---|---|
//! | `rewrite` | the common part: steps become several steps, threadblocks are regrouped, waits follow |
//! | `instances` | the work is done n times over n-ths of every slot, by threadblocks of their own |
//! | `lanes` | a threadblock sends over one connection and receives from one, in at most 256 steps |
//! | `channels` | on no channel a rank has more than 32 peers; a threadblock has one channel |
//! | `pack` | ranks with too many threadblocks have senders and receivers share them |

mod channels;
mod instances;
mod lanes;
mod pack;
mod rewrite;

pub(super) use channels::assign;
pub(super) use instances::replicate;
pub(super) use lanes::{cost, cut, narrow};
pub(super) use pack::pack;
pub(super) use rewrite::bounded;
