//! Cuts connections of other processes, as a network would.

use rustix::process::{ForeignRawFd, Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};
use std::net::{Shutdown, TcpStream};

/// Cuts all TCP connections of a process. Returns whether there was one. A process that has ended has none.
pub(crate) fn cut(process: u32) -> bool {
    let Some(pidfd) = Pid::from_raw(process as i32).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok()) else {
        return false;
    };
    let Ok(descriptors) = std::fs::read_dir(format!("/proc/{process}/fd")) else { return false };
    let sockets = descriptors.filter_map(|entry| {
        let entry = entry.ok()?;
        let is_socket = std::fs::read_link(entry.path()).ok()?.to_string_lossy().starts_with("socket:");
        let number: ForeignRawFd = entry.file_name().to_str()?.parse().ok()?;
        is_socket.then(|| pidfd_getfd(&pidfd, number, PidfdGetfdFlags::empty()).ok()).flatten()
    });
    let streams: Vec<_> = sockets.map(TcpStream::from).filter(|stream| stream.peer_addr().is_ok()).collect();
    // A process may have several handles of a socket. The first cut ends the connection for all of them.
    streams.iter().for_each(|stream| drop(stream.shutdown(Shutdown::Both)));
    !streams.is_empty()
}
