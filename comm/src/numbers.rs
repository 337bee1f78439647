//! Numbers that stand for what they are made of.

use topology::Rank;

/// Tells the messages of a communicator from its collectives.
const MESSAGES: u64 = 0x006d_6573_7361_6765;

/// The same for what ranks tell each other to confirm a table.
const CONFIRMATIONS: u64 = 0x0063_6f6e_6669_726d;

/// Two numbers as one that no other two give, but with a chance of one in 2⁶⁴ (the finalizer of splitmix64).
pub(crate) fn mixed(a: u64, b: u64) -> u64 {
    let mut z = a.rotate_left(32) ^ b.wrapping_mul(0x9E37_79B9_7F4A_7C15).wrapping_add(0x632B_E59B_D9B4_E019);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// The stream of messages of one kind from a rank to another.
pub(crate) fn stream_of(communicator: u64, kind: u64, from: Rank, to: Rank) -> u64 {
    mixed(mixed(communicator, kind), u64::from(from.0) << 32 | u64::from(to.0))
}

/// The messages from one member of a communicator to another.
pub(crate) fn message_stream(communicator: u64, from: Rank, to: Rank) -> u64 {
    stream_of(communicator, MESSAGES, from, to)
}

/// What the members of a communicator tell each other for one of its confirmations.
pub(crate) fn confirmation_stream(communicator: u64, confirmation: u64) -> u64 {
    mixed(mixed(communicator, CONFIRMATIONS), confirmation)
}
