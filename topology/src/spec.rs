//! The SPEC of the command line, taken apart: `name[:params][,key=value]…`.
//!
//! The principal type is [`Spec`]. It splits the text and refuses what no topology accepts; families and machine files
//! say which keys they take and read the values.

use crate::quantity::{parse_bandwidth, parse_duration};
use crate::spelling::{closest, shorten};
use crate::{Latency, MAX_LISTED_LINKS, Micros, MicrosPerByte, TopologyError, TopologyResult};

/// Longer SPECs are refused unread; the longest sensible one has a few hundred letters.
const MAX_LENGTH: usize = 4096;

/// A SPEC as typed, in parts that borrow from it.
#[derive(Clone, Debug)]
pub(crate) struct Spec<'a> {
    /// The whole text.
    pub(crate) text: &'a str,
    /// What stands before the first `:` or `,`.
    pub(crate) name: &'a str,
    /// What stands between `:` and the first `,`.
    pub(crate) params: Option<&'a str>,
    /// The most links that it may name.
    pub(crate) most_links: usize,
    settings: Vec<(&'a str, &'a str)>,
}

/// What one link costs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct LinkCost {
    pub(crate) alpha: Micros,
    pub(crate) beta: MicrosPerByte,
    pub(crate) latency: Latency,
}

/// Families are idealised machines; these defaults are typical of papers on tori and meshes.
const DEFAULT_ALPHA: Micros = Micros(0.5);
const DEFAULT_BETA: MicrosPerByte = MicrosPerByte(1e6 / 50e9);

impl<'a> Spec<'a> {
    /// Splits `text` after a name that ends at `name_end`, or at the first `:` or `,`.
    pub(crate) fn parse(text: &'a str, name_end: Option<usize>) -> TopologyResult<Self> {
        if text.len() > MAX_LENGTH {
            let reason = format!("a SPEC has at most {MAX_LENGTH} bytes, this one {}", text.len());
            return Err(TopologyError::BadPart { part: shorten(text), reason });
        }
        let name_end = name_end.or_else(|| text.find([':', ','])).unwrap_or(text.len());
        let (name, rest) = text.split_at(name_end);
        let (params, rest) = match rest.strip_prefix(':') {
            Some(rest) => {
                let end = rest.find(',').unwrap_or(rest.len());
                (Some(&rest[..end]), &rest[end..])
            }
            None => (None, rest),
        };
        let mut settings: Vec<(&str, &str)> = Vec::new();
        for part in rest.split(',').skip(1) {
            let Some((key, value)) = part.split_once('=') else {
                let reason = "expected `key=value` after each comma".to_owned();
                return Err(TopologyError::BadPart { part: format!("`{part}`"), reason });
            };
            if settings.iter().any(|(seen, _)| *seen == key) {
                let reason = "this key is given twice".to_owned();
                return Err(TopologyError::BadPart { part: format!("`{key}`"), reason });
            }
            settings.push((key, value));
        }
        Ok(Self { text, name, params, most_links: MAX_LISTED_LINKS, settings })
    }

