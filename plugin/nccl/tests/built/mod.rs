//! What the tests load and run: the library of this build, programs in C, and the real NCCL where there is one.

use std::path::{Path, PathBuf};
use std::process::Command;

pub(crate) const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// The shared library of this build.
pub(crate) fn library() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let names = [folder, folder.parent().unwrap()].map(|at| at.join("libantiphon_nccl.so"));
    names.into_iter().find(|name| name.exists()).unwrap_or_else(|| panic!("no library near {}", test.display()))
}

/// Compiles a file of `tests/c` without any warning.
pub(crate) fn compile(source: &str, output: &Path, arguments: &[&str]) {
    let mut command = Command::new("cc");
    command.args(["-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-Wno-sign-compare", "-o"]).arg(output);
    command.arg(Path::new(CRATE).join("tests/c").join(source)).args(arguments).args(["-ldl", "-lpthread"]);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// The real library, which `.ci/setup gpu` gets from PyPI and tells why if it cannot.
pub(crate) fn real_nccl() -> Option<PathBuf> {
    let root = Path::new(CRATE).join("../../target/python/gpu/lib");
    let packages = std::fs::read_dir(root).ok()?.filter_map(Result::ok);
    let mut found = packages.map(|entry| entry.path().join("site-packages/nvidia/nccl/lib/libnccl.so.2"));
    found.find(|path| path.exists())
}
