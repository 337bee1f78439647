//! Styles: the rules by which a restart makes its choices.

/// The rules by which a restart makes its choices.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Style {
    pub(super) merge: usize,
    /// Weight of the time that a chunk still has to travel beyond the receiver.
    pub(super) urgency: f64,
    /// Weight of the rarity of a chunk: how few ranks have it.
    pub(super) rarity: f64,
    /// Weight of a random number.
    pub(super) chance: f64,
    /// Which of the links that could send choose first.
    pub(super) turn: TurnOrder,
    /// How many chunks a link with large α waits for, to pay α once.
    pub(super) batch: u32,
    /// Whether such a link skips the chunks that its receiver can get from nearby.
    pub(super) skips_nearby: bool,
    /// What a link does if another link will bring the same chunk sooner.
    pub(super) patience: WaitRule,
}

/// Which of the links that could send choose first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TurnOrder {
    /// Those with the fewest candidates, so that few links stay idle.
    Scarce,
    /// Those with the most candidates, so that a message carries many chunks.
    Bulk,
    /// Those whose receiver lacks most, so that no rank is late in the end.
    MostLacking,
}

/// What a link does if another link will bring its receiver the same chunk sooner.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitRule {
    Waits,
    Greedy,
}
