//! Usable bandwidths by generation, as NCCL's own tables have them.
//!
//! The principal functions are [`lanes`], [`nvlink`] and [`between_sockets`].

use super::{Assumed, speed};
use crate::MicrosPerByte;

/// Usable GB/s of a PCIe lane by its GT/s.
const LANES: [(f64, f64); 6] = [(2.5, 0.1875), (5.0, 0.375), (8.0, 0.75), (16.0, 1.5), (32.0, 3.0), (64.0, 6.0)];

/// Usable GB/s of an NVLink, by the first compute capability that has it.
const NVLINKS: [(u64, f64); 6] = [(60, 18.0), (70, 20.0), (80, 20.0), (86, 12.0), (90, 20.6), (100, 40.1)];

/// Usable GB/s of one NVLink of a GPU with this compute capability.
pub(super) fn nvlink(generation: u64) -> f64 {
    NVLINKS.iter().rev().find(|(first, _)| *first <= generation).map_or(20.0, |(_, speed)| *speed)
}

/// The way between two sockets.
pub(super) fn between_sockets(arch: Option<&str>, vendor: Option<&str>, assumed: Assumed) -> (MicrosPerByte, String) {
    let (usual, why) = match (arch, vendor) {
        (Some("arm64" | "aarch64"), _) => (6.0, "nominal between Arm sockets"),
        (Some("ppc64"), _) => (32.0, "nominal between POWER sockets"),
        (_, Some("AuthenticAMD")) => (16.0, "nominal between AMD sockets"),
        (_, Some("GenuineIntel")) => (10.0, "nominal between Intel sockets"),
        _ => (10.0, "assumed between sockets of an unknown vendor"),
    };
    speed(assumed.smp, usual, why)
}

/// The usable bandwidth of so many PCIe lanes at a rate as it is printed, such as `16.0 GT/s PCIe`.
pub(super) fn lanes(rate: &str, width: u64, assumed: Assumed) -> (MicrosPerByte, String) {
    let per_lane = rate.split_whitespace().next().and_then(|word| word.parse::<f64>().ok());
    let lane = per_lane.and_then(|rate| LANES.iter().find(|(known, _)| (known - rate).abs() < 0.01));
    match lane.filter(|_| (1..=32).contains(&width)) {
        _ if assumed.pcie.is_some() => speed(assumed.pcie, 0.0, ""),
        Some((rate, usable)) => {
            speed(None, usable * width as f64, &format!("nominal for {rate} GT/s x{width}, usable part"))
        }
        None => speed(None, 12.0, "assumed: its PCIe speed and width are not stated"),
    }
}
