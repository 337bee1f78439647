//! YAML values that may have several shapes: a rank or a list of ranks, a word or a map.
//!
//! They are written by hand, not as untagged enums. An untagged enum buffers the value, loses its position, and reports
//! only that "no variant matched".

use super::body::{
    ConnectionsAsWritten, LinkClass, LinkPattern, LinkRule, LocatedRanks, PlacementWish, RankImages, RankMap, Relays,
    SymmetryWish,
};
use crate::problem::ConnectionPolicy;
use serde::Deserialize;
use serde::de::{self, Deserializer, IntoDeserializer, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;
use std::fmt;
use topology::quantity::{RankSpan, listed};

/// Reads a key that is present: `relays:` without a value is an error, not "no relays".
pub(super) fn present<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Option<T>, D::Error> {
    T::deserialize(deserializer).map(Some)
}

impl<'de> Deserialize<'de> for LinkRule {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct LinkRuleVisitor;
        impl<'de> Visitor<'de> for LinkRuleVisitor {
            type Value = LinkRule;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("links such as `between_machines`, `[0, 3]` or `{from: 0, to: [1, 2]}`")
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<LinkRule, E> {
                LinkClass::deserialize(word.into_deserializer()).map(LinkRule::Class)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut pair: A) -> Result<LinkRule, A::Error> {
                let missing = |count| de::Error::invalid_length(count, &"a pair [from, to]");
                let from = pair.next_element()?.ok_or_else(|| missing(0))?;
                let to = pair.next_element()?.ok_or_else(|| missing(1))?;
                match pair.next_element::<de::IgnoredAny>()? {
                    Some(_) => Err(missing(3)),
                    None => Ok(LinkRule::Pair { from, to }),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<LinkRule, A::Error> {
                LinkPattern::deserialize(de::value::MapAccessDeserializer::new(map)).map(LinkRule::Pattern)
            }
        }
        deserializer.deserialize_any(LinkRuleVisitor)
    }
}

impl<'de> Deserialize<'de> for LocatedRanks {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let Spanned { value, referenced, defined } = Spanned::<OneOrMany>::deserialize(deserializer)?;
        let spans = match value {
            OneOrMany::One(span) => vec![Spanned { value: span, referenced, defined }],
            OneOrMany::Many(spans) => spans,
        };
        listed(spans.iter().map(|span| span.value)).map_err(de::Error::custom)?;
        let each = |Spanned { value, referenced, defined }: Spanned<RankSpan>| {
            value.ranks().map(move |rank| Spanned { value: u64::from(rank), referenced, defined })
        };
        let list = spans.into_iter().flat_map(each).collect();
        Ok(Self { at: referenced, list })
    }
}

/// [`LocatedRanks`] before a single rank gets its position.
enum OneOrMany {
    One(RankSpan),
    Many(Vec<Spanned<RankSpan>>),
}

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrManyVisitor;
        impl<'de> Visitor<'de> for OneOrManyVisitor {
            type Value = OneOrMany;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rank or a list of ranks")
            }
            fn visit_u64<E: de::Error>(self, rank: u64) -> Result<OneOrMany, E> {
                RankSpan::deserialize(rank.into_deserializer()).map(OneOrMany::One)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<OneOrMany, E> {
                text.parse().map(OneOrMany::One).map_err(E::custom)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<OneOrMany, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(OneOrMany::Many)
            }
        }
        deserializer.deserialize_any(OneOrManyVisitor)
    }
}

impl<'de> Deserialize<'de> for RankMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RankMapVisitor;
        impl<'de> Visitor<'de> for RankMapVisitor {
            type Value = RankMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("local ranks with lists of local ranks, such as `{1: [0], 3: [2]}`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RankMap, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(RankMap(entries))
            }
        }
        deserializer.deserialize_map(RankMapVisitor)
    }
}

impl<'de> Deserialize<'de> for Relays {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RelaysVisitor;
        impl<'de> Visitor<'de> for RelaysVisitor {
            type Value = Relays;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`all`, `direct`, or senders with receivers such as `{1: [0], 3: [2]}`")
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<Relays, E> {
                match word {
                    "all" => Ok(Relays::All),
                    "direct" => Ok(Relays::Direct),
                    _ => Err(E::unknown_variant(word, &["all", "direct"])),
                }
            }
            fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<Relays, A::Error> {
                RankMap::deserialize(de::value::MapAccessDeserializer::new(map)).map(Relays::Map)
            }
        }
        deserializer.deserialize_any(RelaysVisitor)
    }
}

impl<'de> Deserialize<'de> for SymmetryWish {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct SymmetryWishVisitor;
        impl<'de> Visitor<'de> for SymmetryWishVisitor {
            type Value = SymmetryWish;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`auto`, `none`, or a list of `{rotate: 2, within: 16}` and `{permutation: [1, 0]}`")
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<SymmetryWish, E> {
                match word {
                    "auto" => Ok(SymmetryWish::Auto),
                    "none" => Ok(SymmetryWish::None),
                    _ => Err(E::unknown_variant(word, &["auto", "none"])),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<SymmetryWish, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(SymmetryWish::List)
            }
        }
        deserializer.deserialize_any(SymmetryWishVisitor)
    }
}

impl<'de> Deserialize<'de> for RankImages {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RankImagesVisitor;
        impl<'de> Visitor<'de> for RankImagesVisitor {
            type Value = RankImages;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("ranks with their images, such as `{0: 3, 3: 0}`")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<RankImages, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(RankImages(entries))
            }
        }
        deserializer.deserialize_map(RankImagesVisitor)
    }
}

impl<'de> Deserialize<'de> for PlacementWish {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct PlacementWishVisitor;
        impl<'de> Visitor<'de> for PlacementWishVisitor {
            type Value = PlacementWish;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`auto`, `none`, or the physical rank of each, such as `[2, 3, 0, 1]`")
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<PlacementWish, E> {
                match word {
                    "auto" => Ok(PlacementWish::Auto),
                    "none" => Ok(PlacementWish::None),
                    _ => Err(E::unknown_variant(word, &["auto", "none"])),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<PlacementWish, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(PlacementWish::List)
            }
        }
        deserializer.deserialize_any(PlacementWishVisitor)
    }
}

impl<'de> Deserialize<'de> for ConnectionsAsWritten {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ConnectionsVisitor;
        impl<'de> Visitor<'de> for ConnectionsVisitor {
            type Value = ConnectionsAsWritten;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("`few`, `many`, or switches such as `[{among: [0, 1, 2, 3], wish: few}]`")
            }
            fn visit_str<E: de::Error>(self, word: &str) -> Result<ConnectionsAsWritten, E> {
                ConnectionPolicy::deserialize(word.into_deserializer()).map(ConnectionsAsWritten::Everywhere)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, list: A) -> Result<ConnectionsAsWritten, A::Error> {
                Vec::deserialize(de::value::SeqAccessDeserializer::new(list)).map(ConnectionsAsWritten::PerSwitch)
            }
        }
        deserializer.deserialize_any(ConnectionsVisitor)
    }
}
