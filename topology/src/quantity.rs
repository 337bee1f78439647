//! Sizes, durations, bandwidths and ranges of ranks as people write them: `8MB`, `0.5us`, `50GBps`, `0-3`.
//!
//! The principal functions are [`parse_bytes`], [`parse_duration`] and [`parse_bandwidth`]. SPECs, machine files,
//! sketches and the command line read all numbers with them, and print them with `show_…`. Units are case-sensitive,
//! because `200Gbps` (bits) is `25GBps` (bytes), and a wrong guess would not be noticed. Sizes are exact integers.

use crate::{Bytes, Micros, MicrosPerByte};
use serde::de::{self, Deserialize, Deserializer, Visitor};
use std::fmt;

/// A quantity that could not be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{text}` is not {what}: {reason}")]
pub struct QuantityError {
    /// What was written (shortened if long).
    pub text: String,
    /// What was expected, with its article.
    pub what: &'static str,
    /// Why it is not that.
    pub reason: String,
}

/// The factors of the letters before a unit.
const PREFIXES: [(&str, u64); 9] = [
    ("", 1),
    ("K", 1_000),
    ("M", 1_000_000),
    ("G", 1_000_000_000),
    ("T", 1_000_000_000_000),
    ("Ki", 1 << 10),
    ("Mi", 1 << 20),
    ("Gi", 1 << 30),
    ("Ti", 1 << 40),
];
const SIZE_UNITS: &str = "B, KB, MB, GB, TB, KiB, MiB, GiB, TiB, or these without the B";

/// The units of bytes per second; those of bits per second follow.
const BYTE_RATES: [&str; 2] = ["Bps", "B/s"];
const BIT_RATES: [&str; 3] = ["bps", "bit/s", "b/s"];
const RATE_UNITS: &str = "bytes: GBps, MBps, GiBps, GB/s; bits: Gbps, Mbps, Gbit/s";

/// The length of each unit in microseconds. For the first, which is shorter than one, it is the divisor.
const DURATIONS: [(&str, f64); 7] =
    [("ns", 1e3), ("us", 1.0), ("µs", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6), ("h", 3600e6)];
const DURATION_UNITS: &str = "ns, us, ms, s, m, h";

/// Reads a size: `1KB` = `1K` = 1000, `1KiB` = `1Ki` = 1024, `1.5MB`, plain bytes.
///
/// # Errors
/// [`QuantityError`] if it is no number with a known unit, no whole number of bytes, or 2⁶⁴ bytes or more.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    let refuse = |reason: String| error(text, "a size", reason);
    let (number, unit) = split(text).map_err(refuse)?;
    let prefix = unit.strip_suffix('B').unwrap_or(unit);
    let Some((_, scale)) = PREFIXES.iter().find(|(name, _)| *name == prefix) else {
        let known = PREFIXES.iter().map(|(name, _)| format!("{name}B"));
        return Err(refuse(unknown_unit(unit, known, SIZE_UNITS)));
    };
    let (whole, fraction) = number.split_once('.').unwrap_or((number, ""));
    let fraction = fraction.trim_end_matches('0');
    let too_large = || refuse("it does not fit 64 bits".to_owned());
    let digits = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<u64>().map_err(|_| too_large()) };
    let whole = digits(whole)?.checked_mul(*scale).ok_or_else(too_large)?;
    if fraction.is_empty() {
        return Ok(whole);
    }
    // Twelve decimals are one byte in a TB; anything finer is no whole number of bytes (2⁻⁴⁰ has forty, unused).
    let not_whole = || refuse("it is no whole number of bytes".to_owned());
    if fraction.len() > 12 {
        return Err(not_whole());
    }
    let parts = u128::from(digits(fraction)?) * u128::from(*scale);
    let denominator = 10u128.pow(fraction.len() as u32);
    if !parts.is_multiple_of(denominator) {
        return Err(not_whole());
    }
    let fraction = u64::try_from(parts / denominator).map_err(|_| too_large())?;
    whole.checked_add(fraction).ok_or_else(too_large)
}

