//! Messages of a session through memory that the ranks of one machine share.
//!
//! The principal type is [`MemoryPort`].
//!
//! | file | what is in it |
//! |---|---|
//! | `lane_place` | where the parts of a lane lie |
//! | `lane` | messages in one direction |
//! | `process_memory` | reading the memory of another process |
//! | `segments` | memory of a rank that the processes of its machine map |
//! | `rank_memory` | the memory in which others leave messages for a rank |
//! | `memory_port` | a rank's ends of the lanes to and from one peer |

#[expect(unsafe_code, reason = "reads and writes lines of shared memory")]
pub(crate) mod lane;
#[expect(unsafe_code, reason = "looks up the words of a lane")]
pub(crate) mod lane_place;
#[expect(unsafe_code, reason = "reads what a thread of this process has offered")]
mod memory_port;
#[expect(unsafe_code, reason = "asks the kernel to copy out of another process")]
pub(crate) mod process_memory;
pub(crate) mod rank_memory;
pub(crate) mod segments;

pub(crate) use memory_port::MemoryPort;
