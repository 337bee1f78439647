//! The C header: it is made from the Rust definitions, and compilers take it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::Path;
use std::process::Command;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

fn header() -> String {
    let config = cbindgen::Config::from_file(Path::new(CRATE).join("cbindgen.toml")).unwrap();
    let made = cbindgen::Builder::new().with_crate(CRATE).with_config(config).generate().unwrap();
    let mut text = Vec::new();
    made.write(&mut text);
    // Whoever calls from C knows nothing of Rust's safety.
    let text = String::from_utf8(text).unwrap();
    let mut kept = String::new();
    let mut is_skipped = false;
    for line in text.lines() {
        is_skipped = line.trim() == "* # Safety" || is_skipped && line.trim() != "*/";
        if !is_skipped {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept.replace(" *\n */", " */")
}

#[test]
fn the_header_is_that_of_the_library() {
    let path = Path::new(CRATE).join("../include/antiphon.h");
    let made = header();
    if std::env::var_os("ANTIPHON_UPDATE").is_some() {
        std::fs::write(&path, &made).unwrap();
    }
    let kept = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(kept, made, "ANTIPHON_UPDATE=1 cargo test -p plugin header makes it anew");
}

/// As C and as C++, with all warnings.
#[test]
fn compilers_take_the_header() {
    let folder = tempfile::tempdir().unwrap();
    for (compiler, standard, name) in [("cc", "-std=c11", "a.c"), ("c++", "-std=c++17", "a.cc")] {
        let source = folder.path().join(name);
        std::fs::write(
            &source,
            "#include \"antiphon.h\"\nint main(void) { return (int)sizeof(antiphon_comm_t) == 0; }\n",
        )
        .unwrap();
        let mut command = Command::new(compiler);
        command.args([standard, "-Wall", "-Wextra", "-Werror", "-pedantic", "-fsyntax-only", "-I"]);
        let output = command.arg(Path::new(CRATE).join("../include")).arg(&source).output().unwrap();
        assert!(output.status.success(), "{compiler}: {}", String::from_utf8_lossy(&output.stderr));
    }
}
