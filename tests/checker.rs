//! An independent judge of schedule files: it reads only JSON, follows `docs/formats.md`, and shares no line of code
//! with the project. Everything that the binary plans in these tests is judged here.

use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

/// Relative tolerance of the file format.
const TOLERANCE: f64 = 1e-7;

struct Link {
    from: u64,
    to: u64,
    alpha: f64,
    beta: f64,
    occupies: bool,
    resources: Vec<usize>,
}

struct Event<'a> {
    chunks: Vec<u64>,
    from: u64,
    to: u64,
    link: &'a Link,
    link_id: usize,
    reduce: bool,
    start: f64,
    end: f64,
    bytes: f64,
}

/// The request, as the test made it, to compare with the file.
pub(crate) struct Wish<'a> {
    pub collective: &'a str,
    pub ranks: u64,
    pub members: Vec<u64>,
    pub size: u64,
    pub root: Option<u64>,
}

impl<'a> Wish<'a> {
    pub(crate) fn all(collective: &'a str, ranks: u64, size: u64) -> Self {
        let rooted = ["broadcast", "reduce", "gather", "scatter"].contains(&collective);
        Self { collective, ranks, members: (0..ranks).collect(), size, root: rooted.then_some(0) }
    }
}

/// Judges a schedule on a topology against a wish; returns the makespan in microseconds, or the first error.
pub(crate) fn judge(schedule: &Value, topology: &Value, wish: &Wish) -> Result<f64, String> {
    let links: Vec<Link> = list(&topology["links"]).iter().map(link).collect();
    let chunk_bytes = check_request(schedule, wish)?;
    let bytes = |id: u64, chunks: &BTreeMap<u64, &Value>| chunks[&id]["bytes"].as_f64().unwrap_or(chunk_bytes);
    let chunks: BTreeMap<u64, &Value> =
        list(&schedule["chunks"]).iter().map(|chunk| (chunk["id"].as_u64().unwrap(), chunk)).collect();
    ensure(chunks.len() == list(&schedule["chunks"]).len(), || "chunk ids repeat".into())?;
    let mut events = Vec::new();
    for transfer in list(&schedule["transfers"]) {
        let ids: Vec<u64> = list(&transfer["chunks"]).iter().map(|id| id.as_u64().unwrap()).collect();
        ensure(ids.iter().all(|id| chunks.contains_key(id)), || format!("unknown chunk in {transfer}"))?;
        let link_id = transfer["link"].as_u64().unwrap() as usize;
        let link = links.get(link_id).ok_or_else(|| format!("no link {link_id}"))?;
        let total = ids.iter().map(|id| bytes(*id, &chunks)).sum::<f64>();
        let event = Event {
            from: transfer["from"].as_u64().unwrap(),
            to: transfer["to"].as_u64().unwrap(),
            reduce: transfer["kind"] == "reduce",
            start: transfer["start_us"].as_f64().unwrap(),
            end: transfer["end_us"].as_f64().unwrap(),
            chunks: ids,
            link,
            link_id,
            bytes: total,
        };
        ensure((event.from, event.to) == (link.from, link.to), || format!("{transfer} is not on its link"))?;
        ensure(close(event.end, event.start + link.alpha + link.beta * total), || format!("{transfer}: duration"))?;
        ensure(event.start >= 0.0, || format!("{transfer} starts before zero"))?;
        events.push(event);
    }
    ensure(events.windows(2).all(|pair| pair[0].start <= pair[1].start), || "transfers are not sorted".into())?;
    for (id, chunk) in &chunks {
        check_chunk(*id, chunk, &events)?;
    }
    check_exclusive(&events, topology)?;
    let makespan = events.iter().map(|event| event.end).fold(0.0, f64::max);
    ensure(close(makespan, schedule["makespan_us"].as_f64().unwrap()), || "makespan_us is wrong".into())?;
    if let Some(bound) = schedule["lower_bound_us"].as_f64() {
        ensure(bound <= makespan * (1.0 + TOLERANCE), || format!("bound {bound} above makespan {makespan}"))?;
        let gap = schedule["gap"].as_f64();
        ensure(bound == 0.0 || gap.is_some_and(|gap| (gap - (makespan / bound - 1.0)).abs() < 1e-6), || "gap".into())?;
    }
    Ok(makespan)
}

