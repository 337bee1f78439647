//! One file per command: from its arguments to its result. The order of help is the order of work.

pub mod bound;
pub mod demo;
pub mod explain;
pub mod export;
pub mod help;
pub mod profile;
pub mod run;
pub mod simulate;
pub mod sketch;
pub mod synth;
pub mod topology;
pub mod verify;
pub mod worker;
