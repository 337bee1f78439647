//! Options of sockets that keep queues short.
//!
//! Left alone, a socket takes megabytes at once and sends them as fast as its congestion window allows. What is sent later
//! over other sockets, acknowledgements among it, then waits in the queues before the network, or is lost there.

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
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

/// Whether both ends of a connection are on this computer.
pub(super) fn is_local(socket: &TcpStream) -> bool {
    let ends = socket.local_addr().and_then(|own| Ok((own.ip(), socket.peer_addr()?.ip())));
    ends.is_ok_and(|(own, peer)| own == peer || peer.to_canonical().is_loopback())
}

/// Names the congestion control of paced and local sockets, or leaves the system's with `system`.
const CONGESTION: &str = "ANTIPHON_TCP_CONGESTION";

/// Makes a paced or local socket slow down for losses only. Messages in turn come with pauses between them. The usual controls
/// take those for signs of the path: `bbr` for its rate, and `cubic` for its delay. A plan's rates are known better than that,
/// and its order keeps queues short; within a computer nothing is lost, and `bbr` with its pace is half as fast.
/// What else a system was given, such as `dctcp`, it was given for a reason, and stays.
///
/// # Errors
/// If the kernel refuses the one that the user named.
pub(super) fn heed_losses(socket: &TcpStream) -> io::Result<()> {
    match std::env::var(CONGESTION) {
        Ok(name) if name == "system" => Ok(()),
        Ok(name) => set_tcp_congestion(socket, &name)
            .map_err(|error| io::Error::other(format!("{CONGESTION}={name} is refused by this computer: {error}"))),
        Err(_) => {
            if tcp_congestion(socket).is_ok_and(|name| name.starts_with("bbr") || name == "cubic") {
                // Every kernel has it, but may be told not to let it be chosen.
                let _ = set_tcp_congestion(socket, "reno");
            }
            Ok(())
        }
    }
}

fn set<T>(socket: &TcpStream, level: c_int, option: c_int, value: T) -> io::Result<()> {
    let length = size_of::<T>() as libc::socklen_t;
    // SAFETY: the descriptor is open as long as `socket` is borrowed, and the kernel reads `length` bytes of `value`.
    let result = unsafe { libc::setsockopt(socket.as_raw_fd(), level, option, (&raw const value).cast(), length) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}
