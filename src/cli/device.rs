//! Where ranks have their buffers.

use clap::ValueEnum;

/// What is measured on.
#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DeviceChoice {
    /// Memory of the host, and the library's own transports.
    Host,
    /// A GPU for each rank, and NCCL between them. Both are found when the program runs (ANTIPHON_NCCL names the library).
    Gpu,
}
