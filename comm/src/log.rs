//! What the library says on its own: nothing, unless something is ignored, or `ANTIPHON_DEBUG` asks.
//!
//! The principal type is [`Says`].

use std::io::Write;

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

/// A library has no other place to say that it ignores something.
pub(crate) fn say(text: &str) {
    say_to(&mut std::io::stderr(), text);
}

fn say_to(place: &mut dyn Write, text: &str) {
    // In one piece, so that lines of several processes are not mixed. A program whose standard error is full or closed
    // goes on.
    let _ = place.write_all(format!("antiphon: {}\n", printable(text)).as_bytes());
}

/// A text on one line. What a file says may contain characters that do something to a terminal, or look like a line of their own.
pub(crate) fn printable(text: &str) -> String {
    topology::shorten_to(text, usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_said_is_dropped() {
        let mut room = [0; 5];
        say_to(&mut &mut room[..], "more than there is room for");
        assert_eq!(&room, b"antip");
    }

    #[test]
    fn what_is_said_is_one_line_without_commands_for_a_terminal() {
        let mut said = Vec::new();
        say_to(&mut said, "ring\nantiphon: rank 7 has left\u{1b}[31m");
        assert_eq!(said, b"antiphon: ring\\u{a}antiphon: rank 7 has left\\u{1b}[31m\n");
    }
}
