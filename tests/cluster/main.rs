//! Collectives between real hosts: network namespaces with shaped links, built by the tests themselves. They need root,
//! `ip` and `tc`; without these, every test says why it is skipped. Run them with `make cluster-test`.

#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../binary.rs"]
#[allow(dead_code, reason = "the other tests need more of it")]
mod binary;
mod collectives;
#[allow(dead_code, reason = "the benchmark needs more of it")]
mod fabric;
mod faults;
mod noise;
#[allow(dead_code, reason = "the benchmark needs more of it")]
mod ours;
#[allow(clippy::print_stderr, reason = "what is missing is said")]
mod peers;
mod profiles;
mod shapes;
mod tuned;
mod ways;
