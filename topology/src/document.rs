//! Text that a person or a program wrote, and the place in it where something is wrong.
//!
//! The principal type is [`Document`]: JSON or YAML with the name of its source. Parsing is bounded (no aliases, little
//! nesting, memory proportional to the text), and every fault has `origin:line:column`. Some faults are visible only
//! after parsing (a rank out of range). [`Document::fault`] finds the place of such a fault: it reads the text again,
//! up to a path such as `links[3].to`. This second pass happens only when there is an error to show.

use crate::plain_words::plain_words;
use crate::spelling::shorten_message;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Error as _, IgnoredAny, MapAccess, SeqAccess, Visitor,
};
use std::fmt;

/// How a document is written.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Syntax {
    /// JSON, as RFC 8259 has it.
    Json,
    /// YAML 1.2.
    Yaml,
}

/// A text, its syntax and what to call it in messages.
#[derive(Clone, Copy, Debug)]
pub struct Document<'a> {
    /// A file name, or what the text is.
    pub origin: &'a str,
    /// The text.
    pub text: &'a str,
    /// How it is written.
    pub syntax: Syntax,
}

/// One step of a path into a document.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PathSegment<'a> {
    /// The value of a key.
    Key(&'a str),
    /// An element of a list, from 0.
    Index(usize),
}

/// Something wrong at a place in a text.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{origin}:{line}:{column}: {reason}")]
pub struct TextError {
    /// The file, or what the text was called.
    pub origin: String,
    /// Line, from 1.
    pub line: usize,
    /// Column, from 1; in JSON, where the value ends.
    pub column: usize,
    /// What is wrong there.
    pub reason: String,
}

/// Nesting beyond this is refused; our deepest format needs nine levels.
const MAX_DEPTH: usize = 32;

impl<'a> Document<'a> {
    /// A JSON text.
    pub fn json(origin: &'a str, text: &'a str) -> Self {
        Self { origin, text, syntax: Syntax::Json }
    }

    /// A YAML text.
    pub fn yaml(origin: &'a str, text: &'a str) -> Self {
        Self { origin, text, syntax: Syntax::Yaml }
    }

    /// Reads the whole text as one value.
    ///
    /// # Errors
    /// [`TextError`] where the syntax, a type, a key or a checked value is wrong.
    pub fn parse<T: DeserializeOwned>(&self) -> Result<T, TextError> {
        match self.syntax {
            Syntax::Json => serde_json::from_str(self.text).map_err(|error| self.json_error(&error)),
            Syntax::Yaml => serde_saphyr::from_str_with_options(self.text, self.yaml_options())
                .map_err(|error| self.yaml_error(&error)),
        }
    }

