//! Threads of the library in the process of somebody else.
//!
//! The principal function is [`spawn`].

use std::io;
use std::thread::JoinHandle;

/// Starts a thread that no signal of the process interrupts: those are for the threads of the application, whose handlers must
/// not run on a small stack that they do not know.
///
/// # Errors
/// If the operating system has no thread.
pub(crate) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    let thread = std::thread::Builder::new().name(name.to_owned());
    let own = block_all()?;
    // It has the mask of the thread that starts it.
    let started = thread.spawn(work);
    restore(&own);
    started
}

/// Blocks all signals of this thread; what was blocked before.
fn block_all() -> io::Result<libc::sigset_t> {
    // SAFETY: both sets are memory of this function. The first is filled before it is read, and so is the second, or it is not
    // used.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        let mut before: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        match libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before) {
            0 => Ok(before),
            error => Err(io::Error::from_raw_os_error(error)),
        }
    }
}

fn restore(before: &libc::sigset_t) {
    // SAFETY: the set came from the kernel. It fails only for an unknown way of changing.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, before, std::ptr::null_mut()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocks_interrupts() -> bool {
        // SAFETY: the set is memory of this function, and is filled before it is read.
        unsafe {
            let mut now: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_SETMASK, std::ptr::null(), &mut now);
            libc::sigismember(&now, libc::SIGINT) == 1
        }
    }

    #[test]
    fn only_the_new_thread_hears_no_signals() {
        let (tell, hear) = std::sync::mpsc::channel();
        spawn("quiet", move || tell.send(blocks_interrupts()).unwrap()).unwrap().join().unwrap();
        assert!(hear.recv().unwrap());
        assert!(!blocks_interrupts());
    }
}
