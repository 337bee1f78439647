//! How single values are spelled on the command line.

use schedule::{Collective, ReduceOp};
use std::time::Duration;
use synth::StrategyKind;

/// How many chunks to cut a rank's data into.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ChunkCount {
    /// Search.
    Auto,
    /// Exactly this many.
    Pinned(u32),
}

impl std::str::FromStr for ChunkCount {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match (text, text.parse()) {
            ("auto", _) => Ok(Self::Auto),
            (_, Ok(count)) if count > 0 => Ok(Self::Pinned(count)),
            _ => Err("expected `auto` or a number of chunks from 1".to_owned()),
        }
    }
}

/// All strategies, or one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct StrategyChoice(pub Option<StrategyKind>);

impl std::str::FromStr for StrategyChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self(None)),
            name => name.parse().map(|kind| Self(Some(kind))),
        }
    }
}

/// A Pareto point by its chunks, steps and rounds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PointChoice(pub [u32; 3]);

impl std::str::FromStr for PointChoice {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Result<Vec<u32>, _> = text.split(',').map(str::parse).collect();
        let point = numbers.ok().and_then(|numbers| numbers.try_into().ok());
        point.map(Self).ok_or_else(|| "expected chunks, steps and rounds, such as 6,3,7".to_owned())
    }
}

pub(super) fn collective() -> impl clap::builder::TypedValueParser<Value = Collective> {
    spelled(Collective::ALL.iter().map(|value| value.as_str()))
}

/// What `tune --collective` takes in its list.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TunedCollectives {
    /// All that can be tuned.
    All,
    /// One of them.
    One(Collective),
}

impl TunedCollectives {
    const ALL: &str = "all";

    /// Those that can be tuned.
    fn each() -> impl Iterator<Item = Collective> {
        Collective::ALL.iter().copied().filter(|of| of.takes_vectors())
    }

    /// Those of a list, each once.
    pub(crate) fn of_list(list: &[Self]) -> Vec<Collective> {
        let mut found: Vec<Collective> = Vec::new();
        for choice in list {
            let named = match choice {
                Self::All => Self::each().collect(),
                Self::One(one) => vec![*one],
            };
            for of in named {
                if !found.contains(&of) {
                    found.push(of);
                }
            }
        }
        found
    }
}

impl std::str::FromStr for TunedCollectives {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == Self::ALL { Ok(Self::All) } else { text.parse().map(Self::One) }
    }
}

pub(super) fn tuned_collectives() -> impl clap::builder::TypedValueParser<Value = TunedCollectives> {
    spelled(std::iter::once(TunedCollectives::ALL).chain(TunedCollectives::each().map(|of| of.as_str())))
}

pub(super) fn op() -> impl clap::builder::TypedValueParser<Value = ReduceOp> {
    spelled(ReduceOp::ALL.iter().map(|value| value.as_str()))
}

pub(super) fn strategy() -> impl clap::builder::TypedValueParser<Value = StrategyChoice> {
    spelled(std::iter::once("auto").chain(StrategyKind::ALL.iter().map(|value| value.as_str())))
}

/// A parser that knows all accepted words, so that help and completions list them.
fn spelled<T>(names: impl Iterator<Item = &'static str>) -> impl clap::builder::TypedValueParser<Value = T>
where
    T: std::str::FromStr<Err = String> + Clone + Send + Sync + 'static,
{
    use clap::builder::TypedValueParser;
    clap::builder::PossibleValuesParser::new(names.collect::<Vec<_>>()).try_map(|name| name.parse::<T>())
}

pub(super) fn size(text: &str) -> Result<u64, String> {
    if text.contains("..") {
        return Err(
            "one size is expected here; `synth --sizes`, `sweep --sizes` and `run --size` take ranges".to_owned()
        );
    }
    topology::quantity::parse_bytes(text).map_err(|error| error.to_string())
}

/// The longest duration: sums of durations up to this are times that clocks can represent.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);

pub(super) fn duration(text: &str) -> Result<Duration, String> {
    let time = topology::quantity::parse_duration(text).map_err(|error| error.to_string())?;
    match Duration::try_from_secs_f64(time.0 * 1e-6) {
        Ok(time) if time <= LONGEST => Ok(time),
        Ok(_) => Err("nobody waits longer than a year".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

/// `2%` or `0.5 %`, as a fraction; `0` needs no percent sign.
pub(super) fn percent(text: &str) -> Result<f64, String> {
    if text == "0" {
        return Ok(0.0);
    }
    let number = |text: &str| text.trim_end().parse::<f64>().ok().filter(|it| it.is_finite() && *it >= 0.0);
    match (text.strip_suffix('%').map(number), number(text)) {
        (Some(Some(percent)), _) => Ok(percent / 100.0),
        // Nobody knows whether 0.5 is a half or 0.5 %.
        (None, Some(bare)) if bare < 1.0 => {
            let percent = topology::quantity::show_number(bare * 100.0);
            Err(format!("a percentage needs its sign: write `{percent}%` for the fraction {bare}, or `{bare}%`"))
        }
        (None, Some(bare)) => Err(format!("a percentage needs its sign: write `{bare}%`")),
        _ => Err("expected a percentage from 0, such as `2%`".to_owned()),
    }
}

pub(super) fn slowdown(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(factor) if factor.is_finite() && factor > 0.0 => Ok(factor),
        _ => Err("expected a number above 0".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_have_their_sign() {
        assert_eq!((percent("2%"), percent("0.5 %"), percent("0")), (Ok(0.02), Ok(0.005), Ok(0.0)));
        for wrong in ["2", "0.02", "-1%", "x%", "NaN%", "1e300x"] {
            assert!(percent(wrong).is_err_and(|error| error.contains("`2%`")), "{wrong}");
        }
    }

    #[test]
    fn durations_are_as_people_say_them() {
        let seconds = |text: &str| duration(text).map(|time| time.as_secs_f64());
        assert_eq!((seconds("5m"), seconds("1h30m"), seconds("250ms")), (Ok(300.0), Ok(5400.0), Ok(0.25)));
        assert!(duration("9000h").is_err() && duration("5").is_err());
    }
}
