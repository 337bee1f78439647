//! Ranks that a command of this project has started: they end with it.
//!
//! The principal function is [`end_with_command`].

use std::io::Write;
use std::path::Path;
use std::sync::Once;
use std::time::Duration;

/// The variable with the number of the process that has started a rank.
pub const COMMAND: &str = "ANTIPHON_LAUNCHER";

/// How often a rank looks whether that process lives.
const LOOK: Duration = Duration::from_millis(200);

/// Ends this process, from now on, when the command that has started it as a rank is gone: nobody wants its result any more, and the
/// other ranks may be gone, too, before this one has found them. Where processes cannot be seen, a rank ends with its work.
pub(crate) fn end_with_command() {
    static WATCHED: Once = Once::new();
    let command = std::env::var(COMMAND).ok().and_then(|number| number.parse::<u32>().ok());
    let Some(command) = command else { return };
    let is_there = |process: u32| Path::new("/proc").join(process.to_string()).exists();
    let watch = move || {
        while is_there(command) || !is_there(std::process::id()) {
            std::thread::sleep(LOOK);
        }
        let why =
            format!("antiphon: this rank ends, because the command that has started it is gone (process {command})");
        // Nobody may be there to read it.
        drop(writeln!(std::io::stderr(), "{why}"));
        std::process::exit(1);
    };
    // Without the thread, a rank ends with its work.
    WATCHED.call_once(|| drop(std::thread::Builder::new().name("antiphon-command".to_owned()).spawn(watch)));
}
