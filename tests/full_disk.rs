//! A full disk, a real one: the error names the file and the system's reason, and nothing crashes.

use crate::binary::skip;
use std::fs::File;
use std::process::{Command, Output};

/// Commands that write files, and the file that each cannot write.
const WRITERS: [(&str, &str); 6] = [
    ("synth --topology ring:4 --collective allgather --size 1MB -o plan.json", "plan.json"),
    ("synth --topology ring:4 --collective allgather --sizes 1KB,4KB -o plans", "plans"),
    ("sweep --topology ring:4 --collective allgather --sizes 1KB --jobs 1 -o cells", "cells"),
    ("profile --ranks 2 --quick -o profile.yaml", "profile.yaml"),
    ("simulate PLAN --trace trace.json", "trace.json"),
    // This one stores a secret for the ranks of this user.
    ("run --collective allreduce --size 1KB --rank 0 --world-size 2 --master 127.0.0.1:9", "antiphon/secret"),
];

fn words(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn what_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let binary = env!("CARGO_BIN_EXE_antiphon");
    let plan = crate::binary::repository("tests/data/example-schedule.json").display().to_string();
    // Only this shell and its children see the mount, and it disappears with them.
    let full =
        "mount -t tmpfs -o size=64k none . && cd \"$PWD\" && cat /dev/zero >fill; [ -s fill ] || exit 99; exec \"$@\"";
    for (line, file) in WRITERS {
        let mut command = Command::new("unshare");
        command.args(["-m", "sh", "-c", full, "sh", binary]).args(line.replace("PLAN", &plan).split(' '));
        command.current_dir(folder.path()).env("HOME", folder.path()).env_remove("XDG_STATE_HOME");
        let output = match command.output() {
            Ok(output) if ![Some(1), Some(99)].contains(&output.status.code()) => output,
            other => return skip(&format!("a full disk: no file system can be mounted: {other:?}")),
        };
        let words = words(&output);
        let named = words.lines().any(|line| line.starts_with("error: ") && line.contains(file));
        assert!(output.status.code() == Some(2) && named, "{line}: {words}");
        assert!(words.contains("No space left on device") && !words.contains("panicked"), "{line}: {words}");
    }
}

#[test]
fn rows_that_nobody_can_keep_end_the_job() {
    for line in ["run --collective allreduce --size 1KB --ranks 2 --json", "topology show dgx1 --json"] {
        let full = File::options().write(true).open("/dev/full").unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_antiphon")).args(line.split(' ')).stdout(full).output().unwrap();
        let words = words(&output);
        assert!(output.status.code() == Some(1) && words.contains("No space left on device"), "{line}: {words}");
    }
}
