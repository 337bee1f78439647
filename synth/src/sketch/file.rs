//! A sketch as written: YAML with the position of everything that can be wrong.
//!
//! The principal type is [`SketchFile`]. Reading checks spelling, kinds and units, nothing that needs a topology;
//! that is the business of `resolve`. The YAML is bounded before and while it is read: bytes, nesting, nodes and
//! alias expansions, so that no file of any content costs more than a few milliseconds.

use super::error::{Mistake, Position, SketchError};
use super::shapes::present;
use crate::StrategyKind;
use serde::{Deserialize, Serialize};
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Location, MergeKeyPolicy, Spanned};
use std::fmt;
use std::time::Duration;
use topology::quantity::{QuantityError, parse_bytes, parse_duration};

/// The longest file that is read; the longest shipped sketch has 2 KB.
const MAX_BYTES: usize = 1 << 20;
/// The most nodes (scalars, lists, mappings) of a file.
const MAX_NODES: usize = 200_000;
/// Sketches nest four deep; YAML bombs nest deeper.
const MAX_DEPTH: usize = 12;

/// A sketch as written.
#[derive(Clone, Debug)]
pub struct SketchFile {
    pub(super) origin: String,
    pub(super) comment: Option<String>,
    pub(super) body: Body,
}

/// Every key of a sketch. Absent keys leave all freedom; a key without a value is an error.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Body {
    #[serde(default, deserialize_with = "present")]
    pub(super) name: Option<String>,
    #[serde(default, deserialize_with = "present")]
    pub(super) why: Option<String>,
    #[serde(default, deserialize_with = "present")]
    pub(super) topology: Option<Spanned<Shape>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) links: Option<Links>,
    #[serde(default, deserialize_with = "present")]
    pub(super) relays: Option<Spanned<Relays>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) senders: Option<Spanned<RankMap>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) own_chunks_first: Option<Spanned<bool>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) max_machine_hops: Option<Spanned<u32>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) symmetry: Option<Spanned<SymmetryWish>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) connections: Option<Connections>,
    #[serde(default, deserialize_with = "present")]
    pub(super) objective: Option<Objective>,
    #[serde(default, deserialize_with = "present")]
    pub(super) chunks_per_rank: Option<Spanned<u32>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) sizes: Option<Spanned<SizesAsWritten>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) strategy: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) time_limit: Option<Spanned<String>>,
}

/// The shape of the topologies that a sketch is for.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Shape {
    #[serde(default, deserialize_with = "present")]
    pub(super) machines: Option<usize>,
    #[serde(default, deserialize_with = "present")]
    pub(super) ranks_per_machine: Option<usize>,
    /// A SPEC that fits, for hints and for the test that resolves every shipped sketch.
    #[serde(default, deserialize_with = "present")]
    pub(super) such_as: Option<String>,
}

/// Which links may be used.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Links {
    #[serde(default, deserialize_with = "present")]
    pub(super) forbid: Option<Spanned<Vec<Spanned<LinkRule>>>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) allow_only: Option<Spanned<Vec<Spanned<LinkRule>>>>,
}

/// Some links: `between_machines`, `[0, 3]`, or `{from: 0, to: [1, 2], both_ways: true}`.
#[derive(Clone, Debug)]
pub(super) enum LinkRule {
    Class(LinkClass),
    Pair { from: Spanned<u64>, to: Spanned<u64> },
    Pattern(LinkPattern),
}

/// Links by their ends. With a class, `from` and `to` count ranks inside each machine; without, over all.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LinkPattern {
    #[serde(default, deserialize_with = "present")]
    pub(super) class: Option<LinkClass>,
    #[serde(default, deserialize_with = "present")]
    pub(super) from: Option<Ranks>,
    #[serde(default, deserialize_with = "present")]
    pub(super) to: Option<Ranks>,
    #[serde(default)]
    pub(super) both_ways: bool,
}

/// Where a link leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum LinkClass {
    InsideMachine,
    BetweenMachines,
}

/// One rank or a list of ranks, and where it stands.
#[derive(Clone, Debug)]
pub(super) struct Ranks {
    pub(super) at: Location,
    pub(super) list: Vec<Spanned<u64>>,
}

/// Local ranks, each with a list of local ranks.
#[derive(Clone, Debug)]
pub(super) struct RankMap(pub(super) Vec<(Spanned<u64>, Ranks)>);

/// Who may send to whom on another machine.
#[derive(Clone, Debug)]
pub(super) enum Relays {
    /// Everybody to everybody.
    All,
    /// Local rank i to local rank i.
    Direct,
    /// These.
    Map(RankMap),
}

/// Which symmetries a schedule should have.
#[derive(Clone, Debug)]
pub(super) enum SymmetryWish {
    Auto,
    None,
    List(Vec<Spanned<SymmetryRule>>),
}