/// Reads a duration: `700ns`, `0.5us`, `1ms`, `2s`, `5m`, `1h30m`; a bare `0` is zero.
///
/// # Errors
/// [`QuantityError`] if it is no number with a known unit, or several of them.
pub fn parse_duration(text: &str) -> Result<Micros, QuantityError> {
    let refuse = |reason: String| error(text, "a duration", reason);
    let mut rest = text.trim();
    if float(rest) == Ok(0.0) {
        return Ok(Micros::ZERO);
    }
    let mut sum: Option<Micros> = None;
    while sum.is_none() || !rest.is_empty() {
        let (number, after) = split(rest).map_err(refuse)?;
        let (unit, next) = after.split_at(after.find(|c: char| c.is_ascii_digit()).unwrap_or(after.len()));
        let value = float(number).map_err(refuse)?;
        let unit = unit.trim_end();
        let Some((name, micros)) = DURATIONS.iter().find(|(name, _)| *name == unit) else {
            return Err(refuse(unknown_unit(unit, DURATIONS.iter().map(|(name, _)| *name), DURATION_UNITS)));
        };
        let part = Micros(if *name == "ns" { value / micros } else { value * micros });
        sum = Some(sum.map_or(part, |sum| sum + part));
        rest = next;
    }
    Ok(sum.unwrap_or(Micros::ZERO))
}

/// Reads a bandwidth as its inverse: bytes per second (`50GBps` = `50GB/s` = 50·10⁹, `50GiBps` = 50·2³⁰) or bits per
/// second (`200Gbps` = `200Gbit/s` = `25GBps`).
///
/// # Errors
/// [`QuantityError`] if it is no number with a known unit, or zero.
pub fn parse_bandwidth(text: &str) -> Result<MicrosPerByte, QuantityError> {
    let refuse = |reason: String| error(text, "a bandwidth", reason);
    let (number, unit) = split(text).map_err(refuse)?;
    let value = float(number).map_err(refuse)?;
    let of = |units: &[&str]| {
        let prefix = units.iter().find_map(|suffix| unit.strip_suffix(suffix))?;
        PREFIXES.iter().find(|(name, _)| *name == prefix).map(|(_, scale)| *scale)
    };
    // Microseconds in a second, times the bits of a byte.
    let (micros, scale) = match (of(&BYTE_RATES), of(&BIT_RATES)) {
        (Some(scale), _) => (1e6, scale),
        (None, Some(scale)) => (8e6, scale),
        (None, None) => {
            let known = BYTE_RATES.iter().chain(&BIT_RATES);
            let known = known.flat_map(|rate| PREFIXES.iter().map(move |(name, _)| format!("{name}{rate}")));
            return Err(refuse(unknown_unit(unit, known, RATE_UNITS)));
        }
    };
    // One division of two numbers that are mostly exact, so β is the nearest double to the true quotient.
    let beta = micros / (value * scale as f64);
    if !beta.is_finite() {
        return Err(refuse("a bandwidth is more than zero".to_owned()));
    }
    Ok(MicrosPerByte(beta))
}

/// Reads β as files may write it: a bandwidth (`50GBps`, `400Gbit/s`), or its inverse as papers print it (`105us/MB`).
///
/// # Errors
/// As [`parse_bandwidth`] and [`parse_time_per_size`].
pub fn parse_beta(text: &str) -> Result<MicrosPerByte, QuantityError> {
    if text.contains('/') && !text.trim_end().ends_with("/s") {
        parse_time_per_size(text)
    } else {
        parse_bandwidth(text)
    }
}

/// A rank, or a range of ranks with both its ends, as it is written: `3`, `0-3`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RankSpan {
    /// The first rank.
    pub first: u32,
    /// The last rank, which is part of the range.
    pub last: u32,
}

impl RankSpan {
    /// All of them, ascending.
    pub fn ranks(self) -> impl ExactSizeIterator<Item = u32> {
        self.first..self.last + 1
    }
}

impl std::str::FromStr for RankSpan {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        let refuse = |reason: &str| error(text, "a rank or a range of ranks", reason.to_owned());
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let number = |word: &str| word.trim().parse::<u32>().ok();
        match (number(first), number(last)) {
            (_, Some(u32::MAX)) => Err(refuse("there are no ranks as high")),
            (Some(first), Some(last)) if first <= last => Ok(Self { first, last }),
            (Some(_), Some(_)) => Err(refuse("a range ascends")),
            _ => Err(refuse("expected a number such as 6, or both ends of a range such as 0-3")),
        }
    }
}

impl<'de> Deserialize<'de> for RankSpan {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct RankSpanVisitor;
        impl Visitor<'_> for RankSpanVisitor {
            type Value = RankSpan;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a rank such as 6, or a range such as 0-3")
            }
            fn visit_u64<E: de::Error>(self, rank: u64) -> Result<RankSpan, E> {
                let rank = u32::try_from(rank).ok().filter(|&rank| rank < u32::MAX);
                let span = rank.map(|rank| RankSpan { first: rank, last: rank });
                span.ok_or_else(|| E::custom("there are no ranks as high"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<RankSpan, E> {
                text.parse().map_err(E::custom)
            }
        }
        deserializer.deserialize_any(RankSpanVisitor)
    }
}