/// The file's request against the wish, and its chunks against the collective; the chunk size.
fn check_request(schedule: &Value, wish: &Wish) -> Result<f64, String> {
    let k = wish.members.len() as u64;
    ensure(schedule["format"] == "antiphon-schedule/1", || "format".into())?;
    ensure(schedule["collective"] == wish.collective, || "collective".into())?;
    ensure(schedule["ranks"].as_u64() == Some(wish.ranks), || "ranks".into())?;
    ensure(schedule["size_bytes"].as_u64() == Some(wish.size), || "size_bytes".into())?;
    ensure(schedule["root"].as_u64() == wish.root, || "root".into())?;
    let members = match &schedule["members"] {
        Value::Null => (0..wish.ranks).collect(),
        members => ranks(members).into_iter().collect::<Vec<_>>(),
    };
    ensure(members == wish.members, || "members".into())?;
    let per_rank = schedule["chunks_per_rank"].as_u64().ok_or("chunks_per_rank")?;
    let parts = match wish.collective {
        "broadcast" | "reduce" | "sendrecv" => per_rank,
        _ => per_rank * k,
    };
    let quotient = wish.size as f64 / parts as f64;
    let chunk_bytes = schedule["chunk_bytes"].as_f64().ok_or("chunk_bytes")?;
    let fits = chunk_bytes >= quotient * (1.0 - TOLERANCE) && chunk_bytes <= quotient + 1.0 + TOLERANCE;
    ensure(fits, || format!("chunk_bytes {chunk_bytes} for {quotient}"))?;
    let mut expected: BTreeMap<(Vec<u64>, Vec<u64>, bool), u64> = BTreeMap::new();
    let all = wish.members.clone();
    let root = wish.root.map(|root| vec![root]).unwrap_or_default();
    let mut want = |holders: Vec<u64>, wanted: Vec<u64>, combine| {
        *expected.entry((holders, wanted, combine)).or_default() += per_rank;
    };
    for (index, &member) in all.iter().enumerate() {
        match wish.collective {
            "allgather" => want(vec![member], all.clone(), false),
            "gather" => want(vec![member], root.clone(), false),
            "scatter" => want(root.clone(), vec![member], false),
            "reducescatter" => want(all.clone(), vec![member], true),
            "allreduce" => want(all.clone(), all.clone(), true),
            "sendrecv" => want(vec![member], vec![all[(index + 1) % all.len()]], false),
            "alltoall" => all.iter().filter(|to| **to != member).for_each(|&to| want(vec![member], vec![to], false)),
            "broadcast" if index == 0 => want(root.clone(), all.clone(), false),
            "reduce" if index == 0 => want(all.clone(), root.clone(), true),
            "broadcast" | "reduce" => {}
            other => return Err(format!("this judge does not know {other}")),
        }
    }
    let mut found: BTreeMap<(Vec<u64>, Vec<u64>, bool), u64> = BTreeMap::new();
    for chunk in list(&schedule["chunks"]) {
        let (holders, wanted) = (ranks(&chunk["holders"]), ranks(&chunk["wanted_by"]));
        let to_itself = wish.collective == "alltoall" && holders == wanted;
        if !to_itself {
            let key = (holders.into_iter().collect(), wanted.into_iter().collect(), chunk["combine"] == true);
            *found.entry(key).or_default() += 1;
        }
    }
    ensure(found == expected, || "the chunks are not those of the collective".into())?;
    Ok(chunk_bytes)
}

