//! Ctrl-C: a planner returns its best answer so far; a measuring command says that it was interrupted, and ends.
//!
//! The principal functions are [`cancels`] and [`ends`]. The first one called in a process decides the effect of
//! Ctrl-C.

use crate::failure::Failure;
use crate::screen::Screen;
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use synth::Cancel;

/// The exit code of a process that Ctrl-C ended, as in shells.
pub(crate) const EXIT_CODE: u8 = 130;

static RAISED: AtomicBool = AtomicBool::new(false);

/// Whether Ctrl-C has asked a planner to stop.
pub(crate) fn was_raised() -> bool {
    RAISED.load(Ordering::Relaxed)
}

/// Raised by Ctrl-C; a second one ends the program at once.
pub(crate) fn cancels() -> Cancel {
    let cancel = Cancel::default();
    let raised = cancel.clone();
    // A second handler cannot be set; the first one raises a cancellation already.
    drop(ctrlc::set_handler(move || {
        if raised.is_cancelled() {
            std::process::exit(i32::from(EXIT_CODE));
        }
        raised.cancel();
        RAISED.store(true, Ordering::Relaxed);
    }));
    cancel
}

/// Makes Ctrl-C end the program with a message. Ranks notice that their launcher has ended, and end as well.
pub(crate) fn ends(screen: &Screen) {
    let is_json = screen.is_json();
    static SAID: AtomicBool = AtomicBool::new(false);
    drop(ctrlc::set_handler(move || {
        if !SAID.swap(true, Ordering::Relaxed) {
            let mut stderr = std::io::stderr().lock();
            if stderr.is_terminal() {
                // Removes the progress line first.
                drop(write!(stderr, "\r\x1b[K"));
            }
            drop(writeln!(stderr, "{}", Failure::interrupted().shown(is_json)));
        }
        std::process::exit(i32::from(EXIT_CODE));
    }));
}