/// The ranks of several spans, for lists in files. A short span can name very many ranks, so their number is limited.
///
/// # Errors
/// The reason, if there are more than [`crate::MAX_RANKS`].
pub fn listed(spans: impl IntoIterator<Item = RankSpan>) -> Result<Vec<u32>, String> {
    let mut ranks = Vec::new();
    for span in spans {
        if ranks.len() + span.ranks().len() > crate::MAX_RANKS {
            return Err(format!("a list names more than {} ranks", crate::MAX_RANKS));
        }
        ranks.extend(span.ranks());
    }
    Ok(ranks)
}

/// Reads a time per size, the way papers print β: `105us/MB`, `3.28us/32KB`.
///
/// # Errors
/// [`QuantityError`] if it is no duration, a slash and a size above zero.
pub fn parse_time_per_size(text: &str) -> Result<MicrosPerByte, QuantityError> {
    let refuse = |reason: String| error(text, "a time per size", reason);
    let Some((time, size)) = text.split_once('/') else {
        return Err(refuse("expected a duration, `/` and a size, such as `105us/MB`".to_owned()));
    };
    let time = parse_duration(time)?;
    // `us/MB` means one MB.
    let bytes = if size.starts_with(|first: char| first.is_ascii_digit()) {
        parse_bytes(size)?
    } else {
        parse_bytes(&format!("1{size}"))?
    };
    if bytes == 0 {
        return Err(refuse("the size is zero".to_owned()));
    }
    Ok(MicrosPerByte(time.0 / bytes as f64))
}

/// Prints a duration with a unit that fits: `0.5 µs`, `43.75 ms`, `2 s`.
pub fn show_duration(time: Micros) -> String {
    let (value, unit) = match time.0.abs() {
        micros if micros >= 1e6 => (time.0 / 1e6, "s"),
        micros if micros >= 1e3 => (time.0 / 1e3, "ms"),
        _ => (time.0, "µs"),
    };
    format!("{} {unit}", show_number(value))
}

/// Prints a size in decimal units: `8 MB`, `1.049 MB`, `12 B`.
pub fn show_bytes(bytes: Bytes) -> String {
    let (value, unit) = match bytes.0.abs() {
        bytes_ if bytes_ >= 1e12 => (bytes.0 / 1e12, "TB"),
        bytes_ if bytes_ >= 1e9 => (bytes.0 / 1e9, "GB"),
        bytes_ if bytes_ >= 1e6 => (bytes.0 / 1e6, "MB"),
        bytes_ if bytes_ >= 1e3 => (bytes.0 / 1e3, "KB"),
        _ => (bytes.0, "B"),
    };
    format!("{} {unit}", show_number(value))
}

/// Prints β as a bandwidth: `12.5 GB/s`; a β of zero is `unlimited`.
pub fn show_bandwidth(beta: MicrosPerByte) -> String {
    if beta.0 == 0.0 {
        return "unlimited".to_owned();
    }
    match beta.gbps() {
        gbps if gbps < 0.1 => format!("{} MB/s", show_number(gbps * 1e3)),
        gbps => format!("{} GB/s", show_number(gbps)),
    }
}

/// The same in bytes and in bits, because networks are sold in bits: `25 GB/s (200 Gbit/s)`.
pub fn show_rates(beta: MicrosPerByte) -> String {
    if beta.0 == 0.0 {
        return show_bandwidth(beta);
    }
    format!("{} ({} Gbit/s)", show_bandwidth(beta), show_number(8.0 * beta.gbps()))
}

/// Prints any number with four significant digits, without trailing zeros; very large ones as `1.5e20`.
pub fn show_number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    if value.abs() >= 1e15 {
        // The shortest digits of the number with four digits.
        return format!("{value:.3e}").parse().map_or_else(|_| value.to_string(), |short: f64| format!("{short:e}"));
    }
    let magnitude = value.abs().log10().floor() as i32;
    let decimals = (3 - magnitude).clamp(0, 12) as usize;
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Splits into a plain decimal number and what follows it.
fn split(text: &str) -> Result<(&str, &str), String> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let is_number = number.bytes().any(|byte| byte.is_ascii_digit()) && number.matches('.').count() <= 1;
    if is_number { Ok((number, unit.trim_start())) } else { Err("it must begin with a plain number ≥ 0".to_owned()) }
}