/// `{rotate: 2, within: 16}` or `{permutation: [1, 0, …]}`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SymmetryRule {
    #[serde(default, deserialize_with = "present")]
    pub(super) rotate: Option<Spanned<u64>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) within: Option<Spanned<u64>>,
    #[serde(default, deserialize_with = "present")]
    pub(super) permutation: Option<Spanned<Vec<Spanned<u64>>>>,
}

/// How many connections a switch should carry.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Connections {
    /// As few as possible (TACCL's `uc-min`): large messages.
    Few,
    /// As many as possible (TACCL's `uc-max`): small messages.
    Many,
}

/// What matters most when schedules are equally long.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Objective {
    /// Few steps.
    Latency,
    /// Few bytes on the busiest link.
    Bandwidth,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SizesAsWritten {
    #[serde(default, deserialize_with = "present")]
    from: Option<Spanned<String>>,
    #[serde(default, deserialize_with = "present")]
    to: Option<Spanned<String>>,
}

/// The buffer sizes that a sketch is meant for, in bytes, both ends included.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct SizeRange {
    /// The smallest.
    pub from: u64,
    /// The largest.
    pub to: u64,
}

impl SizeRange {
    /// Every size.
    pub const ANY: Self = Self { from: 0, to: u64::MAX };

    /// Whether a size is in the range.
    pub fn contains(&self, bytes: u64) -> bool {
        (self.from..=self.to).contains(&bytes)
    }
}

impl fmt::Display for SizeRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let show = |bytes: u64| topology::quantity::show_bytes(topology::Bytes(bytes as f64));
        match (self.from, self.to) {
            (from, u64::MAX) => write!(f, "from {}", show(from)),
            (0, to) => write!(f, "up to {}", show(to)),
            (from, to) => write!(f, "{} to {}", show(from), show(to)),
        }
    }
}

impl SketchFile {
    /// Reads a sketch; `origin` is what errors call it.
    ///
    /// # Errors
    /// [`SketchError`] with the position of the first mistake.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SketchError> {
        let fail = |mistake| SketchError { file: origin.to_owned(), position: None, mistake: Box::new(mistake) };
        if text.len() > MAX_BYTES {
            return Err(fail(Mistake::TooLong { bytes: text.len(), limit: MAX_BYTES }));
        }
        if text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#')) {
            return Err(fail(Mistake::Nothing));
        }
        let body = serde_saphyr::from_str_with_options(text, yaml_options()).map_err(|error| {
            let position = error.location().and_then(position_of);
            SketchError { position, ..fail(translate(error.without_snippet())) }
        })?;
        Ok(Self { origin: origin.to_owned(), comment: leading_comment(text), body })
    }

    /// A SPEC of a topology that the sketch fits, if it names one.
    pub fn such_as(&self) -> Option<&str> {
        self.body.topology.as_ref()?.value.such_as.as_deref()
    }

    /// An error about the value at `location`.
    pub(super) fn error(&self, location: Location, mistake: Mistake) -> SketchError {
        SketchError { file: self.origin.clone(), position: position_of(location), mistake: Box::new(mistake) }
    }

    pub(super) fn sizes(&self) -> Result<SizeRange, SketchError> {
        let Some(sizes) = &self.body.sizes else { return Ok(SizeRange::ANY) };
        let end = |text: &Option<Spanned<String>>, default| match text {
            None => Ok(default),
            Some(text) => parse_bytes(&text.value).map_err(|error| self.bad_quantity(text, error)),
        };
        let range = SizeRange { from: end(&sizes.value.from, 0)?, to: end(&sizes.value.to, u64::MAX)? };
        if range.from > range.to {
            let text = format!("`sizes` ends at {} bytes, before it begins at {}", range.to, range.from);
            return Err(self.error(sizes.referenced, Mistake::Inconsistent { text }));
        }
        Ok(range)
    }

    pub(super) fn time_limit(&self) -> Result<Option<Duration>, SketchError> {
        let Some(text) = &self.body.time_limit else { return Ok(None) };
        let limit = parse_duration(&text.value).map_err(|error| self.bad_quantity(text, error))?;
        match Duration::try_from_secs_f64(limit.0 * 1e-6) {
            Ok(limit) if !limit.is_zero() => Ok(Some(limit)),
            _ => Err(self.bad_value(text, "a time limit above zero")),
        }
    }

    /// The strategy asked for; `None` for `auto`.
    pub(super) fn strategy(&self) -> Result<Option<StrategyKind>, SketchError> {
        let Some(word) = self.body.strategy.as_ref().filter(|word| word.value != "auto") else { return Ok(None) };
        word.value.parse().map(Some).map_err(|_: String| {
            let known = StrategyKind::ALL.iter().map(|kind| kind.as_str());
            let accepted = std::iter::once("auto").chain(known).collect();
            self.error(word.referenced, Mistake::UnknownWord { word: word.value.clone(), accepted })
        })
    }

    /// The chunk count asked for; zero chunks carry nothing.
    pub(super) fn chunks_per_rank(&self) -> Result<Option<u32>, SketchError> {
        self.at_least_one(self.body.chunks_per_rank.as_ref(), "a number of chunks (1 or more)")
    }

    pub(super) fn max_machine_hops(&self) -> Result<Option<(u32, u32)>, SketchError> {
        let hops = self.body.max_machine_hops.as_ref();
        let count = self.at_least_one(hops, "a number of machine hops (1 or more)")?;
        Ok(count.zip(hops.map(line_of)))
    }

    fn at_least_one(&self, number: Option<&Spanned<u32>>, expected: &'static str) -> Result<Option<u32>, SketchError> {
        match number {
            Some(number) if number.value == 0 => Err(self.bad_value(number, expected)),
            number => Ok(number.map(|number| number.value)),
        }
    }

    fn bad_quantity(&self, text: &Spanned<String>, error: QuantityError) -> SketchError {
        self.error(text.referenced, Mistake::Quantity(error))
    }

    fn bad_value<T: fmt::Display>(&self, value: &Spanned<T>, expected: &'static str) -> SketchError {
        self.error(value.referenced, Mistake::BadValue { given: value.value.to_string(), expected })
    }
}