/// Plays one chunk through time: values are multisets of contributions.
fn check_chunk(id: u64, chunk: &Value, events: &[Event]) -> Result<(), String> {
    type Parts = BTreeMap<u64, u32>;
    let combine = chunk["combine"] == true;
    let one = |rank: u64| if combine { BTreeMap::from([(rank, 1)]) } else { BTreeMap::from([(0, 1)]) };
    let mut held: BTreeMap<u64, Parts> = ranks(&chunk["holders"]).iter().map(|&rank| (rank, one(rank))).collect();
    let carrying: Vec<&Event> = events.iter().filter(|event| event.chunks.contains(&id)).collect();
    let mut in_flight: Vec<(&Event, Parts)> = Vec::new();
    let land = |held: &mut BTreeMap<u64, Parts>, event: &Event, value: Parts| {
        let slot = held.entry(event.to).or_default();
        if !event.reduce {
            slot.clear();
        }
        for (rank, times) in value {
            *slot.entry(rank).or_default() += times;
        }
    };
    for event in &carrying {
        let margin = TOLERANCE * event.start.abs().max(1e-9);
        in_flight.sort_by(|a, b| a.0.end.total_cmp(&b.0.end));
        let arrived = in_flight.iter().take_while(|(earlier, _)| earlier.end <= event.start + margin).count();
        for (earlier, value) in in_flight.drain(..arrived).collect::<Vec<_>>() {
            land(&mut held, earlier, value);
        }
        let value = held.get(&event.from).filter(|value| !value.is_empty());
        let value = value.ok_or_else(|| format!("rank {} sends chunk {id} at {} unheld", event.from, event.start))?;
        ensure(combine || !event.reduce, || format!("chunk {id} does not combine"))?;
        in_flight.push((event, value.clone()));
        if combine && !event.reduce {
            let clash = carrying
                .iter()
                .any(|other| !std::ptr::eq(*other, *event) && other.to == event.to && close(other.end, event.end));
            ensure(!clash, || format!("a copy of chunk {id} lands with another arrival at {}", event.to))?;
        }
    }
    in_flight.sort_by(|a, b| a.0.end.total_cmp(&b.0.end));
    for (event, value) in in_flight {
        land(&mut held, event, value);
    }
    let whole: Parts = match combine {
        true => ranks(&chunk["holders"]).iter().map(|&rank| (rank, 1)).collect(),
        false => BTreeMap::new(),
    };
    for rank in ranks(&chunk["wanted_by"]) {
        let value = held.get(&rank).ok_or_else(|| format!("rank {rank} never gets chunk {id}"))?;
        ensure(!combine || *value == whole, || format!("rank {rank} ends with {value:?} of chunk {id}"))?;
    }
    Ok(())
}

fn check_exclusive(events: &[Event], topology: &Value) -> Result<(), String> {
    let betas: Vec<f64> =
        list(&topology["resources"]).iter().map(|r| r["beta_us_per_byte"].as_f64().unwrap()).collect();
    let alphas: Vec<f64> = list(&topology["resources"]).iter().map(|r| r["alpha_us"].as_f64().unwrap_or(0.0)).collect();
    let mut uses: BTreeMap<(bool, usize), Vec<(f64, f64)>> = BTreeMap::new();
    for event in events {
        let alpha = if event.link.occupies { event.link.alpha } else { 0.0 };
        let mut occupy = |key, alpha: f64, beta: f64| {
            uses.entry(key).or_default().push((event.start, event.start + alpha + beta * event.bytes));
        };
        occupy((false, event.link_id), alpha, event.link.beta);
        let shared = event.link.resources.iter();
        shared.for_each(|&resource| occupy((true, resource), alpha.max(alphas[resource]), betas[resource]));
    }
    for (key, mut intervals) in uses {
        intervals.sort_by(|a, b| a.0.total_cmp(&b.0));
        for pair in intervals.windows(2) {
            let overlap = pair[0].1 - pair[1].0;
            ensure(overlap <= TOLERANCE * pair[0].1.abs(), || format!("overlap on {key:?} at {}", pair[1].0))?;
        }
    }
    Ok(())
}

fn link(value: &Value) -> Link {
    Link {
        from: value["from"].as_u64().unwrap(),
        to: value["to"].as_u64().unwrap(),
        alpha: value["alpha_us"].as_f64().unwrap(),
        beta: value["beta_us_per_byte"].as_f64().unwrap(),
        occupies: value["latency"] == "occupies",
        resources: list(&value["resources"]).iter().map(|id| id.as_u64().unwrap() as usize).collect(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

fn ranks(value: &Value) -> BTreeSet<u64> {
    list(value).iter().map(|rank| rank.as_u64().unwrap()).collect()
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= TOLERANCE * a.abs().max(b.abs())
}

fn ensure(fact: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if fact { Ok(()) } else { Err(why()) }
}
