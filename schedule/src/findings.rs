//! A list of what is wrong that stays short: it ends with "and N more".
//!
//! The principal type is [`Findings`]. Whoever judges a file that somebody else wrote collects into one, so that neither
//! memory nor output grows beyond a fixed number of entries, however much is wrong.

use std::fmt;

/// So many entries are kept; the others are counted.
const MOST_LISTED: usize = 1000;

/// The first entries of a list, and how many more there were.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Findings<T> {
    listed: Vec<T>,
    more: u64,
}

impl<T> Default for Findings<T> {
    fn default() -> Self {
        Self { listed: Vec::new(), more: 0 }
    }
}

impl<T> Findings<T> {
    /// Adds one entry.
    pub fn push(&mut self, entry: T) {
        if self.has_room() { self.listed.push(entry) } else { self.more += 1 }
    }

    /// Whether the next entry would be listed; if not, [`count`](Self::count) it, and save the time to describe it.
    pub fn has_room(&self) -> bool {
        self.listed.len() < MOST_LISTED
    }

    /// Adds `count` entries that nobody will list.
    pub fn count(&mut self, count: u64) {
        self.more = self.more.saturating_add(count);
    }

    /// Adds another list behind this one.
    pub fn append(&mut self, other: Self) {
        self.extend(other.listed);
        self.count(other.more);
    }

    /// Those that are listed.
    pub fn iter(&self) -> std::slice::Iter<'_, T> {
        self.listed.iter()
    }

    /// How many there are beyond those that are listed.
    pub fn more(&self) -> u64 {
        self.more
    }

    /// How many there are in all.
    pub fn total(&self) -> u64 {
        self.more.saturating_add(self.listed.len() as u64)
    }

    /// Whether nothing was found.
    pub fn is_empty(&self) -> bool {
        self.total() == 0
    }

    /// The same list of something else, such as the texts.
    pub fn map<U>(&self, each: impl FnMut(&T) -> U) -> Findings<U> {
        Findings { listed: self.listed.iter().map(each).collect(), more: self.more }
    }

    /// The listed entries, and how many more there are.
    pub fn into_parts(self) -> (Vec<T>, u64) {
        (self.listed, self.more)
    }
}

/// One entry a line, and how many more there are.
impl<T: fmt::Display> fmt::Display for Findings<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, entry) in self.listed.iter().enumerate() {
            write!(f, "{}{entry}", if index == 0 { "" } else { "\n" })?;
        }
        if self.more > 0 { write!(f, "\nand {} more", self.more) } else { Ok(()) }
    }
}

impl<T> From<Vec<T>> for Findings<T> {
    fn from(entries: Vec<T>) -> Self {
        entries.into_iter().collect()
    }
}

impl<T> Extend<T> for Findings<T> {
    fn extend<I: IntoIterator<Item = T>>(&mut self, entries: I) {
        entries.into_iter().for_each(|entry| self.push(entry));
    }
}

impl<T> FromIterator<T> for Findings<T> {
    fn from_iter<I: IntoIterator<Item = T>>(entries: I) -> Self {
        let mut findings = Self::default();
        findings.extend(entries);
        findings
    }
}

impl<'a, T> IntoIterator for &'a Findings<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_list_is_counted_and_keeps_its_order() {
        let mut findings: Findings<u32> = (0..900).collect();
        findings.append((900..2500).collect());
        findings.count(7);
        assert_eq!(findings.total(), 2507);
        let (listed, more) = findings.into_parts();
        assert_eq!((listed.len(), more), (1000, 1507));
        assert!(listed.into_iter().eq(0..1000));
        let mut short = Findings::from(vec![1, 2]);
        short.count(3);
        assert_eq!(short.to_string(), "1\n2\nand 3 more");
        assert!(Findings::<u32>::default().is_empty());
    }
}