    /// The value of a key, if it is given.
    pub(crate) fn get(&self, key: &str) -> Option<&'a str> {
        self.settings.iter().find(|(known, _)| *known == key).map(|(_, value)| *value)
    }

    /// Refuses keys that are not among the `accepted` ones (`key`, or `key=values` as people are shown it).
    pub(crate) fn accept_keys(&self, accepted: &[&str]) -> TopologyResult<()> {
        let accepted = accepted.iter().map(|key| key.split_once('=').map_or(*key, |(key, _)| key));
        match self.settings.iter().find(|(key, _)| accepted.clone().all(|known| known != *key)) {
            Some((key, _)) => Err(unknown_word("key", key, accepted)),
            None => Ok(()),
        }
    }

    /// The value of a key that takes one of a few words; the first word is the default.
    pub(crate) fn choice<T: Copy>(&self, key: &str, words: &[(&str, T)]) -> TopologyResult<T> {
        let Some(value) = self.get(key) else {
            return Ok(words[0].1);
        };
        match words.iter().find(|(word, _)| *word == value) {
            Some((_, meaning)) => Ok(*meaning),
            None => Err(unknown_word(&format!("value of `{key}`"), value, words.iter().map(|(word, _)| *word))),
        }
    }

    /// A number from 1 that stands in `part` of the SPEC.
    pub(crate) fn number(&self, part: &str, text: &str) -> TopologyResult<u64> {
        match text.parse::<u64>() {
            Ok(number) if number > 0 && text.bytes().all(|byte| byte.is_ascii_digit()) => Ok(number),
            _ => Err(bad_part(format!("`{part}`"), format!("`{}` is no number from 1 to 2^64 - 1", shorten(text)))),
        }
    }

    /// The one number of `name:N`.
    pub(crate) fn count(&self) -> TopologyResult<u64> {
        self.sizes(1).map(|sizes| sizes[0])
    }

    /// The `dimensions` numbers of `name:AxB…`, each at least 1.
    pub(crate) fn sizes(&self, dimensions: usize) -> TopologyResult<Vec<u64>> {
        let form = ["N", "AxB", "AxBxC"].get(dimensions - 1).copied().unwrap_or("AxBxC…");
        let refuse = |reason: &str| TopologyError::BadPart {
            part: format!("`{}{}`", self.name, self.params.map(|it| format!(":{}", shorten(it))).unwrap_or_default()),
            reason: match dimensions {
                1 => format!("{reason}; expected `{}:{form}`, and {form} must be at least 1", self.name),
                _ => format!("{reason}; expected `{}:{form}` with numbers from 1", self.name),
            },
        };
        let params = self.params.ok_or_else(|| refuse("the size is missing"))?;
        let sizes: Vec<u64> = params
            .split('x')
            .take(dimensions + 1)
            .map(|size| match size.parse::<u64>() {
                Ok(value) if value > 0 && size.bytes().all(|byte| byte.is_ascii_digit()) => Ok(value),
                Ok(0) => Err(refuse("`0` is too small")),
                _ => Err(refuse(&format!("`{}` is no such number", shorten(size)))),
            })
            .collect::<TopologyResult<_>>()?;
        if sizes.len() == dimensions { Ok(sizes) } else { Err(refuse("the number of dimensions is wrong")) }
    }

    /// The costs of the links of each dimension, from `alpha=`, `bandwidth=` and `latency=`.
    pub(crate) fn costs(&self, dimensions: usize) -> TopologyResult<Vec<LinkCost>> {
        let alphas = self.per_dimension("alpha", dimensions, DEFAULT_ALPHA, parse_duration)?;
        let betas = self.per_dimension("bandwidth", dimensions, DEFAULT_BETA, parse_bandwidth)?;
        let latency = self.choice("latency", &LATENCIES)?;
        Ok(alphas.into_iter().zip(betas).map(|(alpha, beta)| LinkCost { alpha, beta, latency }).collect())
    }

    /// Numbers above zero, one for each of `count` things or one for all.
    pub(crate) fn ratios(&self, key: &str, count: usize, default: f64) -> TopologyResult<Vec<f64>> {
        self.per_dimension(key, count, default, |text| match text.parse::<f64>() {
            Ok(ratio) if (1e-6..=1e6).contains(&ratio) => Ok(ratio),
            _ => Err(format!("`{}` is no number from 0.000001 to 1000000", shorten(text))),
        })
    }

    /// `key=a/b/c`: one value for each dimension, or one for all.
    fn per_dimension<T: Copy, E: ToString>(
        &self,
        key: &str,
        dimensions: usize,
        default: T,
        parse: fn(&str) -> Result<T, E>,
    ) -> TopologyResult<Vec<T>> {
        let Some(text) = self.get(key) else {
            return Ok(vec![default; dimensions]);
        };
        let part = || format!("`{key}={text}`");
        let values: Vec<T> = per_slash(text)
            .into_iter()
            .map(|value| parse(value).map_err(|error| bad_part(part(), error)))
            .collect::<TopologyResult<_>>()?;
        match values.as_slice() {
            [one] => Ok(vec![*one; dimensions]),
            values if values.len() == dimensions => Ok(values.to_vec()),
            values => {
                let reason =
                    format!("{} values for {dimensions} dimension(s); give one, or one for each", values.len());
                Err(bad_part(part(), reason))
            }
        }
    }
}

/// Splits at slashes, except the slash of a unit such as `200Gbit/s`.
pub(crate) fn per_slash(text: &str) -> Vec<&str> {
    let (mut pieces, mut start) = (Vec::new(), 0);
    for (at, _) in text.match_indices('/') {
        let rest = &text[at + 1..];
        if rest != "s" && !rest.starts_with("s/") {
            pieces.push(&text[start..at]);
            start = at + 1;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

/// The words for [`Latency`] in SPECs and files; the default first.
pub(crate) const LATENCIES: [(&str, Latency); 2] = [("occupies", Latency::Occupies), ("pipelines", Latency::Pipelines)];

/// The error for a word that is not among the accepted ones.
pub(crate) fn unknown_word<'b>(
    what: &str,
    word: &str,
    accepted: impl Iterator<Item = &'b str> + Clone,
) -> TopologyError {
    TopologyError::UnknownWord {
        what: what.to_owned(),
        word: shorten(word),
        suggestion: closest(word, accepted.clone()).map(str::to_owned),
        accepted: accepted.map(str::to_owned).collect(),
    }
}

/// The error for a part of a SPEC that cannot be read.
pub(crate) fn bad_part(part: String, reason: impl ToString) -> TopologyError {
    TopologyError::BadPart { part, reason: reason.to_string() }
}
