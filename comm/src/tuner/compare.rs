//! Whether all ranks are about to measure the same, before they begin. Otherwise they would make different calls, and wait for each
//! other until a limit ends.
//!
//! The principal function is [`compare`].

use super::{CellWork, TuneCandidate, TuneOptions};
use crate::communicator::Communicator;
use crate::error::{CommError, CommResult};
use crate::numbers::mixed;
use crate::stock::measured_kind;
use serde_json::{Value, json};

/// Of a rank's reason the others learn so many bytes.
const LONGEST: usize = 1000;
/// A rank has so many times the memory of its buffers, at least: input, output, and what is sent on.
const BUFFERS: u64 = 3;

/// Things that all ranks must have in common, in the order in which they are compared.
type Described = Vec<(String, Value)>;

/// What this rank is about to measure, as far as all must agree: rank 0 alone looks at the budget, and limits may differ.
fn described(options: &TuneOptions, work: &[CellWork], candidates: &[TuneCandidate]) -> Described {
    let digest = |text: &str| text.bytes().fold(3, |digest, byte| mixed(digest, byte.into()));
    let cell = |digest_so_far, cell: &CellWork| mixed(digest_so_far, digest(&json!(cell).to_string()));
    let names: Vec<&str> = candidates.iter().map(TuneCandidate::name).collect();
    let contents: Vec<u64> = candidates.iter().map(TuneCandidate::digest).collect();
    let all = [
        ("collectives", json!(options.collectives)),
        ("sizes", json!(options.sizes)),
        ("type of elements", json!(options.dtype)),
        ("reduction", json!(options.op)),
        ("seed", json!(options.seed)),
        ("least samples", json!(options.least_samples)),
        ("device", json!(options.device)),
        ("candidates", json!(names)),
        ("contents of candidates", json!(contents)),
        ("cells", json!(work.iter().fold(work.len() as u64, cell))),
    ];
    all.map(|(name, value)| (name.to_owned(), value)).into()
}

/// In what this rank differs from rank 0: in the first thing that is not the same.
fn difference(own: &Described, of_zero: &Described) -> Option<String> {
    let ((name, own), (_, of_zero)) = own.iter().zip(of_zero).find(|(own, of_zero)| own != of_zero)?;
    Some(match (name.as_str(), own, of_zero) {
        ("contents of candidates" | "cells", ..) => format!("other {name} than rank 0"),
        (_, Value::Array(own), Value::Array(of_zero)) => {
            let is_other = |(own, of_zero): (&Value, &Value)| own != of_zero;
            let at = own.iter().zip(of_zero).position(is_other).unwrap_or(own.len().min(of_zero.len()));
            let text = |all: &[Value]| all.get(at).map_or("nothing".to_owned(), Value::to_string);
            format!("other {name} than rank 0: number {} is {}, not {}", at + 1, text(own), text(of_zero))
        }
        _ => format!("the {name} {own}, and rank 0 with {of_zero}"),
    })
}

/// Why this rank has too little memory for the largest cell, if it has.
fn lack_of_memory(control: &Communicator, options: &TuneOptions, work: &[CellWork]) -> Option<String> {
    let about = std::fs::read_to_string("/proc/meminfo").ok()?;
    let available = available_bytes(&about)?;
    let (ranks, element) = (control.size(), options.dtype.size());
    let bytes_of = |cell: &CellWork| {
        let kind = measured_kind(cell.collective, options.op);
        // A part of it is what a rank gives or gets, but not both.
        kind.size(ranks, (cell.count(ranks, element) * element) as u64)
    };
    let largest = work.iter().map(bytes_of).max()?;
    let machine = control.machine(control.rank());
    let neighbours = control.machines().iter().filter(|of| **of == machine).count() as u64;
    let needed = largest.saturating_mul(BUFFERS).saturating_mul(neighbours);
    (needed > available).then(|| {
        format!("{needed} bytes of memory for {largest} bytes on {neighbours} ranks of its machine, which has {available} left")
    })
}

