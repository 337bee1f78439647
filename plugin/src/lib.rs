//! `libantiphon`: collectives for programs in C, and in all languages that call C.
//!
//! Every function returns an `antiphon_result_t`, and none unwinds into its caller. What went wrong is told by
//! [`antiphon_last_error`](status::antiphon_last_error), for each thread. `include/antiphon.h` is generated from this crate.
//!
//! | file | what is in it |
//! |---|---|
//! | `handles` | constants and handles |
//! | `status` | results and their texts |
//! | `lifecycle` | making, splitting and freeing communicators |
//! | `buffers` | which memory a call uses, in place or not |
//! | `call` | what all collectives have in common |
//! | `collectives`, `rooted`, `exchange` | the collectives |
//! | `memory` | memory that other processes read where it lies |
//! | `messages` | messages between two ranks |
//! | `requests` | calls under way |
//! | `tuning` | a program's own candidates, and the measuring |

#![expect(unsafe_code, reason = "takes addresses from programs in other languages")]

mod buffers;
mod call;
pub mod collectives;
pub mod exchange;
pub mod handles;
pub mod lifecycle;
pub mod memory;
pub mod messages;
pub mod requests;
pub mod rooted;
pub mod status;
pub mod tuning;
