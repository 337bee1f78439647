//! The kernels and NVRTC: their PTX is what it makes of the sources, without spilled registers.

use crate::device::{ALLREDUCE_PTX, KERNEL_PTX};
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

/// What NVRTC makes of a source, and what it says.
fn compile(library: &Path, source_name: &str, arch: &str) -> (Vec<u8>, String) {
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
        command.arg(library).arg(Path::new(CRATE).join("cuda").join(source_name)).arg(arch).arg(&out).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    (fs::read(&out).unwrap(), String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn long_the_kernels_are_what_nvrtc_makes_of_their_sources() {
    // `.ci/setup gpu` has told why.
    let Some(library) = library() else { return eprintln!("skipped: there is no NVRTC (`.ci/setup gpu` gets it)") };
    for (name, kernel) in [("interpreter", KERNEL_PTX), ("allreduce", ALLREDUCE_PTX)] {
        let (ptx, _) = compile(&library, &format!("{name}.cu"), "compute_80");
        if std::env::var_os("ANTIPHON_UPDATE").is_some() {
            fs::write(Path::new(CRATE).join(format!("cuda/{name}.ptx")), &ptx).unwrap();
        } else {
            assert!(ptx == kernel.as_bytes(), "`make kernels` makes {name}.ptx anew");
        }
    }
    let all: [(&str, usize, &[&str]); 3] = [
        ("interpreter.cu", 7, &["sm_80", "sm_90", "sm_100"]),
        ("allreduce.cu", 7, &["sm_80", "sm_90", "sm_100"]),
        // Nothing chooses them. Older GPUs have no such instructions.
        ("multimem.cu", 3, &["sm_90", "sm_100"]),
    ];
    for (name, kernels, archs) in all {
        for arch in archs {
            let (cubin, said) = compile(&library, name, arch);
            assert!(cubin.starts_with(b"\x7fELF"), "{name}, {arch}");
            let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<u32>().ok());
            let registers: Vec<u32> = said.split("Used ").skip(1).filter_map(number).collect();
            assert_eq!(registers.len(), kernels, "{name}, {arch}: {said}");
            assert!(registers.iter().all(|count| *count <= MOST_REGISTERS), "{name}, {arch}: {registers:?}");
            let unspilled = said.matches("0 bytes spill stores, 0 bytes spill loads").count();
            assert_eq!(unspilled, kernels, "{name}, {arch}: {said}");
        }
    }
}

/// What the ordering of memory rests on: how the flags are accessed, and that nothing is read around the caches' order.
#[test]
fn flags_are_acquired_and_released_and_no_load_bypasses_them() {
    for needed in ["ld.acquire.sys.global.u64", "st.release.sys.global.u64"] {
        assert!(KERNEL_PTX.contains(needed) && ALLREDUCE_PTX.contains(needed), "{needed}");
    }
    for needed in ["ld.acquire.gpu", "st.release.gpu"] {
        assert!(KERNEL_PTX.contains(needed), "{needed}");
    }
    for forbidden in ["ld.global.nc", "ld.volatile", "ldu.", ".local", "call."] {
        assert!(!KERNEL_PTX.contains(forbidden) && !ALLREDUCE_PTX.contains(forbidden), "{forbidden}");
    }
}
