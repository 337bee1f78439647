//! The trampolines for AArch64, which cannot run here, are translated.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::process::Command;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// The trampolines of the other processor are translated, if the compiler has its library.
#[test]
fn trampolines_for_aarch64_are_translated() {
    let folder = tempfile::tempdir().unwrap();
    let source = Path::new(CRATE).join("src");
    let text = format!(
        r#"#![allow(dead_code)]
        #[path = "{0}/names.rs"] mod names;
        #[path = "{0}/trampolines.rs"] mod trampolines;
        mod real {{
            use std::ffi::c_void;
            use std::sync::atomic::AtomicPtr;
            pub(crate) static ADDRESSES: [AtomicPtr<c_void>; crate::names::NcclName::ALL.len()] =
                [const {{ AtomicPtr::new(std::ptr::null_mut()) }}; crate::names::NcclName::ALL.len()];
            pub(crate) fn address(_: crate::names::NcclName) -> *const c_void {{ std::ptr::null() }}
        }}"#,
        source.display()
    );
    let file = folder.path().join("trampolines.rs");
    std::fs::write(&file, text).unwrap();
    let target = "aarch64-unknown-linux-gnu";
    let mut compiler = Command::new("rustc");
    compiler.args(["--edition", "2024", "--target", target, "--crate-type", "staticlib", "--emit", "obj"]);
    let output = compiler.arg("-o").arg(folder.path().join("out.o")).arg(&file).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    if said.contains("may not be installed") {
        return eprintln!("skipped: rustup target add {target}");
    }
    assert!(output.status.success(), "{said}");
    let object = std::fs::read(folder.path().join("out.o")).unwrap();
    // An object file for AArch64 (183), with the names inside; one name may be the end of another.
    assert_eq!(object[18..20], [183, 0]);
    for name in ["ncclSend", "pncclSend", "pncclAllReduce"] {
        let quoted = [name.as_bytes(), b"\0"].concat();
        assert!(object.windows(quoted.len()).any(|part| part == quoted), "{name}");
    }
}
