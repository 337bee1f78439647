//! Memory that the ranks of one computer share, and how they wake each other through it.
//!
//! The principal types are [`Region`](region::Region), mapped memory, and [`Board`](board::Board), what lies in it.

pub(crate) mod arena;
pub(crate) mod board;
pub(crate) mod doorbell;
#[expect(unsafe_code, reason = "lends shared memory as slices")]
pub(crate) mod heap;
#[expect(unsafe_code, reason = "maps shared memory")]
pub(crate) mod region;
