//! `antiphon-machine/1`: a physical description, as written.
//!
//! The principal type is [`MachineFile`]. A machine is a number of ranks and *parts*: everything that carries messages.
//! A part is inside each machine or between machines. It says which ordered pairs of ranks it joins, and may have
//! ports, which its links share. This one shape describes cables (no ports), a switch (a port for each rank), NICs (a
//! port for several ranks), rails (`among`: ranks of different groups are on different switches) and leaf switches with
//! fewer up-links than ports (`uplinks`: what a group of ranks shares on its way to the others).
//!
//! The costs of parts are separate, under `keys`, because published instances of one machine differ only in costs. A
//! SPEC chooses one value of each key.

use crate::quantity::{RankSpan, parse_beta, parse_duration};
use crate::{Latency, Micros, MicrosPerByte};
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use std::fmt;
use std::marker::PhantomData;

/// The value of `format`.
pub(crate) const FORMAT: &str = "antiphon-machine/1";

/// One file.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct MachineFile {
    pub(crate) format: String,
    /// The name of its SPECs.
    pub(crate) name: String,
    /// One line for people.
    pub(crate) about: String,
    /// Where the numbers come from.
    pub(crate) source: String,
    /// Ranks in one machine.
    pub(crate) ranks: u32,
    /// How many machines can be joined; no limit if absent.
    #[serde(default)]
    pub(crate) most_machines: Option<u64>,
    pub(crate) parts: OrderedEntries<Part>,
    /// What a SPEC may choose. The first value of each key is its default; later keys refine earlier ones.
    pub(crate) keys: OrderedEntries<OrderedEntries<CostOverrides>>,
}

/// Something that carries messages between ranks.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct Part {
    /// Pairs of local ranks of the same machine.
    #[serde(default)]
    pub(crate) inside: Option<PairsAsWritten>,
    /// Pairs of local ranks of every two machines: the first rank's machine and any other.
    #[serde(default)]
    pub(crate) between: Option<PairsAsWritten>,
    /// Groups of local ranks on a switch of their own: pairs with ends in two groups are none. All ranks if absent.
    #[serde(default)]
    pub(crate) among: Option<Vec<RanksAsWritten>>,
    /// Groups of local ranks that share a port, or `each`; without ports every link is a cable of its own.
    #[serde(default)]
    pub(crate) ports: Ports,
    /// Groups of local ranks that share an up-link to all other ranks.
    #[serde(default)]
    pub(crate) uplinks: Vec<RanksAsWritten>,
    /// The part exists only where at least this many machines are joined.
    #[serde(default)]
    pub(crate) least_machines: Option<u64>,
    #[serde(default)]
    pub(crate) most_machines: Option<u64>,
}

/// Ordered pairs of local ranks: `0-1` is both ways, `0>1` one way, `all` every pair, `same` each rank and its
/// counterpart in other machines.
#[derive(Debug, Clone)]
pub(crate) enum PairsAsWritten {
    All,
    Same,
    These(Vec<PairAsWritten>),
}

/// `a-b` or `a>b`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PairAsWritten {
    pub(crate) from: u32,
    pub(crate) to: u32,
    pub(crate) way: PairDirection,
}

/// Which of its two directions a pair stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PairDirection {
    One,
    Both,
}

/// Who shares a port of a part.
#[derive(Debug, Default)]
pub(crate) enum Ports {
    #[default]
    None,
    Each,
    Groups(Vec<RanksAsWritten>),
}

/// A list of local ranks, in which `0-7` stands for 0 to 7 and `1-7/2` for every second of them. `0..8`, which excludes
/// its end, is the old form of `0-7`.
///
/// The list is kept as written, because a short text can name very many ranks.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct RanksAsWritten(Vec<SteppedSpan>);

/// One entry of such a list.
#[derive(Debug, Clone)]
struct SteppedSpan(std::iter::StepBy<std::ops::Range<u32>>);

