//! The resources of a link: a list that takes no memory of its own where it is short.
//!
//! The principal type is [`ResourceIds`]. Machines behind switches have millions of links, each with two ports or four. An
//! allocation for each list would take more memory than all the rest of the links.

use crate::ResourceId;
use serde::{Serialize, Serializer};
use std::fmt;
use std::ops::Deref;

/// What a message on a link occupies besides the link, in a fixed order.
#[derive(Clone)]
pub struct ResourceIds(Storage);

/// The most resources that are kept in place.
const FEW: usize = 5;

#[derive(Clone)]
enum Storage {
    Few(u8, [ResourceId; FEW]),
    Many(Box<[ResourceId]>),
}

impl ResourceIds {
    fn of(ids: &[ResourceId]) -> Self {
        let mut few = [ResourceId(0); FEW];
        match few.get_mut(..ids.len()) {
            Some(kept) => {
                kept.copy_from_slice(ids);
                Self(Storage::Few(ids.len() as u8, few))
            }
            None => Self(Storage::Many(ids.into())),
        }
    }
}

impl Deref for ResourceIds {
    type Target = [ResourceId];

    #[inline]
    fn deref(&self) -> &[ResourceId] {
        match &self.0 {
            Storage::Few(count, ids) => &ids[..usize::from(*count)],
            Storage::Many(ids) => ids,
        }
    }
}

impl Default for ResourceIds {
    fn default() -> Self {
        Self::of(&[])
    }
}

impl PartialEq for ResourceIds {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl fmt::Debug for ResourceIds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

impl Serialize for ResourceIds {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (**self).serialize(serializer)
    }
}

impl<const N: usize> From<[ResourceId; N]> for ResourceIds {
    fn from(ids: [ResourceId; N]) -> Self {
        Self::of(&ids)
    }
}

impl From<Vec<ResourceId>> for ResourceIds {
    fn from(ids: Vec<ResourceId>) -> Self {
        Self::of(&ids)
    }
}

impl From<&[ResourceId]> for ResourceIds {
    fn from(ids: &[ResourceId]) -> Self {
        Self::of(ids)
    }
}

impl FromIterator<ResourceId> for ResourceIds {
    fn from_iter<I: IntoIterator<Item = ResourceId>>(ids: I) -> Self {
        let mut few = [ResourceId(0); FEW];
        let mut ids = ids.into_iter();
        let mut count = 0;
        while let Some(id) = ids.next() {
            if count == FEW {
                let all = few.into_iter().chain([id]).chain(ids);
                return Self(Storage::Many(all.collect()));
            }
            few[count] = id;
            count += 1;
        }
        Self(Storage::Few(count as u8, few))
    }
}

impl<'a> IntoIterator for &'a ResourceIds {
    type Item = &'a ResourceId;
    type IntoIter = std::slice::Iter<'a, ResourceId>;

    fn into_iter(self) -> Self::IntoIter {
        self.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_long_lists_are_the_lists_that_they_were_made_of() {
        for length in 0..12 {
            let ids: Vec<ResourceId> = (0..length).map(|id| ResourceId(7 * id)).collect();
            let made: [ResourceIds; 3] = [ids.clone().into(), ids.as_slice().into(), ids.iter().copied().collect()];
            for list in &made {
                assert_eq!((&**list, list.iter().count()), (&ids[..], ids.len()));
                assert_eq!(format!("{list:?}"), format!("{ids:?}"));
            }
            assert!(made[0] == made[1] && made[1] == made[2].clone());
            assert!(made[0] != [ids, vec![ResourceId(1)]].concat().into());
        }
        assert!(size_of::<crate::Link>() <= 56, "{}", size_of::<crate::Link>());
    }
}
