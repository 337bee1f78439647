//! A dense matrix of bits: the only sets of bits of this crate.
//!
//! The principal type is [`BitMatrix`]: one row per rank or link, one column per chunk. A few word operations per 64
//! chunks give the chunks that a link could carry, so that no list of (chunk, destination) pairs is needed. Not
//! `fixedbitset`, because that is an allocation for each row, and its words are as long as the machine's: searches
//! begin at a random word, so plans would differ between machines.

/// Rows of bits, each padded to whole words.
#[derive(Clone, Debug)]
pub(crate) struct BitMatrix {
    words_per_row: usize,
    words: Vec<u64>,
}

impl BitMatrix {
    pub(crate) fn new(rows: usize, columns: usize) -> Self {
        let words_per_row = columns.div_ceil(64);
        Self { words_per_row, words: vec![0; rows * words_per_row] }
    }

    /// The words of one row.
    pub(crate) fn row(&self, row: usize) -> &[u64] {
        &self.words[row * self.words_per_row..(row + 1) * self.words_per_row]
    }

    pub(crate) fn has(&self, row: usize, column: usize) -> bool {
        self.words[row * self.words_per_row + column / 64] >> (column % 64) & 1 == 1
    }

    pub(crate) fn clear(&mut self, row: usize, column: usize) {
        self.words[row * self.words_per_row + column / 64] &= !(1 << (column % 64));
    }

    pub(crate) fn set(&mut self, row: usize, column: usize) {
        self.words[row * self.words_per_row + column / 64] |= 1 << (column % 64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_do_not_overlap() {
        let mut bits = BitMatrix::new(3, 65);
        bits.set(1, 64);
        bits.set(2, 0);
        bits.set(0, 1);
        bits.clear(0, 1);
        assert_eq!([bits.row(0), bits.row(1), bits.row(2)], [[0, 0], [0, 1], [1, 0]]);
        assert!(bits.has(1, 64) && bits.has(2, 0) && !bits.has(1, 0));
    }
}