impl RanksAsWritten {
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        self.0.iter().flat_map(|span| span.0.clone())
    }

    /// How many there are, repetitions included.
    pub(crate) fn count(&self) -> u128 {
        self.0.iter().map(|span| span.0.len() as u128).sum()
    }
}

/// The costs that one value of a key stands for.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields)]
pub(crate) struct CostOverrides {
    #[serde(default)]
    pub(crate) latency: Option<Latency>,
    #[serde(default)]
    pub(crate) parts: OrderedEntries<PartCost>,
}

/// What a message over a part costs: the whole path, or each leg of a path through ports.
#[derive(Deserialize, Debug, Clone, Copy, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct PartCost {
    #[serde(default, deserialize_with = "alpha")]
    pub(crate) alpha: Option<Micros>,
    #[serde(default, alias = "bandwidth", deserialize_with = "beta")]
    pub(crate) beta: Option<MicrosPerByte>,
    #[serde(default)]
    pub(crate) send: Option<Leg>,
    #[serde(default)]
    pub(crate) deliver: Option<Leg>,
    /// The additional cost of an up-link.
    #[serde(default)]
    pub(crate) uplink: Option<Leg>,
}

/// One hop of a path: from a rank into a port, or out of one.
#[derive(Deserialize, Debug, Clone, Copy, Default)]
#[serde(deny_unknown_fields)]
pub(crate) struct Leg {
    #[serde(default, deserialize_with = "alpha")]
    pub(crate) alpha: Option<Micros>,
    #[serde(default, alias = "bandwidth", deserialize_with = "beta")]
    pub(crate) beta: Option<MicrosPerByte>,
}

impl PartCost {
    /// These costs where given, otherwise those of `earlier`.
    pub(crate) fn over(self, earlier: Self) -> Self {
        let leg = |later: Option<Leg>, earlier: Option<Leg>| match (later, earlier) {
            (Some(later), Some(earlier)) => {
                Some(Leg { alpha: later.alpha.or(earlier.alpha), beta: later.beta.or(earlier.beta) })
            }
            (later, earlier) => later.or(earlier),
        };
        Self {
            alpha: self.alpha.or(earlier.alpha),
            beta: self.beta.or(earlier.beta),
            send: leg(self.send, earlier.send),
            deliver: leg(self.deliver, earlier.deliver),
            uplink: leg(self.uplink, earlier.uplink),
        }
    }
}

/// A duration; for `deserialize_with`.
pub(crate) fn alpha<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Micros>, D::Error> {
    parse_duration(&String::deserialize(deserializer)?).map(Some).map_err(D::Error::custom)
}

/// A bandwidth (`50GBps`, `400Gbps`) or its inverse as papers print it (`105us/MB`).
pub(crate) fn beta<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<MicrosPerByte>, D::Error> {
    parse_beta(&String::deserialize(deserializer)?).map(Some).map_err(D::Error::custom)
}

impl<'de> Deserialize<'de> for PairAsWritten {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        let parsed = text.find(['-', '>']).and_then(|middle| {
            let way = if text[middle..].starts_with('-') { PairDirection::Both } else { PairDirection::One };
            let (from, to) = (text[..middle].parse().ok()?, text[middle + 1..].parse().ok()?);
            Some(Self { from, to, way })
        });
        let refuse = || D::Error::custom(format!("`{text}` is no pair of ranks; write `0-1` (both ways) or `0>1`"));
        parsed.ok_or_else(refuse)
    }
}

impl<'de> Deserialize<'de> for PairsAsWritten {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "`all`, `same` or a list of pairs such as `0-1`";
        let visitor = WordOrList { words: &["all", "same"], expected, item: PhantomData };
        Ok(match deserializer.deserialize_any(visitor)? {
            WordOr::Word("all") => Self::All,
            WordOr::Word(_) => Self::Same,
            WordOr::List(pairs) => Self::These(pairs),
        })
    }
}

impl<'de> Deserialize<'de> for Ports {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = "`each` or lists of the ranks that share a port";
        let visitor = WordOrList { words: &["each"], expected, item: PhantomData };
        Ok(match deserializer.deserialize_any(visitor)? {
            WordOr::Word(_) => Self::Each,
            WordOr::List(groups) => Self::Groups(groups),
        })
    }
}

