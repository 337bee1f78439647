//! What was used lately.
//!
//! The principal type is [`RecentMap`], a map with a bounded number of entries.

use std::collections::BTreeMap;

/// A map that forgets the entry that was used longest ago when there are too many.
pub(crate) struct RecentMap<K, V> {
    /// With the number of the last use.
    entries: BTreeMap<K, (u64, V)>,
    most: usize,
    uses: u64,
}

impl<K: Ord + Clone, V> RecentMap<K, V> {
    /// An empty map that keeps so many entries.
    pub(crate) fn new(most: usize) -> Self {
        Self { entries: BTreeMap::new(), most, uses: 0 }
    }

    /// Looks, which is no use.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(_, value)| value)
    }

    /// Uses an entry.
    pub(crate) fn get(&mut self, key: &K) -> Option<&mut V> {
        let (used, value) = self.entries.get_mut(key)?;
        self.uses += 1;
        *used = self.uses;
        Some(value)
    }

    /// Adds or replaces an entry, which is a use; the key of one that was forgotten for it.
    pub(crate) fn insert(&mut self, key: K, value: V) -> Option<K> {
        self.uses += 1;
        self.entries.insert(key, (self.uses, value));
        if self.entries.len() <= self.most {
            return None;
        }
        let (oldest, _) = self.entries.iter().min_by_key(|(_, (used, _))| *used)?;
        let oldest = oldest.clone();
        self.entries.remove(&oldest);
        Some(oldest)
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.entries.remove(key);
    }

    pub(crate) fn clear(&mut self) {
        self.entries.clear();
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_used_longest_ago_is_forgotten() {
        let mut map = RecentMap::new(3);
        assert!((0..3).all(|key| map.insert(key, key * 10).is_none()));
        assert_eq!(map.peek(&1), Some(&10));
        assert_eq!(map.get(&0), Some(&mut 0));
        assert_eq!(map.insert(2, 21), None, "it is there already");
        assert_eq!(map.insert(3, 30), Some(1));
        assert_eq!((map.peek(&1), map.peek(&2), map.len()), (None, Some(&21), 3));
        map.remove(&0);
        assert_eq!(map.insert(4, 40), None);
    }
}
