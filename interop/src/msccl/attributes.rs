//! The attributes of one element of an MSCCL file, read as what the format says they are.
//!
//! The principal type is [`Attributes`]. It collects what is wrong with them, so that all of it is reported at once.

use super::document::{BufferOffset, Space, TextPosition};
use std::borrow::Cow;
use topology::closest;

/// The most attributes that an element may have; the formats know 14.
pub(super) const MOST_ATTRIBUTES: usize = 32;

/// The value of an attribute; `None` if it has an escape other than XML's five.
pub(super) fn unescaped(value: &str) -> Option<String> {
    quick_xml::escape::unescape(value).ok().map(Cow::into_owned)
}

/// A name or value for messages; long ones are shortened.
pub(super) fn shown(text: &str) -> String {
    text.chars().take(32).collect()
}

/// An attribute as it was read.
pub(super) struct Attribute {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) at: TextPosition,
    pub(super) used: bool,
}

/// The attributes of one element.
pub(super) struct Attributes<'t> {
    pub(super) element: &'t str,
    pub(super) at: TextPosition,
    pub(super) list: Vec<Attribute>,
    pub(super) faults: Vec<(TextPosition, String)>,
}

impl Attributes<'_> {
    pub(super) fn has(&self, name: &str) -> bool {
        self.list.iter().any(|attribute| attribute.name == name)
    }

    fn take(&mut self, name: &str) -> Option<(String, TextPosition)> {
        let attribute = self.list.iter_mut().find(|attribute| attribute.name == name)?;
        attribute.used = true;
        Some((attribute.value.clone(), attribute.at))
    }

    fn required(&mut self, name: &str) -> Option<(String, TextPosition)> {
        let found = self.take(name);
        if found.is_none() {
            let known = self.list.iter().filter(|attribute| !attribute.used).map(|attribute| attribute.name.as_str());
            let hint =
                closest(name, known).map(|close| format!("; did `{}` mean that?", shown(close))).unwrap_or_default();
            self.faults.push((self.at, format!("<{}> has no attribute `{name}`{hint}", self.element)));
        }
        found
    }

    pub(super) fn text(&mut self, name: &str) -> String {
        self.required(name).map(|(value, _)| value).unwrap_or_default()
    }

    /// A number in `least..=most`; if there is none, adds a fault and returns `least` (or 0).
    pub(super) fn number(&mut self, name: &str, least: i64, most: i64) -> i64 {
        let value = self.required(name).and_then(|(value, at)| self.checked(name, &value, at, least, most));
        value.unwrap_or(least.max(0))
    }

    pub(super) fn optional(&mut self, name: &str, least: i64, most: i64) -> Option<i64> {
        let (value, at) = self.take(name)?;
        self.checked(name, &value, at, least, most)
    }

    fn checked(&mut self, name: &str, value: &str, at: TextPosition, least: i64, most: i64) -> Option<i64> {
        let digits = value.strip_prefix('-').unwrap_or(value);
        let decimal = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
        let octal = digits.len() > 1 && digits.starts_with('0');
        let shown = shown(value);
        let reason = match value.parse::<i64>() {
            Ok(number) if decimal && !octal && (least..=most).contains(&number) => return Some(number),
            Ok(_) if decimal && octal => format!("`{name}` is {shown}, which the runtimes read as octal"),
            Ok(number) if decimal && number < least => format!("`{name}` is {shown}, but at least {least} is needed"),
            _ if decimal => format!("`{name}` is {shown}, but at most {most} is possible"),
            _ => format!("`{name}` is `{shown}`, which is not a decimal number"),
        };
        self.faults.push((at, reason));
        None
    }

    /// One of a list of words; if there is none, adds a fault and returns `instead`.
    pub(super) fn word<T>(&mut self, name: &str, from: fn(&str) -> Option<T>, all: &[T], instead: T) -> T
    where
        T: Copy + std::fmt::Display,
    {
        let Some((value, at)) = self.required(name) else { return instead };
        from(&value).unwrap_or_else(|| {
            let known: Vec<String> = all.iter().map(T::to_string).collect();
            let shown = shown(&value);
            self.faults.push((at, format!("`{name}` is `{shown}`; one of: {}", known.join(" "))));
            instead
        })
    }

    pub(super) fn location(&mut self, space: &str, offset: &str) -> BufferOffset {
        let space = self.word(space, Space::from_word, Space::ALL, Space::Input);
        BufferOffset { space, offset: u32::try_from(self.number(offset, -1, u32::MAX.into())).ok() }
    }
}