impl<'de> Deserialize<'de> for SteppedSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(SpanVisitor)
    }
}

/// What a user is told whose file has a range in the old form, which excludes its end.
fn old_form(text: &str, (start, end): (u32, u32), step: &str) -> String {
    let (last, step) = (end - 1, if step == "1" { String::new() } else { format!("/{step}") });
    match start == last {
        true => format!("`{text}` means rank {start} only; write `{start}-{end}{step}` for both"),
        false => format!(
            "`{text}` means `{start}-{last}{step}`, without rank {end}; write that, or `{start}-{end}{step}` with rank {end}"
        ),
    }
}

struct SpanVisitor;

impl Visitor<'_> for SpanVisitor {
    type Value = SteppedSpan;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a rank, or several such as `0-7` (0 to 7) or `0-7/2` (every second)")
    }

    fn visit_u64<E: serde::de::Error>(self, rank: u64) -> Result<SteppedSpan, E> {
        let end = u32::try_from(rank).ok().and_then(|rank| rank.checked_add(1));
        let end = end.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Unsigned(rank), &self))?;
        Ok(SteppedSpan((end - 1..end).step_by(1)))
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<SteppedSpan, E> {
        let (range, step) = text.split_once('/').unwrap_or((text, "1"));
        let ends = match range.split_once("..") {
            Some((start, end)) => {
                let ends: Option<(u32, u32)> = start.parse().ok().zip(end.parse().ok());
                if let Some((start, end)) = ends.filter(|(start, end)| start < end) {
                    tracing::warn!("{}", old_form(text, (start, end), step));
                }
                ends
            }
            None => range.parse::<RankSpan>().ok().map(|span| (span.first, span.last + 1)),
        };
        let step = step.parse().ok().filter(|&step: &usize| step > 0);
        let span = ends.filter(|(start, end)| start < end).zip(step);
        let span = span.map(|((start, end), step): ((u32, u32), _)| SteppedSpan((start..end).step_by(step)));
        span.ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }
}

/// Reads one of certain words, or a list.
struct WordOrList<T> {
    words: &'static [&'static str],
    expected: &'static str,
    item: PhantomData<T>,
}

enum WordOr<T> {
    Word(&'static str),
    List(Vec<T>),
}

impl<'de, T: Deserialize<'de>> Visitor<'de> for WordOrList<T> {
    type Value = WordOr<T>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.expected)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
        let word = self.words.iter().find(|word| **word == text);
        word.map(|word| WordOr::Word(word)).ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Self::Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element()? {
            items.push(item);
        }
        Ok(WordOr::List(items))
    }
}

/// A map that keeps the order in which it was written.
#[derive(Debug)]
pub(crate) struct OrderedEntries<T>(pub(crate) Vec<(String, T)>);

impl<T> OrderedEntries<T> {
    pub(crate) fn get(&self, name: &str) -> Option<&T> {
        self.0.iter().find(|(known, _)| known == name).map(|(_, value)| value)
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.0.iter().map(|(name, _)| name.as_str())
    }
}

impl<T> Default for OrderedEntries<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for OrderedEntries<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder<T>(PhantomData<T>);

        impl<'de, T: Deserialize<'de>> Visitor<'de> for InOrder<T> {
            type Value = OrderedEntries<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut entries = OrderedEntries::default();
                while let Some((name, value)) = map.next_entry::<String, T>()? {
                    entries.0.push((name, value));
                }
                Ok(entries)
            }
        }

        deserializer.deserialize_map(InOrder(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_old_form_of_a_range_is_explained() {
        assert_eq!(old_form("0..1", (0, 1), "1"), "`0..1` means rank 0 only; write `0-1` for both");
        let told = old_form("0..8/2", (0, 8), "2");
        assert_eq!(told, "`0..8/2` means `0-7/2`, without rank 8; write that, or `0-8/2` with rank 8");
    }
}
