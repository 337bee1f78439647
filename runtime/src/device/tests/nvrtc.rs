//! The kernel and NVRTC: `interpreter.ptx` is what it makes of the source, without spilled registers.

use crate::device::KERNEL_PTX;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
/// The most registers of a thread, so that at least 512 threads fit on a multiprocessor with 65536 registers.
const MOST_REGISTERS: u32 = 128;

/// NVRTC, which `.ci/setup gpu` gets from PyPI.
fn library() -> Option<PathBuf> {
    let root = Path::new(CRATE).join("../target/python/gpu/lib");
    let packages = fs::read_dir(root).ok()?.filter_map(Result::ok);
    let mut found = packages.map(|entry| entry.path().join("site-packages/nvidia/cuda_nvrtc/lib/libnvrtc.so.12"));
    found.find(|path| path.exists())
}

/// What NVRTC makes of the source, and what it says.
fn compile(library: &Path, arch: &str) -> (Vec<u8>, String) {
    let folder = tempfile::tempdir().unwrap();
    let (program, out) = (folder.path().join("nvrtc"), folder.path().join("out"));
    let source = Path::new(CRATE).join("tests/c/nvrtc.c");
    let status = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-ldl")
        .status();
    assert!(status.unwrap().success());
    let mut command = Command::new(&program);
    let output =
        command.arg(library).arg(Path::new(CRATE).join("cuda/interpreter.cu")).arg(arch).arg(&out).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (fs::read(&out).unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn long_the_kernel_is_what_nvrtc_makes_of_its_source() {
    // `.ci/setup gpu` has told why.
    let Some(library) = library() else { return eprintln!("skipped: there is no NVRTC (`.ci/setup gpu` gets it)") };
    let (ptx, _) = compile(&library, "compute_80");
    if std::env::var_os("ANTIPHON_UPDATE").is_some() {
        fs::write(Path::new(CRATE).join("cuda/interpreter.ptx"), &ptx).unwrap();
    } else {
        assert!(ptx == KERNEL_PTX.as_bytes(), "`make kernels` makes interpreter.ptx anew");
    }
    for arch in ["sm_80", "sm_90", "sm_100"] {
        let (cubin, said) = compile(&library, arch);
        assert!(cubin.starts_with(b"\x7fELF"), "{arch}");
        let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<u32>().ok());
        let registers: Vec<u32> = said.split("Used ").skip(1).filter_map(number).collect();
        assert_eq!(registers.len(), 7, "{arch}: {said}");
        assert!(registers.iter().all(|count| *count <= MOST_REGISTERS), "{arch}: {registers:?}");
        assert_eq!(said.matches("0 bytes spill stores, 0 bytes spill loads").count(), 7, "{arch}: {said}");
    }
}

/// What the ordering of memory rests on: how the flags are accessed, and that nothing is read around the caches' order.
#[test]
fn flags_are_acquired_and_released_and_no_load_bypasses_them() {
    for needed in ["ld.acquire.sys.global.u64", "st.release.sys.global.u64", "ld.acquire.gpu", "st.release.gpu"] {
        assert!(KERNEL_PTX.contains(needed), "{needed}");
    }
    for forbidden in ["ld.global.nc", "ld.volatile", "ldu.", ".local", "call"] {
        assert!(!KERNEL_PTX.contains(forbidden), "{forbidden}");
    }
}
