//! What ranks and the hub send each other.
//!
//! The principal type is [`Request`].

use std::io::{Error, ErrorKind, Read, Result, Write};

/// A result; the numbers are NCCL's.
pub(crate) type Code = i32;
pub(crate) const SUCCESS: Code = 0;
pub(crate) const CUDA_ERROR: Code = 1;
pub(crate) const SYSTEM_ERROR: Code = 2;
pub(crate) const INVALID_ARGUMENT: Code = 4;
pub(crate) const INVALID_USAGE: Code = 5;
pub(crate) const REMOTE_ERROR: Code = 6;
pub(crate) const IN_PROGRESS: Code = 7;

/// The longest data of one message.
const MOST_BYTES: u64 = 1 << 32;

/// What a rank asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Kind {
    AllReduce,
    AllGather,
    ReduceScatter,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    Send,
    Receive,
    Split,
    /// Asked by all ranks but those that the new communicator leaves out; the others may be gone.
    Shrink,
    Grow,
    /// The rank ends its communicator in order, and asks for nothing more. Nobody answers.
    Leave,
}

impl Kind {
    pub(crate) const ALL: [Self; 14] = [
        Self::AllReduce,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::AllToAll,
        Self::Gather,
        Self::Scatter,
        Self::Send,
        Self::Receive,
        Self::Split,
        Self::Shrink,
        Self::Grow,
        Self::Leave,
    ];

    /// Blocks of `count` elements that a rank gives and gets.
    pub(crate) fn blocks(self, ranks: usize, is_root: bool) -> (usize, usize) {
        let at_root = |blocks: usize| if is_root { blocks } else { 0 };
        match self {
            Self::AllReduce => (1, 1),
            Self::AllGather => (1, ranks),
            Self::ReduceScatter => (ranks, 1),
            Self::Broadcast => (at_root(1), 1),
            Self::Reduce => (1, at_root(1)),
            Self::AllToAll => (ranks, ranks),
            Self::Gather => (1, at_root(ranks)),
            Self::Scatter => (at_root(ranks), 1),
            Self::Send => (1, 0),
            Self::Receive => (0, 1),
            Self::Split | Self::Shrink | Self::Grow | Self::Leave => (0, 0),
        }
    }

    pub(crate) fn is_message(self) -> bool {
        matches!(self, Self::Send | Self::Receive)
    }
}

/// What must be the same on all ranks of a collective, or at both ends of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Terms {
    pub(crate) kind: Kind,
    pub(crate) count: u64,
    /// NCCL's number of the type, and of the reduction (0 without one).
    pub(crate) dtype: i32,
    pub(crate) op: i32,
    /// The root, or the other end of a message; 0 if there is none.
    pub(crate) peer: i32,
}

/// An operation of a rank, with the data that it gives.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    /// Numbers the rank's requests.
    pub(crate) number: u64,
    pub(crate) terms: Terms,
    /// What the clock of the rank's stream says, in nanoseconds.
    pub(crate) begin: u64,
    pub(crate) data: Vec<u8>,
}

/// What the hub answers.
#[derive(Clone, Debug)]
pub(crate) struct Reply {
    pub(crate) number: u64,
    pub(crate) code: Code,
    /// When the operation has ended, by the same clock.
    pub(crate) end: u64,
    /// The data, or what is wrong.
    pub(crate) data: Vec<u8>,
}

fn number<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

pub(crate) fn read_u64(from: &mut impl Read) -> Result<u64> {
    number(from).map(u64::from_le_bytes)
}

fn read_i32(from: &mut impl Read) -> Result<i32> {
    number(from).map(i32::from_le_bytes)
}

fn read_data(from: &mut impl Read) -> Result<Vec<u8>> {
    let length = read_u64(from)?;
    if length > MOST_BYTES {
        return Err(Error::new(ErrorKind::InvalidData, "a message is too long"));
    }
    let mut data = Vec::new();
    from.take(length).read_to_end(&mut data)?;
    if data.len() as u64 == length { Ok(data) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

impl Request {
    pub(crate) fn write(&self, to: &mut impl Write) -> Result<()> {
        let Terms { kind, count, dtype, op, peer } = self.terms;
        let mut bytes = self.number.to_le_bytes().to_vec();
        bytes.push(kind as u8);
        bytes.extend(count.to_le_bytes());
        [dtype, op, peer].iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes.extend(self.begin.to_le_bytes());
        bytes.extend((self.data.len() as u64).to_le_bytes());
        bytes.extend(&self.data);
        to.write_all(&bytes)
    }

    pub(crate) fn read(from: &mut impl Read) -> Result<Self> {
        let sent = read_u64(from)?;
        let [kind] = number(from)?;
        let kind = Kind::ALL.get(usize::from(kind)).copied();
        let kind = kind.ok_or_else(|| Error::new(ErrorKind::InvalidData, "no such operation"))?;
        let count = read_u64(from)?;
        let terms = Terms { kind, count, dtype: read_i32(from)?, op: read_i32(from)?, peer: read_i32(from)? };
        Ok(Self { number: sent, terms, begin: read_u64(from)?, data: read_data(from)? })
    }
}

impl Reply {
    pub(crate) fn write(&self, to: &mut impl Write) -> Result<()> {
        let mut bytes = self.number.to_le_bytes().to_vec();
        bytes.extend(self.code.to_le_bytes());
        bytes.extend(self.end.to_le_bytes());
        bytes.extend((self.data.len() as u64).to_le_bytes());
        bytes.extend(&self.data);
        to.write_all(&bytes)
    }

    pub(crate) fn read(from: &mut impl Read) -> Result<Self> {
        Ok(Self { number: read_u64(from)?, code: read_i32(from)?, end: read_u64(from)?, data: read_data(from)? })
    }
}
