//! Options of sockets that keep queues short.
//!
//! Without them, a socket accepts megabytes at once and sends them as fast as its congestion window allows. Later bytes
//! of other sockets, also acknowledgements, then wait in queues before the network, or are lost there.

use rustix::net::sockopt::{set_tcp_congestion, tcp_congestion};
use std::ffi::{c_int, c_uint};
use std::io;
use std::net::TcpStream;
use std::os::fd::AsRawFd;

/// Makes a socket accept data only while fewer than `bytes` bytes wait to be sent.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn limit_unsent(socket: &TcpStream, bytes: c_uint) -> io::Result<()> {
    set(socket, libc::IPPROTO_TCP, libc::TCP_NOTSENT_LOWAT, bytes)
}

/// Makes a socket send at most `rate` bytes per second, evenly.
///
/// # Errors
/// If the kernel refuses.
pub(super) fn pace(socket: &TcpStream, rate: f64) -> io::Result<()> {
    set(socket, libc::SOL_SOCKET, libc::SO_MAX_PACING_RATE, rate as u64)
}

/// How many bytes a socket has taken that its peer's computer has not confirmed; 0 if the kernel does not say.
pub(super) fn unsent(socket: &TcpStream) -> usize {
    let mut bytes: c_int = 0;
    // SAFETY: the descriptor is open as long as `socket` is borrowed, and the kernel writes one integer.
    let result = unsafe { libc::ioctl(socket.as_raw_fd(), libc::TIOCOUTQ, &raw mut bytes) };
    if result == 0 { usize::try_from(bytes).unwrap_or(0) } else { 0 }
}

/// Makes a socket fast if both its ends are on this computer.
///
/// # Errors
/// As [`heed_losses`].
pub(super) fn suit_computer(socket: &TcpStream) -> io::Result<()> {
    if is_local(socket) { heed_losses(socket) } else { Ok(()) }
}

/// So many bytes that are not yet sent may wait in the socket of a session. With less, the network has nothing to send while a rank
/// waits for its core.
const SESSION_UNSENT: c_uint = 256 << 10;

/// Makes the socket of a session answer soon: short messages, and requests for long ones, travel on the connection that carries
/// long ones, and would wait behind megabytes of them. Within a computer they wait for nothing.
///
/// # Errors
/// As [`heed_losses`] and [`limit_unsent`].
pub(crate) fn suit_session(socket: &TcpStream) -> io::Result<()> {
    if is_local(socket) { heed_losses(socket) } else { limit_unsent(socket, SESSION_UNSENT) }
}

/// Whether both ends of a connection are on this computer.
fn is_local(socket: &TcpStream) -> bool {
    let ends = socket.local_addr().and_then(|own| Ok((own.ip(), socket.peer_addr()?.ip())));
    ends.is_ok_and(|(own, peer)| own == peer || peer.to_canonical().is_loopback())
}

/// The environment variable that names the congestion control of paced and local sockets; `system` keeps the system's.
const CONGESTION: &str = "ANTIPHON_TCP_CONGESTION";

/// Makes a paced or local socket slow down only after losses. A paced socket pauses between messages. The usual
/// congestion controls misread these pauses: `bbr` takes them for the rate of the path, and `cubic` for its delay. The
/// plan knows the rates better, and its order keeps queues short. Within a computer nothing is lost, and `bbr` halves
/// the speed. Any other choice of the system, such as `dctcp`, was made for a reason and stays.
///
/// # Errors
/// If the kernel refuses the congestion control that the user named.
pub(super) fn heed_losses(socket: &TcpStream) -> io::Result<()> {
    match std::env::var(CONGESTION) {
        Ok(name) if name == "system" => Ok(()),
        Ok(name) => set_tcp_congestion(socket, &name)
            .map_err(|error| io::Error::other(format!("{CONGESTION}={name} is refused by this computer: {error}"))),
        Err(_) => {
            if tcp_congestion(socket).is_ok_and(|name| name.starts_with("bbr") || name == "cubic") {
                // Every kernel has `reno`, but may not allow its choice.
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
