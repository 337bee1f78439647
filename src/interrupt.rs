//! Ctrl-C: a planner returns its best answer so far; a measuring command says that it was interrupted, and ends.
//!
//! The principal functions are [`cancels`], [`ends`] and [`keeps`]. The first one called in a process decides the effect of
//! Ctrl-C.

use crate::failure::Failure;
use crate::screen::Screen;
use nix::sys::signal::{SigSet, Signal};
use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use synth::Cancel;

/// How long a rank of a launcher may take to keep what it has.
const KEEPING: Duration = Duration::from_secs(10);

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

/// For a rank of a launcher, which sends SIGINT or SIGTERM, or one after the other, to all ranks: the first one cancels, and the
/// program ends in a bounded time. This has to be the first thread.
pub(crate) fn keeps() -> Cancel {
    let cancel = Cancel::default();
    let raise = {
        let cancel = cancel.clone();
        move || {
            cancel.cancel();
            if RAISED.swap(true, Ordering::Relaxed) {
                return;
            }
            let end = || {
                std::thread::sleep(KEEPING);
                std::process::exit(i32::from(EXIT_CODE));
            };
            drop(std::thread::Builder::new().name("antiphon-end".to_owned()).spawn(end));
        }
    };
    // All later threads inherit what the first one does not receive. Where SIGTERM cannot be waited for, it ends the program.
    let mut term = SigSet::empty();
    term.add(Signal::SIGTERM);
    if term.thread_block().is_ok() {
        let raise = raise.clone();
        let wait = move || {
            while term.wait().is_ok() {
                raise();
            }
        };
        if std::thread::Builder::new().name("antiphon-term".to_owned()).spawn(wait).is_err() {
            let _ = term.thread_unblock();
        }
    }
    drop(ctrlc::set_handler(raise));
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
