//! What ranks tell each other before they share memory, and what follows from it.
//!
//! The principal function is [`decide`]: from the same words all ranks come to the same.

use super::driver::{PlainMemory, has_descriptors, identity};
use super::error::PeerMemoryError;
use super::gather::RankOutcome;
use super::memory::{PeerTerms, PeerWay, note};
use super::sockets::{PeerListener, SocketName, process_number};
use crate::device::cuda::GpuDevice;
use std::os::unix::fs::MetadataExt;
use topology::Rank;

/// The version of what ranks tell each other.
const VERSION: u32 = 2;

/// What a rank says first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Introduction {
    version: u32,
    /// The ways that its driver has.
    ways: u32,
    bytes: u64,
    number: u64,
    computer: [u8; 16],
    /// Of networks and of users, as in containers: names of sockets, and users, mean the same in the same ones only.
    namespaces: [u64; 2],
    /// The number of the machine, counted from 1, if ranks share memory with those of their own only.
    machine: u64,
    process: [u8; 16],
    pub(super) gpu: [u8; 16],
    /// Zeros: it has none.
    pub(super) socket: SocketName,
}

impl Introduction {
    pub(super) fn encoded(&self) -> Vec<u8> {
        let Self { version, ways, bytes, number, computer, machine, process, gpu, socket, .. } = self;
        let [network, users] = self.namespaces;
        let words = [&version.to_le_bytes()[..], &ways.to_le_bytes(), &bytes.to_le_bytes(), &number.to_le_bytes()];
        let longs = [network.to_le_bytes(), users.to_le_bytes(), machine.to_le_bytes()].concat();
        [&words.concat()[..], computer, &longs, process, gpu, &socket.name, &socket.secret].concat()
    }

    pub(super) fn decoded(bytes: &[u8]) -> Self {
        let part = |at: usize| -> [u8; 16] { std::array::from_fn(|byte| bytes.get(at + byte).copied().unwrap_or(0)) };
        let long = |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| part(at)[byte]));
        Self {
            version: long(0) as u32,
            ways: (long(0) >> 32) as u32,
            bytes: long(8),
            number: long(16),
            computer: part(24),
            namespaces: [long(40), long(48)],
            machine: long(56),
            process: part(64),
            gpu: part(80),
            socket: SocketName { name: part(96), secret: part(112) },
        }
    }
}

/// The computer, as long as it runs.
fn computer() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
    std::array::from_fn(|at| {
        let pair = digits.get(2 * at..2 * at + 2).and_then(|pair| std::str::from_utf8(pair).ok());
        pair.and_then(|pair| u8::from_str_radix(pair, 16).ok()).unwrap_or(0)
    })
}

/// Of networks and of users. 0 where the system does not tell.
fn namespaces() -> [u64; 2] {
    ["net", "user"].map(|kind| std::fs::metadata(format!("/proc/self/ns/{kind}")).map_or(0, |file| file.ino()))
}

/// What all ranks find in the same introductions: the way, and for each rank the first one that it shares memory with.
pub(super) fn decide(all: &[Introduction]) -> Result<(PeerWay, Vec<u32>), PeerMemoryError> {
    let rank_of = |wrong: &dyn Fn(&Introduction) -> bool| all.iter().position(wrong).map(Rank::from_index);
    if let Some(rank) = rank_of(&|of| of.version != VERSION) {
        return Err(PeerMemoryError::Version { rank });
    }
    if let Some(rank) = rank_of(&|of| (of.bytes, of.number) != (all[0].bytes, all[0].number)) {
        return Err(PeerMemoryError::Disagree { rank });
    }
    if let Some(rank) = rank_of(&|of| (of.machine == 0) != (all[0].machine == 0)) {
        return Err(PeerMemoryError::Disagree { rank });
    }
    let first = |of: &Introduction| all.iter().position(|other| other.machine == of.machine).unwrap_or(0);
    let domains: Vec<u32> = all.iter().map(|of| first(of) as u32).collect();
    let place = |of: &Introduction| (of.computer, of.namespaces);
    let is_alone = all.len() > 1 && all.iter().enumerate().all(|(index, of)| index == first(of));
    let apart = rank_of(&|of| place(of) != place(&all[first(of)])).or(is_alone.then_some(Rank(1)));
    if let Some(rank) = apart {
        let other = if is_alone { Rank(0) } else { Rank(domains[rank.index()]) };
        return Err(PeerMemoryError::OtherComputer { rank, other });
    }
    // Nobody waits for its socket.
    if let Some(rank) = rank_of(&|of| of.socket == SocketName::default()) {
        return Err(PeerMemoryError::Failed { rank, why: "it has no socket for other processes".to_owned() });
    }
    for (at, one) in all.iter().enumerate() {
        if let Some(other) = all[..at].iter().position(|other| other.process == one.process) {
            let (rank, other) = (Rank::from_index(other), Rank::from_index(at));
            return Err(PeerMemoryError::SameProcess { rank, other });
        }
    }
    let all_have = |way: &PeerWay| all.iter().all(|of| of.ways & way.bit() != 0);
    let has = |way: PeerWay| all.iter().filter(|of| of.ways & way.bit() != 0).count();
    let way = PeerWay::ALL.into_iter().find(all_have).ok_or_else(|| {
        let most =
            if has(PeerWay::Descriptors) >= has(PeerWay::Handles) { PeerWay::Descriptors } else { PeerWay::Handles };
        let rank = all.iter().position(|of| of.ways & most.bit() == 0).unwrap_or(0);
        PeerMemoryError::NoWay { rank: Rank::from_index(rank) }
    })?;
    Ok((way, domains))
}

