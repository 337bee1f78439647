//! The kernels as they are given to a driver: code for kinds of GPUs, and PTX for all others.
//!
//! The principal type is [`KernelImages`]. NVRTC has made all of it from the sources in `runtime/cuda` (`make kernels`). Code runs with
//! any driver of its CUDA's major version. PTX needs a driver that is as new as NVRTC was. Where the driver is older, an NVRTC of the
//! computer may make PTX for it.

/// The headers of the sources. None of them is needed twice in a source.
const HEADERS: [(&str, &str); 3] = [
    ("peers.cuh", include_str!("../../cuda/peers.cuh")),
    ("elements.cuh", include_str!("../../cuda/elements.cuh")),
    ("flags.cuh", include_str!("../../cuda/flags.cuh")),
];

/// The images of a source.
pub(in crate::device) struct KernelImages {
    /// The first part of the compute capability of a kind of GPUs, and code for the first of them, which all of them run.
    cubins: [(u32, &'static [u8]); 3],
    pub(in crate::device) ptx: &'static str,
    /// What they were made of, without its headers.
    source: &'static str,
}

/// The interpreter kernel.
pub(in crate::device) static INTERPRETER: KernelImages = KernelImages {
    cubins: [
        (8, include_bytes!("../../cuda/interpreter.sm_80.cubin")),
        (9, include_bytes!("../../cuda/interpreter.sm_90.cubin")),
        (10, include_bytes!("../../cuda/interpreter.sm_100.cubin")),
    ],
    ptx: super::KERNEL_PTX,
    source: include_str!("../../cuda/interpreter.cu"),
};

/// The kernels for AllReduces on registered buffers.
pub(in crate::device) static ALLREDUCE: KernelImages = KernelImages {
    cubins: [
        (8, include_bytes!("../../cuda/allreduce.sm_80.cubin")),
        (9, include_bytes!("../../cuda/allreduce.sm_90.cubin")),
        (10, include_bytes!("../../cuda/allreduce.sm_100.cubin")),
    ],
    ptx: super::ALLREDUCE_PTX,
    source: include_str!("../../cuda/allreduce.cu"),
};

impl KernelImages {
    /// Code for a GPU with this first part of the compute capability.
    pub(in crate::device) fn cubin(&self, major: u32) -> Option<&'static [u8]> {
        self.cubins.iter().find(|(of, _)| *of == major).map(|(_, code)| *code)
    }

    /// The source with its headers.
    pub(in crate::device) fn whole_source(&self) -> String {
        let mut text = self.source.to_owned();
        for (name, header) in HEADERS {
            text = text.replacen(&format!("#include \"{name}\""), header, 1);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the header of a cubin says of the GPU that it is for.
    #[test]
    fn code_is_for_the_gpus_that_get_it() {
        for images in [&INTERPRETER, &ALLREDUCE] {
            for major in [8, 9, 10] {
                let code = images.cubin(major).unwrap();
                assert!(code.starts_with(b"\x7fELF"));
                let flags = u32::from_le_bytes(code[48..52].try_into().unwrap());
                // Where it is depends on the version of the format.
                let named = if code[8] < 8 { flags & 0xff } else { flags >> 8 & 0xff };
                assert_eq!(named, 10 * major, "{flags:#x}");
            }
            for other in [7, 11, 12] {
                assert!(images.cubin(other).is_none(), "the driver makes code of PTX");
            }
            assert!(!images.whole_source().contains("#include \""), "all headers are there");
        }
    }
}
