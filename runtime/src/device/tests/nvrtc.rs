//! The kernels and NVRTC: their PTX is what it makes of the sources, without spilled registers.

use crate::device::images::{ALLREDUCE, INTERPRETER};
use crate::device::{ALLREDUCE_PTX, KERNEL_PTX};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");
/// The most registers of a thread, so that at least 512 threads fit on a multiprocessor with 65536 registers.
const MOST_REGISTERS: u32 = 128;

/// A file of the packages of NVIDIA's that `.ci/setup gpu` gets from PyPI.
fn packaged(file: &str) -> Option<PathBuf> {
    let root = Path::new(CRATE).join("../target/python/gpu/lib");
    let packages = fs::read_dir(root).ok()?.filter_map(Result::ok);
    let mut found = packages.map(|entry| entry.path().join("site-packages/nvidia").join(file));
    found.find(|path| path.exists())
}

/// NVRTC.
fn library() -> Option<PathBuf> {
    packaged("cuda_nvrtc/lib/libnvrtc.so.12")
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
            let kept = Path::new(CRATE).join("cuda").join(name.replace("cu", &format!("{arch}.cubin")));
            if std::env::var_os("ANTIPHON_UPDATE").is_some() && name != "multimem.cu" {
                fs::write(&kept, &cubin).unwrap();
            } else if name != "multimem.cu" {
                assert!(fs::read(&kept).unwrap() == cubin, "`make kernels` makes {} anew", kept.display());
            }
            let number = |text: &str| text.split_whitespace().next().and_then(|word| word.parse::<u32>().ok());
            let registers: Vec<u32> = said.split("Used ").skip(1).filter_map(number).collect();
            assert_eq!(registers.len(), kernels, "{name}, {arch}: {said}");
            assert!(registers.iter().all(|count| *count <= MOST_REGISTERS), "{name}, {arch}: {registers:?}");
            let unspilled = said.matches("0 bytes spill stores, 0 bytes spill loads").count();
            assert_eq!(unspilled, kernels, "{name}, {arch}: {said}");
        }
    }
}

/// The instructions of each kernel of a cubin, by its name.
fn instructions(disassembler: &Path, code: &[u8]) -> BTreeMap<String, Vec<String>> {
    let folder = tempfile::tempdir().unwrap();
    // Files of packages may not be executable.
    let (program, file) = (folder.path().join("nvdisasm"), folder.path().join("code"));
    fs::copy(disassembler, &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    fs::write(&file, code).unwrap();
    let output = Command::new(&program).arg("-c").arg(&file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let (mut kernels, mut name) = (BTreeMap::<String, Vec<String>>::new(), String::new());
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        if let Some(begun) =
            line.strip_prefix(".section\t.text.").or_else(|| line.strip_prefix("//--------------------- .text."))
        {
            name = begun.split([',', ' ']).next().unwrap().to_owned();
        } else if let Some((_, rest)) = line.split_once("*/").filter(|_| !name.is_empty()) {
            // After the address, and perhaps a predicate.
            let words = rest.split_whitespace().find(|word| !word.starts_with('@'));
            kernels.entry(name.clone()).or_default().extend(words.map(|word| word.trim_end_matches(';').to_owned()));
        }
    }
    kernels
}

/// What ptxas has made of it: flags are read past the caches of a multiprocessor, which are then emptied; what comes before a flag is written
/// before it; data move in vectors; nothing is kept in memory that is no memory of the program, and nothing is read as a constant.
#[test]
fn long_the_code_of_the_kernels_keeps_the_order_of_memory() {
    let Some(disassembler) = packaged("cu13/bin/nvdisasm") else {
        return eprintln!("skipped: there is no nvdisasm (`.ci/setup gpu` gets it)");
    };
    for images in [&INTERPRETER, &ALLREDUCE] {
        for major in [8, 9, 10] {
            let kernels = instructions(&disassembler, images.cubin(major).unwrap());
            assert_eq!(kernels.len(), 7, "{:?}", kernels.keys());
            for (name, code) in kernels {
                let what = format!("{name}, sm_{major}0");
                let count = |begin: &str, parts: &[&str]| {
                    let is_it = |of: &&String| of.starts_with(begin) && parts.iter().all(|part| of.contains(part));
                    code.iter().filter(is_it).count()
                };
                let acquired = count("LDG", &[".64", ".STRONG."]);
                assert!(
                    acquired > 0 && acquired == count("CCTL", &["IVALL"]),
                    "{what}: each acquire empties the cache"
                );
                let released = count("STG", &[".64", ".STRONG.SYS"]);
                assert!(
                    released > 0 && count("MEMBAR", &[".SYS"]) == released,
                    "{what}: a barrier before each release"
                );
                assert!(count("LD.E", &[".128"]) > 0 && count("ST.E", &[".128"]) > 0, "{what}: vectors");
                for forbidden in ["LDL", "STL", "LDG.E.CONSTANT"] {
                    assert_eq!(count(forbidden, &[]), 0, "{what}: {forbidden}");
                }
                assert_eq!(count("LD", &[".CONSTANT"]), 0, "{what}");
            }
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
