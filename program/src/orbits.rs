//! Programs of which one rank of each orbit is written down, for plans that are too large to lower rank by rank.
//!
//! The principal type is [`OrbitProgram`]. A ring AllReduce among 4096 ranks has 33 million messages; its program would
//! have 67 million steps. All ranks do the same with other chunks, so the steps of rank 0 say everything.
//!
//! **Meaning.** The group of the compressed schedule ([`Unfolding`]) moves ranks and chunks, and leaves none in place. Let ρ
//! be the first rank of an orbit. The program of its image g·ρ has the steps of ρ, with these changes: the slot of the caller's
//! buffer in which ρ has chunk c becomes the slot in which g·ρ has g·c; a scratch slot stays, with the shape of the image's
//! part; a connection becomes its image. A connection is written down once, with the first rank of an orbit as its sender.
//! The first rank of its receiver's orbit has the receives: they are those of the image that ends there.

use crate::Program;
use schedule::Unfolding;
use std::sync::Arc;

/// A program for all ranks, of which only the first of each orbit has steps. It is only a claim until it is checked.
#[derive(Clone, PartialEq, Debug)]
pub struct OrbitProgram {
    /// What the first ranks of the orbits do, and the connections from them. All other ranks have no slots and no steps.
    pub program: Program,
    /// How the first ranks are repeated.
    pub unfolding: Arc<Unfolding>,
}
