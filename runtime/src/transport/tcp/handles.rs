//! Second handles of a rank's sockets, for the time of a task.
//!
//! The principal type is [`Handles`]. While a rank keeps them, its peers see no connection end, even if its lanes are
//! dropped. The handles also show which connections the peers have ended, whether or not they carried data.

use crate::transport::network::KeptConnections;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use std::collections::BTreeSet;
use std::net::TcpStream;
use topology::Rank;

/// Second handles of a rank's sockets, with the ranks at the other ends.
pub(crate) struct Handles(Vec<(Rank, TcpStream)>);

impl Handles {
    pub(super) fn new(sockets: Vec<(Rank, TcpStream)>) -> Self {
        Self(sockets)
    }
}

impl KeptConnections for Handles {
    fn ended(&self) -> BTreeSet<Rank> {
        let mut asked: Vec<PollFd<'_>> =
            self.0.iter().map(|(_, socket)| PollFd::new(socket, PollFlags::RDHUP)).collect();
        // It fails only if the kernel has no memory. Then no connection counts as ended.
        let _ = poll(&mut asked, Some(&Timespec { tv_sec: 0, tv_nsec: 0 }));
        let has_ended = |asked: &PollFd<'_>| !asked.revents().is_empty();
        self.0.iter().zip(&asked).filter(|(_, asked)| has_ended(asked)).map(|((peer, _), _)| *peer).collect()
    }
}

/// Raises the limit of open files of this process as far as the system allows: a rank has a socket for every lane.
pub(crate) fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    // If the system refuses, a later failure names the limit.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
}

#[cfg(test)]
mod tests {
    use super::super::lane::tests::pair;
    use super::*;
    use std::io::Write;
    use std::net::Shutdown;

    #[test]
    fn connections_that_either_end_has_cut_have_ended_even_if_bytes_wait_there() {
        let [(idle, _kept), (theirs, mut other), (ours, _far)] = [(); 3].map(|()| pair());
        other.write_all(&[1]).unwrap();
        drop(other);
        let handles = Handles::new(vec![(Rank(1), idle), (Rank(2), theirs), (Rank(3), ours.try_clone().unwrap())]);
        // The end of a stream may take a moment to arrive.
        assert!((0..1_000_000).any(|_| handles.ended() == BTreeSet::from([Rank(2)])));
        ours.shutdown(Shutdown::Both).unwrap();
        assert_eq!(handles.ended(), BTreeSet::from([Rank(2), Rank(3)]));
        assert!(Handles::new(Vec::new()).ended().is_empty());
    }
}
