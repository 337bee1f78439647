//! What `make install` leaves: `plugin/install.sh` into a folder of its own, and programs that are compiled against it.
#![allow(clippy::unwrap_used, missing_docs)]

use std::path::{Path, PathBuf};
use std::process::Command;

const CRATE: &str = env!("CARGO_MANIFEST_DIR");

/// The glibc that `docs/tasks.md` says is needed.
const NEWEST_GLIBC: (u32, u32) = (2, 34);

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}: {said}{}", String::from_utf8_lossy(&output.stderr));
    said
}

/// The static library of this build, beside the test or one folder up.
fn archive() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let folder = test.parent().unwrap();
    let found = [folder, folder.parent().unwrap()].map(|at| at.join("libantiphon.a"));
    found.into_iter().find(|at| at.exists()).unwrap_or_else(|| panic!("no libantiphon.a near {}", test.display()))
}

/// Compiles an example as a user would, with what pkg-config says, and runs it as one rank.
fn compiles_and_runs(prefix: &Path, compiler: &[&str], options: &[&str], needs_shared: bool) {
    let flags = output(
        Command::new("pkg-config").env("PKG_CONFIG_PATH", prefix.join("lib/pkgconfig")).args(options).arg("antiphon"),
    );
    let program = prefix.join("program");
    let mut command = Command::new(compiler[0]);
    command.args(&compiler[1..]).args(["-Wall", "-Wextra", "-Werror", "-o"]).arg(&program);
    output(
        command.arg(Path::new(CRATE).join("examples/all_reduce.c")).args(["-x", "none"]).args(flags.split_whitespace()),
    );
    let needed = output(Command::new("objdump").arg("-p").arg(&program));
    assert_eq!(needed.contains("libantiphon"), needs_shared, "{compiler:?} {options:?}: {needed}");
    let said = output(Command::new(&program).env("LD_LIBRARY_PATH", prefix.join("lib")));
    assert!(!said.is_empty(), "{compiler:?} {options:?}");
}

/// Only the functions of the header are visible, each with a version, and the header has no others.
fn exports_the_header(library: &Path) {
    let exported = output(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let mut names = Vec::new();
    for line in exported.lines() {
        let symbol = line.split_whitespace().last().unwrap();
        match symbol.split_once("@@") {
            Some((name, version)) => {
                assert!(name.starts_with("antiphon_") && version.starts_with("ANTIPHON_"), "{line}");
                names.push(name.to_owned());
            }
            // The version itself is a symbol too.
            None => assert!(symbol.starts_with("ANTIPHON_"), "{line} has no version"),
        }
    }
    let header = std::fs::read_to_string(Path::new(CRATE).join("../include/antiphon.h")).unwrap();
    let is_function = |line: &&str| line.starts_with("antiphon_") || line.starts_with("const char *antiphon_");
    let before = header.lines().filter(is_function).filter_map(|line| Some(line.split_once('(')?.0));
    let mut declared: Vec<&str> = before.filter_map(|before| before.rsplit([' ', '*']).next()).collect();
    declared.sort_unstable();
    names.sort_unstable();
    assert_eq!(names, declared);
}

/// Without the MILP solver, and with no newer glibc than the documents say.
fn has_no_solver_and_an_old_glibc(prefix: &Path, library: &Path, said: &str) {
    let symbols = output(Command::new("nm").arg("-C").arg(prefix.join("lib/libantiphon.a")));
    let solver = symbols.lines().find(|line| line.to_ascii_lowercase().contains("highs"));
    assert!(solver.is_none(), "{solver:?}");
    let imported = output(Command::new("objdump").arg("-T").arg(library));
    let versions = imported.split("GLIBC_").skip(1).filter_map(|rest| {
        let mut numbers = rest.split(|it: char| !it.is_ascii_digit()).map(str::parse::<u32>);
        Some((numbers.next()?.ok()?, numbers.next()?.ok()?))
    });
    let newest = versions.max().unwrap();
    assert!(newest <= NEWEST_GLIBC, "needs glibc {newest:?}, and docs/tasks.md says {NEWEST_GLIBC:?}");
    assert!(said.contains(&format!("needs glibc {}.{}", newest.0, newest.1)), "{said}");
}

#[test]
fn installed_libraries_serve_programs() {
    if ["pkg-config", "nm", "objdump"].iter().any(|tool| Command::new(tool).arg("--version").output().is_err()) {
        // `.ci/setup install` has told why.
        return eprintln!("skipped: pkg-config, nm or objdump is missing");
    }
    let folder = tempfile::tempdir().unwrap();
    let prefix = folder.path();
    let said = output(Command::new(Path::new(CRATE).join("install.sh")).arg(archive()).arg(prefix));
    let library = prefix.join("lib/libantiphon.so");
    let is_static = ["--static", "--cflags", "--libs"];
    let c = ["cc", "-std=c11"];
    compiles_and_runs(prefix, &c, &["--cflags", "--libs"], true);
    compiles_and_runs(prefix, &["c++", "-std=c++17", "-x", "c++"], &["--cflags", "--libs"], true);
    exports_the_header(&library);
    has_no_solver_and_an_old_glibc(prefix, &library, &said);
    // The linker takes the static library where there is no other one.
    for name in std::fs::read_dir(prefix.join("lib")).unwrap().map(|entry| entry.unwrap().path()) {
        if name.file_name().unwrap().to_str().unwrap().contains(".so") {
            std::fs::remove_file(name).unwrap();
        }
    }
    compiles_and_runs(prefix, &c, &is_static, false);
}
