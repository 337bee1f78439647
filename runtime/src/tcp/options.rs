//! Options of sockets that keep queues short.
//!
//! Left alone, a socket takes megabytes at once and sends them as fast as its congestion window allows. What is sent later
//! over other sockets, acknowledgements among it, then waits in the queues before the network, or is lost there.

use std::ffi::{c_int, c_uint};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Makes a socket accept data only while less than this many bytes wait to be sent.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn limit_unsent(socket: &TcpStream, bytes: c_uint) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)
}

/// Makes a socket send at most so many bytes per second, evenly.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn pace(socket: &TcpStream, rate: f64) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate as u64)
}

fn set<T>(socket: &TcpStream, level: c_int, option: c_int, value: T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `socket` is borrowed, and the kernel reads `length` bytes of `value`.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
