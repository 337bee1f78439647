//! Sizes, durations and bandwidths as people write them: `8MB`, `0.5us`, `50GBps`.
//!
//! The principal functions are [`parse_bytes`], [`parse_duration`] and [`parse_bandwidth`]; SPECs, machine files,
//! sketches and the command line all read numbers through them. Units are case-sensitive, because `50Gbps` (bits)
//! is eight times less than `50GBps` and a guess would be wrong silently. Sizes are exact integers.

use crate::{Bytes, Micros, MicrosPerByte};

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

const SIZES: [(&str, u64); 10] = [
    ("", 1),
    ("B", 1),
    ("KB", 1_000),
    ("MB", 1_000_000),
    ("GB", 1_000_000_000),
    ("TB", 1_000_000_000_000),
    ("KiB", 1 << 10),
    ("MiB", 1 << 20),
    ("GiB", 1 << 30),
    ("TiB", 1 << 40),
];

/// How many of each unit make a second; dividing by it rounds once, multiplying by its inverse would twice.
const DURATIONS: [(&str, f64); 5] = [("ns", 1e9), ("us", 1e6), ("µs", 1e6), ("ms", 1e3), ("s", 1.0)];

/// Reads a size: `1KB` = 1000, `1KiB` = 1024, `1.5MB`, plain bytes.
///
/// # Errors
/// [`QuantityError`] if it is no number with a known unit, no whole number of bytes, or 2⁶⁴ bytes or more.
pub fn parse_bytes(text: &str) -> Result<u64, QuantityError> {
    let refuse = |reason: String| error(text, "a size", reason);
    let (number, unit) = split(text).map_err(refuse)?;
    let Some((_, scale)) = SIZES.iter().find(|(name, _)| *name == unit) else {
        return Err(refuse(unknown_unit(unit, SIZES.iter().map(|(name, _)| *name))));
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

/// Reads a duration: `700ns`, `0.5us`, `1ms`, `2s`; a bare `0` is zero.
///
/// # Errors
/// [`QuantityError`] if it is no number with a known unit.
pub fn parse_duration(text: &str) -> Result<Micros, QuantityError> {
    let refuse = |reason: String| error(text, "a duration", reason);
    let (number, unit) = split(text).map_err(refuse)?;
    let value = float(number).map_err(refuse)?;
    if unit.is_empty() && value == 0.0 {
        return Ok(Micros::ZERO);
    }
    let Some((_, per_second)) = DURATIONS.iter().find(|(name, _)| *name == unit) else {
        return Err(refuse(unknown_unit(unit, DURATIONS.iter().map(|(name, _)| *name))));
    };
    let micros = if *per_second > 1e6 { value / (per_second / 1e6) } else { value * (1e6 / per_second) };
    Ok(Micros(micros))
}

/// Reads a bandwidth as its inverse: `50GBps` (10⁹ bytes per second), `50GiBps` (2³⁰), `100MBps`.
///
/// # Errors
/// [`QuantityError`] if it is no number with a known unit, or zero.
pub fn parse_bandwidth(text: &str) -> Result<MicrosPerByte, QuantityError> {
    let refuse = |reason: String| error(text, "a bandwidth", reason);
    let (number, unit) = split(text).map_err(refuse)?;
    let value = float(number).map_err(refuse)?;
    let scale = unit.strip_suffix("ps").and_then(|size| SIZES[1..].iter().find(|(name, _)| *name == size));
    let Some((_, scale)) = scale else {
        let names: Vec<String> = SIZES[1..].iter().map(|(name, _)| format!("{name}ps")).collect();
        return Err(refuse(unknown_unit(unit, names.iter().map(String::as_str))));
    };
    // One division of two numbers that are mostly exact: β is the nearest double to the true quotient.
    let beta = 1e6 / (value * *scale as f64);
    if !beta.is_finite() {
        return Err(refuse("a bandwidth is more than zero".to_owned()));
    }
    Ok(MicrosPerByte(beta))
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

/// Four significant digits, without trailing zeros.
fn show_number(value: f64) -> String {
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
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

fn unknown_unit<'a>(unit: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.filter(|name| !name.is_empty()).collect();
    let unit = shorten(unit);
    let accepted = known.join(", ");
    match known.iter().find(|name| name.eq_ignore_ascii_case(&unit)) {
        _ if unit.is_empty() => format!("it needs a unit ({accepted})"),
        Some(name) => format!("unknown unit `{unit}`, did you mean `{name}`? (accepted: {accepted})"),
        None => format!("unknown unit `{unit}` (accepted: {accepted})"),
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

    #[test]
    fn reads_sizes() {
        for (text, expected) in [
            ("0", 0),
            ("17", 17),
            ("1B", 1),
            ("1KB", 1000),
            ("1KiB", 1024),
            ("8MB", 8_000_000),
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
            (parse_duration("NaN").unwrap_err(), "≥ 0"),
            (parse_duration("-0.5us").unwrap_err(), "≥ 0"),
            (parse_duration(&format!("{}s", "9".repeat(400))).unwrap_err(), "out of range"),
            (parse_bandwidth("50Gbps").unwrap_err(), "did you mean `GBps`?"),
            (parse_bandwidth("0GBps").unwrap_err(), "more than zero"),
            (parse_bandwidth("inf").unwrap_err(), "plain number"),
            (parse_bandwidth("5").unwrap_err(), "it needs a unit"),
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
        ] {
            assert_eq!(shown, expected);
        }
    }

    proptest! {
        #[test]
        fn no_text_makes_a_parser_panic(text in "\\PC{0,24}") {
            let _ = (parse_bytes(&text), parse_duration(&text), parse_bandwidth(&text), parse_time_per_size(&text));
        }

        #[test]
        fn whole_numbers_of_units_are_exact(count in 0u64..1_000_000, unit in 0usize..SIZES.len()) {
            let (name, scale) = SIZES[unit];
            prop_assert_eq!(parse_bytes(&format!("{count}{name}")), Ok(count * scale));
        }
    }
}