/// `MemAvailable` of `/proc/meminfo`.
fn available_bytes(about: &str) -> Option<u64> {
    let line = about.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// # Errors
/// [`CommError::Argument`] on all ranks if one is about to measure something else than rank 0, or has not the memory for it; as any
/// call.
pub(super) fn compare(
    control: &Communicator,
    options: &TuneOptions,
    work: &[CellWork],
    candidates: &[TuneCandidate],
) -> CommResult<()> {
    let own = described(options, work, candidates);
    let mut text = json!(own).to_string().into_bytes();
    let mut length = [text.len() as i64];
    control.broadcast(&mut length, 0)?;
    text.resize(usize::try_from(length[0]).unwrap_or_default(), 0);
    control.broadcast(&mut text, 0)?;
    let of_zero: Described = serde_json::from_slice(&text).unwrap_or_default();
    let differs = difference(&own, &of_zero).map(|what| format!("measures with {what}"));
    let lacks = || lack_of_memory(control, options, work).map(|what| format!("needs {what}"));
    match said_by_any(control, differs.or_else(lacks).as_deref())? {
        None => Ok(()),
        Some((rank, why)) => Err(CommError::Argument(format!("rank {rank} {why}"))),
    }
}

/// The first rank that says something, and what; the same on all ranks.
///
/// # Errors
/// As any call.
fn said_by_any(control: &Communicator, own: Option<&str>) -> CommResult<Option<(usize, String)>> {
    let mut all = vec![0; control.size()];
    control.all_gather(&[i64::from(own.is_some())], &mut all)?;
    let Some(rank) = all.iter().position(|says| *says != 0) else { return Ok(None) };
    Ok(Some((rank, told_by(control, rank, own.unwrap_or_default())?)))
}

/// What a rank says, on all of them; the others' text is not used.
///
/// # Errors
/// As any call.
pub(super) fn told_by(control: &Communicator, rank: usize, text: &str) -> CommResult<String> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.resize(LONGEST, 0);
    control.broadcast(&mut bytes, rank)?;
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(LONGEST);
    Ok(String::from_utf8_lossy(&bytes[..end]).trim_end_matches(char::REPLACEMENT_CHARACTER).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use schedule::Collective;
    use std::sync::Arc;

    #[test]
    fn every_option_that_matters_is_compared() {
        let candidate =
            |name: &str, collective| TuneCandidate::function(name, vec![collective], Arc::new(|_, _, _| Ok(())));
        let ours = [candidate("a", Collective::AllReduce), candidate("b", Collective::AllReduce)];
        let options = TuneOptions::default();
        let own = described(&options, &options.grid(4), &ours);
        let of = |options: &TuneOptions, candidates: &[TuneCandidate]| {
            difference(&described(options, &options.grid(4), candidates), &own).unwrap_or_default()
        };
        let other_budget = TuneOptions { budget: Default::default(), limit: Default::default(), ..options.clone() };
        assert_eq!(of(&other_budget, &ours), "");
        let seed = TuneOptions { seed: 7, ..options.clone() };
        assert_eq!(of(&seed, &ours), "the seed 7, and rank 0 with 0");
        let op = TuneOptions { op: schedule::ReduceOp::Max, ..options.clone() };
        assert_eq!(of(&op, &ours), r#"the reduction "max", and rank 0 with "sum""#);
        let mut sizes = options.clone();
        sizes.sizes[1] += 4;
        assert_eq!(of(&sizes, &ours), "other sizes than rank 0: number 2 is 68, not 64");
        let [a, b] = ours.clone();
        assert_eq!(of(&options, &[b.clone(), a.clone()]), r#"other candidates than rank 0: number 1 is "b", not "a""#);
        assert_eq!(of(&options, &ours[..1]), r#"other candidates than rank 0: number 2 is nothing, not "b""#);
        assert_eq!(
            of(&options, &[a, candidate("b", Collective::AllGather)]),
            "other contents of candidates than rank 0"
        );
        let fewer = described(&options, &options.grid(4)[1..], &ours);
        assert_eq!(difference(&fewer, &own).unwrap(), "other cells than rank 0");
    }

    #[test]
    fn memory_is_what_linux_says() {
        assert_eq!(available_bytes("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"), Some(2 << 20));
        assert_eq!(available_bytes("MemAvailable: many"), None);
    }
}
