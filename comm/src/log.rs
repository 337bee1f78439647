//! What the library says on its own: nothing, unless something is ignored, or `ANTIPHON_DEBUG` asks.
//!
//! The variable is read when a communicator is made from the environment ([`listen`]).

use std::sync::atomic::{AtomicBool, Ordering};

static SAYS_INFO: AtomicBool = AtomicBool::new(false);

/// Whether decisions are said from now on.
pub(crate) fn listen(level: Option<&str>) {
    if let Some(level) = level {
        SAYS_INFO.store(matches!(level, "info" | "debug" | "trace" | "1"), Ordering::Relaxed);
    }
}

#[expect(clippy::print_stderr, reason = "a library has no other place to say that it ignores something")]
fn say(text: &str) {
    // In one piece, so that lines of several processes are not mixed.
    let line = format!("antiphon: {text}\n");
    eprint!("{line}");
}

/// Something that a user asked for is not done.
pub(crate) fn warn(text: &str) {
    say(text);
}

/// A decision, one line.
pub(crate) fn info(text: impl FnOnce() -> String) {
    if SAYS_INFO.load(Ordering::Relaxed) {
        say(&text());
    }
}