    /// The error that says `reason` at `path`, or as near to it as the path exists.
    pub fn fault(&self, path: &[PathSegment<'_>], reason: impl Into<String>) -> TextError {
        let reason = reason.into();
        let mut path = path;
        loop {
            if let Some((line, column)) = self.locate(path) {
                return TextError { origin: self.origin.to_owned(), line, column, reason };
            }
            let Some((_, parent)) = path.split_last() else {
                return TextError { origin: self.origin.to_owned(), line: 1, column: 1, reason };
            };
            path = parent;
        }
    }

    /// Line and column of the value at `path`, if the text has one.
    pub fn locate(&self, path: &[PathSegment<'_>]) -> Option<(usize, usize)> {
        self.walk(path).filter(|end| end.reason.starts_with(REACHED)).map(|end| (end.line, end.column))
    }

    /// The string at `path`, if the text has one there; what follows it is not read.
    pub fn text_at(&self, path: &[PathSegment<'_>]) -> Option<String> {
        self.walk(path)?.reason.strip_prefix(REACHED).map(str::to_owned)
    }

    /// Walks to `path` and raises an error there, because the parser then tells the position.
    fn walk(&self, path: &[PathSegment<'_>]) -> Option<TextError> {
        let goal = Goal(path);
        match self.syntax {
            Syntax::Json => {
                let walked = goal.deserialize(&mut serde_json::Deserializer::from_str(self.text));
                walked.err().map(|error| self.json_error(&error))
            }
            Syntax::Yaml => {
                let walk = |deserializer: serde_saphyr::Deserializer<'_, '_>| goal.deserialize(deserializer);
                let options = self.yaml_options();
                let walked = serde_saphyr::with_deserializer_from_str_with_options(self.text, options, walk);
                walked.err().map(|error| self.yaml_error(&error))
            }
        }
    }

    fn yaml_options(&self) -> serde_saphyr::Options {
        // Memory is bounded by the text: without aliases nothing can be repeated.
        let length = self.text.len().max(1024);
        serde_saphyr::options! {
            budget: serde_saphyr::budget! {
                max_aliases: 0,
                max_anchors: 0,
                max_depth: MAX_DEPTH,
                max_documents: 1,
                max_events: 2 * length,
                max_nodes: length,
                max_total_scalar_bytes: length,
            },
            strict_booleans: true,
            with_snippet: false,
        }
    }

    fn json_error(&self, error: &serde_json::Error) -> TextError {
        let text = error.to_string();
        // The position is printed in front, as in all other messages.
        let reason = text.rsplit_once(" at line ").map_or(text.as_str(), |(reason, _)| reason);
        let reason = shorten_message(&plain_words(reason));
        TextError { origin: self.origin.to_owned(), line: error.line().max(1), column: error.column().max(1), reason }
    }

    fn yaml_error(&self, error: &serde_saphyr::Error) -> TextError {
        use serde_saphyr::MessageFormatter as _;
        let error = error.without_snippet();
        let reason = match error {
            serde_saphyr::Error::Budget { .. } => {
                format!("anchors and aliases, several documents and more than {MAX_DEPTH} levels are not accepted here")
            }
            error => serde_saphyr::UserMessageFormatter.format_message(error).into_owned(),
        };
        let place = error.location().filter(|location| location.line() > 0);
        let (line, column) = place.map_or((1, 1), |place| (place.line() as usize, place.column() as usize));
        // The parser names the last key of the map. A map that begins in the first column is the whole document.
        let whole = (column == 1 && reason.starts_with("missing field")).then(|| self.locate(&[])).flatten();
        let (line, column) = whole.unwrap_or((line, column));
        TextError { origin: self.origin.to_owned(), line, column, reason: shorten_message(&plain_words(&reason)) }
    }
}

/// The beginning of the error that means success. No parser begins an error like this. The string at the path follows.
const REACHED: &str = "\u{1}reached";

/// Descends along a path and raises [`REACHED`] at its end.
struct Goal<'p>(&'p [PathSegment<'p>]);

impl<'de> DeserializeSeed<'de> for Goal<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Goal<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        let Some((step, rest)) = self.0.split_first() else {
            return Err(A::Error::custom(REACHED));
        };
        while let Some(key) = map.next_key::<String>()? {
            if *step == PathSegment::Key(&key) {
                return map.next_value_seed(Goal(rest));
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let (index, rest) = match self.0.split_first() {
            Some((PathSegment::Index(index), rest)) => (*index, rest),
            Some(_) => return Err(A::Error::custom("no such key")),
            None => return Err(A::Error::custom(REACHED)),
        };
        for _ in 0..index {
            if list.next_element::<IgnoredAny>()?.is_none() {
                return Ok(());
            }
        }
        list.next_element_seed(Goal(rest)).map(|_| ())
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.scalar()
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.scalar()
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        Err(E::custom(if self.0.is_empty() { format!("{REACHED}{text}") } else { "no such key".to_owned() }))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.scalar()
    }
}

impl Goal<'_> {
    fn scalar<E: serde::de::Error>(&self) -> Result<(), E> {
        Err(E::custom(if self.0.is_empty() { REACHED } else { "no such key" }))
    }
}

#[cfg(test)]
mod tests {
    use super::PathSegment::{Index, Key};
    use super::*;

    const JSON: &str =
        "{\n \"a\": 1,\n \"links\": [\n  {\"from\": 0, \"to\": 1},\n  {\"from\": 0,\n   \"to\": 77}\n ]\n}";
    const YAML: &str = "a: 1\nlinks:\n  - {from: 0, to: 1}\n  - from: 0\n    to: 77\n";

    #[test]
    fn finds_values_by_path() {
        let to = [Key("links"), Index(1), Key("to")];
        assert_eq!(Document::json("x", JSON).locate(&to), Some((6, 11)));
        assert_eq!(Document::yaml("x", YAML).locate(&to), Some((5, 9)));
        for document in [Document::json("x", JSON), Document::yaml("x", YAML)] {
            assert_eq!(document.locate(&[Key("links"), Index(2)]), None);
            assert_eq!(document.locate(&[Key("absent")]), None);
            assert_eq!(document.locate(&[Key("a"), Key("b")]), None);
            assert_eq!(document.locate(&[Index(0)]), None);
        }
        assert_eq!(Document::json("x", JSON).locate(&[Key("links"), Index(1)]).map(|(line, _)| line), Some(5));
        assert_eq!(Document::yaml("x", YAML).locate(&[Key("links"), Index(1)]).map(|(line, _)| line), Some(4));
    }

    #[test]
    fn peeks_at_strings() {
        let documents = [
            Document::json("x", "{\"a\": 1, \"format\": \"f at line 3\", ["),
            Document::yaml("x", "a: 1\nformat: f at line 3\n]"),
        ];
        for document in documents {
            assert_eq!(document.text_at(&[Key("format")]).as_deref(), Some("f at line 3"));
            assert_eq!(document.text_at(&[Key("a")]).as_deref(), Some(""));
            assert_eq!(document.text_at(&[Key("b")]), None);
        }
    }

    #[test]
    fn a_fault_falls_back_to_the_nearest_existing_place() {
        let error = Document::yaml("m.yaml", YAML).fault(&[Key("links"), Index(1), Key("via")], "missing");
        assert_eq!((error.line, error.to_string().ends_with(": missing")), (4, true), "{error}");
    }

    #[test]
    fn bombs_are_refused() {
        let aliases = "a: &a [1,1]\nb: &b [*a,*a]\nc: [*b,*b]\n";
        let error = Document::yaml("x", aliases).parse::<serde_json::Value>().unwrap_err();
        assert!(error.to_string().starts_with("x:1:7: anchors and aliases"), "{error}");
        let deep = "[".repeat(100_000);
        assert!(Document::yaml("x", &deep).parse::<serde_json::Value>().is_err());
        assert!(Document::json("x", &deep).parse::<serde_json::Value>().is_err());
    }
}
