//! Reading a sketch file: YAML in which every value keeps its position.
//!
//! The principal type is [`SketchFile`]. Reading checks spelling, kinds and units; `resolve` checks everything that
//! needs a topology. The size of the YAML is limited before and while it is read: bytes, nesting, nodes and alias
//! expansions. So no file costs more than a few milliseconds, whatever its content.

use super::body::{Body, SizeRange};
use super::error::{Mistake, Position, SketchError};
use crate::problem::StrategyKind;
use serde::de::DeserializeOwned;
use serde_saphyr::budget::BudgetBreach;
use serde_saphyr::{Location, MergeKeyPolicy, Spanned};
use std::fmt;
use std::time::Duration;
use topology::quantity::{QuantityError, parse_bytes, parse_duration};
use topology::shorten;

/// The longest file that is read, in bytes; the longest shipped sketch has 2 KB.
const MAX_BYTES: usize = 1 << 20;
/// The most nodes (scalars, lists, mappings) of a file.
const MAX_NODES: usize = 200_000;
/// The deepest nesting of a file. Sketches nest four deep; YAML bombs nest deeper.
const MAX_DEPTH: usize = 12;

/// A sketch as written, not yet resolved for a topology.
#[derive(Clone, Debug)]
pub struct SketchFile {
    pub(super) origin: String,
    pub(super) comment: Option<String>,
    pub(super) body: Body,
}

impl SketchFile {
    /// Reads a sketch; `origin` is the name of the file in errors.
    ///
    /// # Errors
    /// [`SketchError`] with the position of the first mistake.
    pub fn parse(text: &str, origin: &str) -> Result<Self, SketchError> {
        let body = read_yaml(text, origin)?;
        Ok(Self { origin: origin.to_owned(), comment: leading_comment(text), body })
    }

    /// A SPEC of a topology that the sketch fits, if it names one.
    pub fn such_as(&self) -> Option<&str> {
        self.body.topology.as_ref()?.value.such_as.as_deref()
    }

    pub(super) fn error(&self, location: Location, mistake: Mistake) -> SketchError {
        error_at(&self.origin, location, mistake)
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

    /// The strategy that the sketch names; `None` for `auto`.
    pub(super) fn strategy(&self) -> Result<Option<StrategyKind>, SketchError> {
        let Some(word) = self.body.strategy.as_ref().filter(|word| word.value != "auto") else { return Ok(None) };
        word.value.parse().map(Some).map_err(|_: String| {
            let known = StrategyKind::ALL.iter().map(|kind| kind.as_str());
            let accepted = std::iter::once("auto").chain(known).collect();
            self.error(word.referenced, Mistake::UnknownWord { word: word.value.clone(), accepted })
        })
    }

    /// The chunk count that the sketch names; zero is an error.
    pub(super) fn chunks_per_rank(&self) -> Result<Option<u32>, SketchError> {
        let chunks = self.body.chunks_per_rank.as_ref();
        match chunks.filter(|chunks| chunks.value as usize > schedule::MAX_CHUNKS) {
            Some(chunks) => Err(self.bad_value(chunks, "a number of chunks up to 16777216")),
            None => self.at_least_one(chunks, "a number of chunks (1 or more)"),
        }
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

/// An error about the value at `location` of the file `origin`.
pub(super) fn error_at(origin: &str, location: Location, mistake: Mistake) -> SketchError {
    SketchError { file: origin.to_owned(), position: position_of(location), mistake: Box::new(mistake) }
}

/// Reads YAML of bounded size; `origin` is the name of the file in errors.
pub(super) fn read_yaml<T: DeserializeOwned>(text: &str, origin: &str) -> Result<T, SketchError> {
    let fail = |mistake| SketchError { file: origin.to_owned(), position: None, mistake: Box::new(mistake) };
    if text.len() > MAX_BYTES {
        return Err(fail(Mistake::TooLong { bytes: text.len(), limit: MAX_BYTES }));
    }
    if text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('#')) {
        return Err(fail(Mistake::Nothing));
    }
    serde_saphyr::from_str_with_options(text, yaml_options()).map_err(|error| {
        let position = error.location().and_then(position_of);
        SketchError { position, ..fail(translate(error.without_snippet())) }
    })
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

/// Turns the parser's error into a [`Mistake`].
fn translate(error: &serde_saphyr::Error) -> Mistake {
    use serde_saphyr::Error as Yaml;
    let message = match error {
        Yaml::SerdeUnknownField { field, expected, .. } => {
            return Mistake::UnknownKey { key: shorten(field), accepted: expected.clone() };
        }
        Yaml::SerdeUnknownVariant { variant, expected, .. } => {
            return Mistake::UnknownWord { word: shorten(variant), accepted: expected.clone() };
        }
        Yaml::SerdeInvalidType { unexpected, expected, .. } | Yaml::SerdeInvalidValue { unexpected, expected, .. } => {
            return Mistake::WrongKind { expected: expected.clone(), found: shorten(unexpected) };
        }
        Yaml::Unexpected { expected, .. } => format!("expected {}", kind(expected)),
        Yaml::InvalidScalar { ty, .. } => format!("expected {}", kind(ty)),
        Yaml::InvalidBooleanStrict { .. } => "expected true or false".to_owned(),
        Yaml::DuplicateMappingKey { key: Some(key), .. } => format!("key `{}` is given twice", shorten(key)),
        Yaml::MergeKeyNotAllowed { .. } => "merge keys (`<<`) are not accepted in sketches".to_owned(),
        Yaml::Budget { breach: BudgetBreach::Documents { .. }, .. } => "a file holds one sketch".to_owned(),
        Yaml::Budget { .. } => "larger or deeper than any sketch".to_owned(),
        other => without_position(&other.to_string()),
    };
    Mistake::Unreadable { message }
}

/// Turns the parser's names of YAML events and Rust types into words for users.
fn kind(expected: &str) -> &str {
    match expected {
        "mapping start" => "a map such as `{key: value}`",
        "sequence start" => "a list such as `[a, b]`",
        "string scalar" | "scalar" => "a single value",
        "u32" | "u64" | "usize" => "a whole number ≥ 0",
        other => other,
    }
}

/// The first line of a parser's message, without the position that [`SketchError`] states already.
fn without_position(text: &str) -> String {
    let line = text.lines().next().unwrap_or_default();
    let end = [" at line ", " (defined at line "].iter().filter_map(|tail| line.find(tail)).min();
    line[..end.unwrap_or(line.len())].chars().take(300).collect()
}

/// The comment at the top of the file; by convention it says why the sketch exists.
fn leading_comment(text: &str) -> Option<String> {
    let lines = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
    let comment = lines.collect::<Vec<_>>().join(" ");
    (!comment.is_empty()).then_some(comment)
}
