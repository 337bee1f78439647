//! How one search of many makes its choices.

/// How a restart makes its choices.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Style {
    /// The most chunks a message carries.
    pub(super) merge: usize,
    /// Weight of the time that a chunk still has to travel beyond the receiver.
    pub(super) urgency: f64,
    /// Weight of how few ranks have the chunk.
    pub(super) rarity: f64,
    /// Weight of chance.
    pub(super) chance: f64,
    /// Which of the links that could send choose first.
    pub(super) turn: TurnOrder,
    /// How many chunks a link waits for whose α is dear, so that it pays α once.
    pub(super) batch: u32,
    /// Whether such a link leaves alone what its receiver can get from nearby.
    pub(super) choosy: bool,
    /// What a slow link does while a faster one is about to bring the same chunk sooner.
    pub(super) patience: WaitRule,
}

/// Which of the links that could send choose first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TurnOrder {
    /// Those with the fewest candidates: few links stay idle.
    Scarce,
    /// Those with the most candidates: much goes in one message.
    Bulk,
    /// Those whose receiver lacks most: nobody is late in the end.
    Needy,
}

/// What a link does when another will bring its receiver the same chunk sooner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitRule {
    /// It leaves that chunk alone.
    Waits,
    /// It sends all the same.
    Greedy,
}
