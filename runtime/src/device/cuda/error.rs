//! What goes wrong with GPUs.

use crate::device::peers::PeerWait;
use cudarc::driver::DriverError;
use std::time::Duration;
use topology::Rank;

/// Why something did not run on a GPU.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GpuError {
    /// There is no driver.
    #[error("there is no CUDA driver: libcuda.so was not found (hint: it comes with NVIDIA's kernel driver)")]
    NoDriver,
    /// The driver refuses something.
    #[error("{doing}: the CUDA driver says {name}, {what}{hint}")]
    Driver {
        /// What was tried.
        doing: &'static str,
        /// The driver's name for it.
        name: String,
        /// What it means.
        what: String,
        /// What may help, or nothing.
        hint: &'static str,
    },
    /// Memory is shorter than what is put into it.
    #[error("{given} bytes do not fit into {has} bytes of the GPU")]
    Room {
        /// The bytes of the memory.
        has: usize,
        /// The bytes that were given.
        given: usize,
    },
    /// Blocks that wait for each other must all be on the GPU at the same time.
    #[error(
        "the plan needs {blocks} blocks of {threads} threads at the same time, and this GPU has room for {room} (hint: fewer \
         threads, or a plan with fewer threadblocks)"
    )]
    NotResident {
        /// What the plan needs.
        blocks: u32,
        /// Threads of a block.
        threads: u32,
        /// How many blocks of so many threads the GPU holds.
        room: u32,
    },
    /// A call took too long and was ended.
    #[error("the call was not done after {}, and was ended", topology::quantity::show_duration(topology::Micros(.limit.as_secs_f64() * 1e6)))]
    Late {
        /// How long it was allowed to take.
        limit: Duration,
    },
    /// The kernel does not heed the abort word.
    #[error("the call was not done after {}, and does not end either", topology::quantity::show_duration(topology::Micros(.limit.as_secs_f64() * 1e6)))]
    Stuck {
        /// How long it was allowed to take.
        limit: Duration,
    },
    /// A block of the kernel has waited too long.
    #[error("rank {}, threadblock {threadblock}: gave up waiting at step {step} of tile {tile}", .rank.0)]
    GaveUp {
        /// The rank.
        rank: Rank,
        /// Its threadblock.
        threadblock: usize,
        /// The step of the threadblock.
        step: u32,
        /// The tile.
        tile: u32,
    },
    /// A block of an AllReduce on registered buffers has waited too long for a rank.
    #[error("rank {}: gave up waiting for rank {} at the {} of the call", .0.rank.0, .0.peer.0, if .0.is_at_end { "end" } else { "beginning" })]
    PeerMissing(PeerWait),
    /// The process of a rank has ended.
    #[error("rank {}: the process of rank {} is gone", .rank.0, .peer.0)]
    PeerGone {
        /// Who has noticed it.
        rank: Rank,
        /// Whose process it was.
        peer: Rank,
    },
    /// An earlier call has failed; the memory of the plan has to be prepared again.
    #[error("an earlier call has failed (hint: `reset` prepares the memory again)")]
    Broken,
    /// A buffer has another length.
    #[error("rank {}: the buffer has {has} bytes, and not {given}", .rank.0)]
    Length {
        /// The rank.
        rank: Rank,
        /// The bytes of the buffer.
        has: usize,
        /// The bytes that were given.
        given: usize,
    },
}

impl GpuError {
    /// An error of the driver, and what was tried.
    pub(in crate::device) fn of_driver(doing: &'static str) -> impl Fn(DriverError) -> Self {
        move |error| {
            let text = |found: Result<&std::ffi::CStr, DriverError>| {
                found.map_or_else(|_| format!("error {}", error.0 as i32), |text| text.to_string_lossy().into_owned())
            };
            let name = text(error.error_name());
            let hint = match name.as_str() {
                "CUDA_ERROR_UNSUPPORTED_PTX_VERSION" => {
                    " (hint: for this kind of GPU there is PTX only, which needs a driver of CUDA 12.9 or newer, or an NVRTC that is no \
                     newer than the driver: libnvrtc.so in LD_LIBRARY_PATH)"
                }
                "CUDA_ERROR_NO_DEVICE" => " (hint: nvidia-smi lists the GPUs; CUDA_VISIBLE_DEVICES may hide them)",
                "CUDA_ERROR_OUT_OF_MEMORY" => " (hint: smaller buffers, or end other programs on this GPU)",
                _ => "",
            };
            Self::Driver { doing, name, what: text(error.error_string()), hint }
        }
    }
}
