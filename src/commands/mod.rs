//! One file per command: from its arguments to its result.

pub(crate) mod bound;
pub(crate) mod demo;
pub(crate) mod explain;
pub(crate) mod export;
pub(crate) mod help;
pub(crate) mod pareto;
pub(crate) mod profile;
pub(crate) mod run;
pub(crate) mod simulate;
pub(crate) mod sizes;
pub(crate) mod sketch;
pub(crate) mod sweep;
pub(crate) mod synth;
pub(crate) mod topology;
pub(crate) mod tune;
mod usage;
pub(crate) mod verify;
pub(crate) mod worker;
