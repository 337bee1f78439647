//! Memory that the ranks of one computer share, and how ranks wake each other.
//!
//! The principal types are [`Region`](region::Region), mapped memory, and [`Segment`](segment::Segment), which lends
//! the parts of a region.

pub(crate) mod activity;
#[cfg_attr(feature = "model", expect(unsafe_code, reason = "a cell for the model checker"))]
pub(crate) mod atomics;
pub(crate) mod barrier;
pub(crate) mod clocks;
pub(crate) mod cores;
pub(crate) mod doorbell;
pub(crate) mod fences;
#[expect(unsafe_code, reason = "has the kernel empty a page in forks")]
pub(crate) mod fork_mark;
#[expect(unsafe_code, reason = "lends shared memory as slices")]
pub(crate) mod heap;
pub(crate) mod heaps;
pub(crate) mod poller;
#[expect(unsafe_code, reason = "maps shared memory")]
pub(crate) mod region;
pub(crate) mod segment;
#[expect(unsafe_code, reason = "replaces pages of the caller's memory")]
pub(crate) mod shared_pages;
pub(crate) mod socket;
pub(crate) mod stop;
