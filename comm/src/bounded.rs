//! What is kept for later, as long as there is room.
//!
//! The principal type is [`BoundedMap`].

use crate::numbers::mixed;
use std::collections::BTreeMap;

/// A map that forgets entries when all together weigh too much. Which ones looks random: so of entries that are used in turn, most
/// are still there if they are few too many, while none would be if the one that was used longest ago were forgotten. Two
/// maps that are used alike forget the same.
pub(crate) struct BoundedMap<K, V> {
    entries: BTreeMap<K, KeptEntry<V>>,
    /// The keys, in any order.
    keys: Vec<K>,
    most: usize,
    weight: usize,
    forgotten: u64,
}

struct KeptEntry<V> {
    value: V,
    weight: usize,
    /// Where its key is among the keys.
    place: usize,
}

impl<K: Ord + Clone, V> BoundedMap<K, V> {
    /// An empty map for entries of so much weight.
    pub(crate) fn new(most: usize) -> Self {
        Self { entries: BTreeMap::new(), keys: Vec::new(), most, weight: 0, forgotten: 0 }
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|entry| &entry.value)
    }

    /// Adds or replaces an entry. It stays, however much it weighs.
    pub(crate) fn insert(&mut self, key: K, value: V, weight: usize) {
        self.remove(&key);
        while !self.keys.is_empty() && self.weight + weight > self.most {
            self.forgotten += 1;
            let place = mixed(self.forgotten, 0) % self.keys.len() as u64;
            self.remove(&self.keys[place as usize].clone());
        }
        self.weight += weight;
        self.keys.push(key.clone());
        self.entries.insert(key, KeptEntry { value, weight, place: self.keys.len() - 1 });
    }

    fn remove(&mut self, key: &K) {
        let Some(KeptEntry { weight, place, .. }) = self.entries.remove(key) else { return };
        self.weight -= weight;
        self.keys.swap_remove(place);
        if let Some(moved) = self.keys.get(place).and_then(|key| self.entries.get_mut(key)) {
            moved.place = place;
        }
    }

    pub(crate) fn clear(&mut self) {
        *self = Self::new(self.most);
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
    fn entries_stay_as_long_as_there_is_room() {
        let mut map = BoundedMap::new(10);
        for key in 0..5 {
            map.insert(key, key * 10, 2);
        }
        assert!((0..5).all(|key| map.get(&key) == Some(&(key * 10))));
        map.insert(3, 31, 2);
        assert_eq!((map.len(), map.get(&3)), (5, Some(&31)), "it was there already");
        map.insert(7, 70, 5);
        assert_eq!((map.len(), map.get(&7)), (3, Some(&70)), "three others had to go");
        map.insert(8, 80, 100);
        assert_eq!((map.len(), map.get(&8)), (1, Some(&80)), "too heavy, but it is needed now");
        map.insert(9, 90, 1);
        assert_eq!((map.len(), map.get(&9)), (1, Some(&90)));
        map.clear();
        assert_eq!((map.len(), map.weight), (0, 0));
    }

    /// Keys in turn, a few more than there is room for: those that are there when they are used again.
    #[test]
    fn most_entries_that_are_used_in_turn_are_found() {
        let (room, keys) = (256, 257);
        let mut map = BoundedMap::new(room);
        let mut found = 0;
        for use_ in 0..100 * keys {
            match map.get(&(use_ % keys)) {
                Some(()) => found += 1,
                None => map.insert(use_ % keys, (), 1),
            }
        }
        assert!(found > 95 * keys, "{found} of {}", 100 * keys);
    }
}