fn float(number: &str) -> Result<f64, String> {
    match number.parse::<f64>() {
        Ok(value) if value.is_finite() => Ok(value),
        _ => Err("the number is out of range".to_owned()),
    }
}

fn unknown_unit(unit: &str, known: impl Iterator<Item = impl AsRef<str>>, accepted: &str) -> String {
    let unit = shorten(unit);
    if unit.is_empty() {
        return format!("it needs a unit ({accepted})");
    }
    // A unit in small letters may be one of bits or one of bytes.
    let alike = known.filter(|name| name.as_ref().eq_ignore_ascii_case(&unit));
    let alike: Vec<String> = alike.map(|name| format!("`{}`", name.as_ref())).collect();
    match alike.is_empty() {
        true => format!("unknown unit `{unit}` (accepted: {accepted})"),
        false => format!("unknown unit `{unit}`, did you mean {}? (accepted: {accepted})", alike.join(" or ")),
    }
}

fn shorten(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn error(text: &str, what: &'static str, reason: String) -> QuantityError {
    QuantityError { text: shorten(text), what, reason }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn span(text: &str) -> Result<RankSpan, QuantityError> {
        text.parse()
    }

    #[test]
    fn reads_sizes() {
        for (text, expected) in [
            ("0", 0),
            ("17", 17),
            ("1B", 1),
            ("1KB", 1000),
            ("1KiB", 1024),
            ("8MB", 8_000_000),
            ("64M", 64_000_000),
            ("64Mi", 64 << 20),
            ("2 K", 2000),
            ("1.5MB", 1_500_000),
            ("0.5KiB", 512),
            (" 64 MiB ", 64 << 20),
            ("1.000GB", 1_000_000_000),
            ("18446744073709551615", u64::MAX),
            ("1000000000000000000", 1_000_000_000_000_000_000),
        ] {
            assert_eq!(parse_bytes(text), Ok(expected), "{text}");
        }
    }

    #[test]
    fn reads_durations_and_bandwidths_exactly() {
        for (text, expected) in
            [("0.5us", 0.5), ("0.7µs", 0.7), ("1ms", 1000.0), ("700ns", 0.7), ("2s", 2e6), ("0", 0.0), ("2.6us", 2.6)]
                .into_iter()
                .chain([("5m", 300e6), ("1h30m", 5400e6), ("1m 0.5s", 60.5e6)])
        {
            assert_eq!(parse_duration(text), Ok(Micros(expected)), "{text}");
        }
        for (text, expected) in [
            ("50GBps", 2e-5),
            ("12.5GBps", 8e-5),
            ("125GBps", 8e-6),
            ("100MBps", 0.01),
            ("1GiBps", 1e6 / 1_073_741_824.0),
            ("50GiBps", 1e6 / (50.0 * 1_073_741_824.0)),
            ("25GB/s", 4e-5),
            // Bits: exactly the double for an eighth of as many bytes.
            ("200Gbps", 4e-5),
            ("200Gbit/s", 4e-5),
            ("200Gb/s", 4e-5),
            ("800Mbps", 0.01),
        ] {
            assert_eq!(parse_bandwidth(text), Ok(MicrosPerByte(expected)), "{text}");
        }
        for (text, expected) in [("105us/MB", 105e-6), ("23us/MB", 23e-6), ("0.02us/KB", 0.02e-3), ("1us/2B", 0.5)] {
            assert_eq!(parse_time_per_size(text), Ok(MicrosPerByte(expected)), "{text}");
        }
        for gbps in [1.0, 12.5, 25.0, 50.0, 75.0, 125.0, 450.0] {
            let difference = parse_bandwidth(&format!("{gbps}GBps")).unwrap() / MicrosPerByte::from_gbps(gbps) - 1.0;
            assert!(difference.abs() < 1e-15, "{gbps}");
        }
    }

    #[test]
    fn reads_what_files_say_about_links_and_ranks() {
        for (text, beta) in [("25GBps", 4e-5), ("200Gbit/s", 4e-5), ("25GB/s ", 4e-5), ("40us/MB", 4e-5)] {
            assert_eq!(parse_beta(text), Ok(MicrosPerByte(beta)), "{text}");
        }
        let ends = |text: &str| span(text).map(|span| (span.first, span.last));
        let spans = |text: &str| text.split(' ').map(|text| span(text).expect("a span")).collect::<Vec<_>>();
        assert_eq!(listed(spans("6 0-3")), Ok(vec![6, 0, 1, 2, 3]));
        assert!(listed(spans("0-131071 0")).is_err() && listed(spans("0-4294967294")).is_err());
        assert_eq!((ends("3"), ends("0-3"), ends(" 2 - 2")), (Ok((3, 3)), Ok((0, 3)), Ok((2, 2))));
    }

    #[test]
    fn refuses_with_a_reason() {
        for (error, fragment) in [
            (parse_bytes("").unwrap_err(), "`` is not a size: it must begin with a plain number"),
            (parse_bytes("-1").unwrap_err(), "≥ 0"),
            (parse_bytes("1mb").unwrap_err(), "did you mean `MB`?"),
            (parse_bytes("1e18").unwrap_err(), "unknown unit `e18`"),
            (parse_bytes("1.5").unwrap_err(), "no whole number of bytes"),
            (parse_bytes("0.0000000000001TB").unwrap_err(), "no whole number of bytes"),
            (parse_bytes("18446744073709551616").unwrap_err(), "does not fit 64 bits"),
            (parse_bytes("99999999TB").unwrap_err(), "does not fit 64 bits"),
            (parse_bytes("1.2.3MB").unwrap_err(), "plain number"),
            (parse_bytes(&"9".repeat(100_000)).unwrap_err(), "does not fit 64 bits"),
            (parse_bytes(&"é".repeat(100)).unwrap_err(), "…"),
            (parse_duration("1").unwrap_err(), "it needs a unit (ns, us"),
            (parse_duration("1h30").unwrap_err(), "it needs a unit (ns, us"),
            (parse_duration("").unwrap_err(), "≥ 0"),
            (parse_duration("NaN").unwrap_err(), "≥ 0"),
            (parse_duration("-0.5us").unwrap_err(), "≥ 0"),
            (parse_duration(&format!("{}s", "9".repeat(400))).unwrap_err(), "out of range"),
            (parse_bandwidth("50gbps").unwrap_err(), "did you mean `GBps` or `Gbps`? (accepted: bytes: GBps"),
            (parse_bandwidth("50GBit/s").unwrap_err(), "did you mean `Gbit/s`?"),
            (parse_bandwidth("0GBps").unwrap_err(), "more than zero"),
            (parse_bandwidth("inf").unwrap_err(), "plain number"),
            (parse_bandwidth("5").unwrap_err(), "it needs a unit"),
            (span("3-1").unwrap_err(), "ascends"),
            (span("1..3").unwrap_err(), "0-3"),
            (span("-1").unwrap_err(), "0-3"),
            (span("4294967296").unwrap_err(), "a number such as 6"),
            (span("0-4294967295").unwrap_err(), "no ranks as high"),
            (parse_time_per_size("5us").unwrap_err(), "`105us/MB`"),
            (parse_time_per_size("5us/0B").unwrap_err(), "zero"),
        ] {
            assert!(error.to_string().contains(fragment), "{error} lacks {fragment}");
            assert!(error.to_string().len() < 400, "{error}");
        }
    }

    #[test]
    fn shows_what_people_read() {
        for (shown, expected) in [
            (show_duration(Micros(0.5)), "0.5 µs"),
            (show_duration(Micros(43750.0)), "43.75 ms"),
            (show_duration(Micros(2e6)), "2 s"),
            (show_duration(Micros(999.96)), "1000 µs"),
            (show_bytes(Bytes(8e6)), "8 MB"),
            (show_bytes(Bytes(1_048_576.0)), "1.049 MB"),
            (show_bytes(Bytes(0.0)), "0 B"),
            (show_bandwidth(MicrosPerByte(8e-5)), "12.5 GB/s"),
            (show_bandwidth(MicrosPerByte(0.1)), "10 MB/s"),
            (show_bandwidth(MicrosPerByte(0.0)), "unlimited"),
            (show_rates(MicrosPerByte(4e-5)), "25 GB/s (200 Gbit/s)"),
        ] {
            assert_eq!(shown, expected);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC{0,24}") {
            let _ = (parse_bytes(&text), parse_duration(&text), parse_beta(&text), parse_time_per_size(&text), span(&text));
        }

        #[test]
        fn whole_numbers_of_units_are_exact(count in 0u64..1_000_000, unit in 0usize..PREFIXES.len()) {
            let (name, scale) = PREFIXES[unit];
            prop_assert_eq!(parse_bytes(&format!("{count}{name}")), Ok(count * scale));
            prop_assert_eq!(parse_bytes(&format!("{count}{name}B")), Ok(count * scale));
        }
    }
}