/// The line of a value, from 1.
pub(super) fn line_of<T>(value: &Spanned<T>) -> u32 {
    u32::try_from(value.referenced.line()).unwrap_or(u32::MAX)
}

fn position_of(location: Location) -> Option<Position> {
    let number = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    (location.line() > 0).then(|| Position { line: number(location.line()), column: number(location.column()) })
}

fn yaml_options() -> serde_saphyr::Options {
    serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: MAX_DEPTH,
            flow_nesting_limit: MAX_DEPTH,
            max_nodes: MAX_NODES,
            max_events: 3 * MAX_NODES,
            max_documents: 1,
            max_anchors: 64,
            max_aliases: 64,
            max_recorded_anchor_events: MAX_NODES,
        },
        merge_keys: MergeKeyPolicy::Error,
        strict_booleans: true,
        with_snippet: false,
        emit_comments: false,
    }
}

/// The parser's error in the words of this module.
fn translate(error: &serde_saphyr::Error) -> Mistake {
    use serde_saphyr::Error as Yaml;
    let message = match error {
        Yaml::SerdeUnknownField { field, expected, .. } => {
            return Mistake::UnknownKey { key: field.clone(), accepted: expected.clone() };
        }
        Yaml::SerdeUnknownVariant { variant, expected, .. } => {
            return Mistake::UnknownWord { word: variant.clone(), accepted: expected.clone() };
        }
        Yaml::SerdeInvalidType { unexpected, expected, .. } | Yaml::SerdeInvalidValue { unexpected, expected, .. } => {
            return Mistake::WrongKind { expected: expected.clone(), found: unexpected.clone() };
        }
        Yaml::Unexpected { expected, .. } => format!("expected {}", kind(expected)),
        Yaml::InvalidScalar { ty, .. } => format!("expected {}", kind(ty)),
        Yaml::InvalidBooleanStrict { .. } => "expected true or false".to_owned(),
        Yaml::DuplicateMappingKey { key: Some(key), .. } => format!("key `{key}` is given twice"),
        Yaml::MergeKeyNotAllowed { .. } => "merge keys (`<<`) are not accepted in sketches".to_owned(),
        Yaml::Budget { breach: BudgetBreach::Documents { .. }, .. } => "a file holds one sketch".to_owned(),
        Yaml::Budget { .. } => "larger or deeper than any sketch".to_owned(),
        other => without_position(&other.to_string()),
    };
    Mistake::Unreadable { message }
}

/// The parser's names of YAML events and Rust types, in words.
fn kind(expected: &str) -> &str {
    match expected {
        "mapping start" => "a map such as `{key: value}`",
        "sequence start" => "a list such as `[a, b]`",
        "string scalar" | "scalar" => "a single value",
        "u32" | "u64" | "usize" => "a whole number ≥ 0",
        other => other,
    }
}

/// The first line of a parser's message, without the position that [`SketchError`] states anyway.
fn without_position(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let end = [" at line ", " (defined at line "].iter().filter_map(|tail| line.find(tail)).min();
    line[..end.unwrap_or(line.len())].chars().take(300).collect()
}

/// The comment at the top of the file: by custom it says why the sketch exists.
fn leading_comment(text: &str) -> Option<String> {
    let lines = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
    let comment = lines.collect::<Vec<_>>().join(" ");
    (!comment.is_empty()).then_some(comment)
}
