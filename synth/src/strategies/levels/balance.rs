//! Which link brings which chunk, such that the busiest link carries as little as possible.
//!
//! The principal function is [`balanced`]. Chunks are placed one by one. Each is placed along an alternating path that
//! ends at the link with the least load after one more chunk. This keeps semi-matchings optimal (Harvey, Ladner, Lovász
//! and Tamir, 2003).

use std::collections::{BTreeMap, VecDeque};
use topology::LinkId;

/// A link over which a chunk can arrive.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct LinkChoice {
    pub(super) link: LinkId,
    /// Time per byte.
    pub(super) beta: f64,
    /// The load of the resources that it uses, by other messages; decides between equal links.
    pub(super) shared: f64,
}

/// A link for each chunk, out of its options; `None` if a chunk has none.
pub(super) fn balanced(options: &[Vec<LinkChoice>]) -> Option<Vec<LinkId>> {
    let mut count: BTreeMap<LinkId, u32> = BTreeMap::new();
    let mut placed: Vec<Option<LinkId>> = vec![None; options.len()];
    for chunk in 0..options.len() {
        // For each link that the path can reach: the chunk that would move to it.
        let mut reached: BTreeMap<LinkId, usize> = BTreeMap::new();
        let mut queue = VecDeque::from([chunk]);
        let mut best: Option<(f64, f64, LinkId)> = None;
        while let Some(mover) = queue.pop_front() {
            for option in &options[mover] {
                if reached.contains_key(&option.link) {
                    continue;
                }
                reached.insert(option.link, mover);
                let load = f64::from(count.get(&option.link).copied().unwrap_or(0) + 1) * option.beta;
                let offer = (load, option.shared, option.link);
                if best.is_none_or(|best| offer.partial_cmp(&best).is_some_and(std::cmp::Ordering::is_lt)) {
                    best = Some(offer);
                }
                queue.extend((0..chunk).filter(|&other| placed[other] == Some(option.link)));
            }
        }
        let (_, _, mut link) = best?;
        *count.entry(link).or_default() += 1;
        // Each chunk on the path moves to the next link.
        loop {
            let mover = reached[&link];
            let left = placed[mover].replace(link);
            match left {
                Some(left) if mover != chunk => link = left,
                _ => break,
            }
        }
    }
    placed.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(link: u32) -> LinkChoice {
        LinkChoice { link: LinkId(link), beta: 1.0, shared: 0.0 }
    }

    #[test]
    fn earlier_chunks_make_room() {
        // Two chunks that can take either link, then two that need the first.
        let either = vec![choice(0), choice(1)];
        let options = [either.clone(), either, vec![choice(0)], vec![choice(0)]];
        let placed = balanced(&options).expect("all have options");
        assert_eq!(placed, [LinkId(1), LinkId(1), LinkId(0), LinkId(0)]);
        assert_eq!(balanced(&[vec![]]), None);
    }

    #[test]
    fn faster_links_carry_more() {
        let fast = LinkChoice { link: LinkId(1), beta: 0.5, shared: 0.0 };
        let placed = balanced(&vec![vec![choice(0), fast]; 6]).expect("all have options");
        assert_eq!(placed.iter().filter(|&&link| link == LinkId(1)).count(), 4);
    }
}
