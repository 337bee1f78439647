//! What the library says on its own: nothing, unless something is ignored, or `ANTIPHON_DEBUG` asks.
//!
//! The principal type is [`Says`].

/// What a rank says. One rank speaks for all, because all decide alike.
#[derive(Clone, Copy, Default)]
pub(crate) struct Says {
    /// Something that a user asked for is not done.
    pub(crate) warnings: bool,
    /// Every decision, on one line.
    pub(crate) decisions: bool,
}

impl Says {
    pub(crate) fn warn(self, text: impl FnOnce() -> String) {
        if self.warnings {
            say(&text());
        }
    }

    pub(crate) fn info(self, text: impl FnOnce() -> String) {
        if self.decisions {
            say(&text());
        }
    }
}

#[expect(clippy::print_stderr, reason = "a library has no other place to say that it ignores something")]
pub(crate) fn say(text: &str) {
    // In one piece, so that lines of several processes are not mixed.
    let line = format!("antiphon: {text}\n");
    eprint!("{line}");
}