/// Who this rank is, and what it wants. What it cannot tell is zero, and noted.
pub(super) fn introduced(
    gpu: &GpuDevice,
    terms: &PeerTerms,
    listener: Option<&PeerListener>,
    ready: &mut RankOutcome,
) -> Introduction {
    let descriptors = if has_descriptors(gpu) { PeerWay::Descriptors.bit() } else { 0 };
    // Nothing tells but a try, which waits for the GPU when it frees its memory. A driver with descriptors has handles, as a rule.
    let has_handles = || PlainMemory::new(gpu, 1).is_ok_and(|memory| memory.handle().is_ok());
    let handles = if descriptors != 0 || has_handles() { PeerWay::Handles.bit() } else { 0 };
    Introduction {
        version: VERSION,
        ways: descriptors | handles,
        bytes: terms.bytes as u64,
        number: terms.number,
        computer: computer(),
        namespaces: namespaces(),
        machine: terms.machine.map_or(0, |machine| u64::from(machine) + 1),
        process: note(ready, process_number()).unwrap_or_default(),
        gpu: note(ready, identity(gpu)).unwrap_or_default(),
        socket: listener.map(|listener| listener.name).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(rank: u8) -> Introduction {
        let socket = SocketName { name: [rank + 1; 16], secret: [7; 16] };
        let (computer, process, gpu) = ([3; 16], [rank; 16], [rank + 9; 16]);
        let namespaces = [1 << 40, 11];
        let machine = 0;
        Introduction {
            version: VERSION,
            ways: 3,
            bytes: 5,
            number: 6,
            computer,
            namespaces,
            machine,
            process,
            gpu,
            socket,
        }
    }

    #[test]
    fn introductions_survive_their_bytes_and_ranks_come_to_the_same() {
        assert_eq!(Introduction::decoded(&of(4).encoded()), of(4));
        assert_eq!(decide(&[of(0), of(1)]), Ok((PeerWay::Descriptors, vec![0, 0])));
        let rank = Rank(1);
        for namespaces in [[1 << 40, 12], [2, 11]] {
            let all = [of(0), Introduction { namespaces, ..of(1) }];
            assert_eq!(decide(&all), Err(PeerMemoryError::OtherComputer { rank, other: Rank(0) }));
        }
        let on = |rank, machine| Introduction { machine, ..of(rank) };
        assert_eq!(decide(&[on(0, 3), on(1, 9), on(2, 3)]), Ok((PeerWay::Descriptors, vec![0, 1, 0])));
        assert_eq!(decide(&[on(0, 3), on(1, 9)]), Err(PeerMemoryError::OtherComputer { rank, other: Rank(0) }));
        assert_eq!(decide(&[on(0, 0), on(1, 9)]), Err(PeerMemoryError::Disagree { rank }));
        // A machine is not mapped in parts.
        let far = Introduction { computer: [4; 16], ..on(3, 9) };
        let rank = Rank(3);
        assert_eq!(
            decide(&[on(0, 3), on(1, 9), on(2, 3), far]),
            Err(PeerMemoryError::OtherComputer { rank, other: Rank(1) })
        );
        let rank = Rank(1);
        let why = "it has no socket for other processes".to_owned();
        let all = [of(0), Introduction { socket: SocketName::default(), ..of(1) }];
        assert_eq!(decide(&all), Err(PeerMemoryError::Failed { rank, why }));
    }
}
