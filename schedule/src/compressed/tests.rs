//! Compressed schedules and their expansions: the plain verifier judges the verifier that looks only at orbits.

use super::*;
use crate::testing::{COLLECTIVES, MACHINES, MEETING, compressed};
use crate::{Collective, LowerBound, Request, VerifiedSchedule, verify, verify_compressed};
use std::sync::Arc;
use topology::Topology;

/// Every product of generators applied to every transfer, one generator at a time.
fn naively_expanded(compressed: &CompressedSchedule) -> Schedule {
    let mut transfers = compressed.base.transfers.clone();
    for Generator { ranks, links, chunks } in &compressed.generators {
        let turned = |transfer: &Transfer| Transfer {
            chunks: transfer.chunks.iter().map(|chunk| chunks[chunk.index()]).collect(),
            from: ranks[transfer.from.index()],
            to: ranks[transfer.to.index()],
            link: links[transfer.link.index()],
            ..transfer.clone()
        };
        let mut place = ranks[0];
        let mut images = transfers.clone();
        while place != Rank(0) {
            images = images.iter().map(turned).collect();
            transfers.extend(images.iter().cloned());
            place = ranks[place.index()];
        }
    }
    transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
    Schedule { transfers, ..compressed.base.clone() }
}

fn sorted(schedule: &Schedule) -> Vec<(u64, LinkId, Vec<ChunkId>)> {
    let key = |it: &Transfer| (it.start.0.to_bits(), it.link, it.chunks.to_vec());
    let mut all: Vec<_> = schedule.transfers.iter().map(key).collect();
    all.sort();
    all
}

#[test]
fn what_is_accepted_compressed_is_accepted_expanded() {
    for &(spec, turns) in MACHINES {
        for (collective, chunks) in COLLECTIVES {
            let (compressed, topology) = compressed(spec, turns, collective, chunks);
            let naive = naively_expanded(&compressed);
            let verified = verify_compressed(compressed, &topology).unwrap_or_else(|error| panic!("{spec}: {error}"));
            let expanded = verified.expand(10_000).expect("few transfers");
            assert_eq!(sorted(&expanded), sorted(&naive), "{spec}");
            assert_eq!((verified.transfers(), verified.makespan()), (naive.transfers.len() as u64, naive.makespan()));
            let plain = verify(expanded, &topology).unwrap_or_else(|error| panic!("{spec} expanded: {error}"));
            check_usage(&verified, &plain);
            assert!(verified.expand(naive.transfers.len() - 1).is_err());
        }
    }
}

fn check_usage(compressed: &VerifiedCompressed, plain: &VerifiedSchedule) {
    let (links, resources) = compressed.usage();
    let (plain_links, plain_resources) = crate::Timeline::of(plain).usage();
    for (one, other) in links.iter().zip(&plain_links).chain(resources.iter().zip(&plain_resources)) {
        assert_eq!(one.messages, other.messages);
        assert!((one.busy.0 - other.busy.0).abs() < 1e-9 && (one.utilisation - other.utilisation).abs() < 1e-9);
    }
}

/// Every way to spoil a base, once for each of its transfers.
fn mutants(good: &CompressedSchedule, topology: &Topology) -> Vec<(&'static str, CompressedSchedule)> {
    let mut all = Vec::new();
    let mut spoil = |name, change: &dyn Fn(&mut Vec<Transfer>)| {
        let mut base = good.base.clone();
        change(&mut base.transfers);
        base.transfers.sort_by(|a, b| a.start.total_cmp(&b.start));
        all.push((name, CompressedSchedule { base, generators: good.generators.clone() }));
    };
    let links = topology.links().len() as u32;
    for index in 0..good.base.transfers.len() {
        spoil("dropped", &|all| drop(all.remove(index)));
        spoil("doubled", &|all| all.push(all[index].clone()));
        spoil("shifted", &|all| {
            let half = Micros((all[index].end.0 - all[index].start.0) / 2.0);
            all[index].start = Micros((all[index].start.0 - half.0).max(0.0));
            all[index].end = all[index].start + half + half;
        });
        spoil("prolonged", &|all| all[index].end += Micros(0.5));
        spoil("retargeted", &|all| {
            let id = LinkId((all[index].link.0 + 1) % links);
            let link = topology.link(id);
            (all[index].link, all[index].from, all[index].to) = (id, link.from, link.to);
        });
        spoil("other ends", &|all| all[index].to = all[index].from);
        spoil("other chunk", &|all| all[index].chunks[0] = ChunkId((all[index].chunks[0].0 + 1) % 3));
        spoil("unknown chunk", &|all| all[index].chunks[0] = ChunkId(1_000_000));
        spoil("unknown link", &|all| all[index].link = LinkId(1_000_000));
        spoil("unknown rank", &|all| all[index].from = Rank(1_000_000));
    }
    all
}

#[test]
fn mutants_get_the_same_verdict_compressed_and_expanded() {
    for &(spec, turns) in MACHINES.iter().chain([&MEETING]) {
        for (collective, chunks) in COLLECTIVES {
            let (good, topology) = compressed(spec, turns, collective, chunks);
            let mut refused = 0;
            for (name, mutant) in mutants(&good, &topology) {
                let verdict = verify_compressed(mutant.clone(), &topology).is_ok();
                // Transfers over links that do not exist have no images.
                if !name.starts_with("unknown") {
                    let plain = verify(naively_expanded(&mutant), &topology).is_ok();
                    assert_eq!(verdict, plain, "{spec} {collective}: {name}");
                }
                refused += usize::from(!verdict);
            }
            assert!(refused >= 5 * good.base.transfers.len(), "{spec} {collective}: only {refused} refused");
        }
    }
}

#[test]
fn messages_whose_images_meet_on_a_port_are_refused() {
    let (spec, turns) = MEETING;
    for (collective, chunks) in COLLECTIVES {
        let (base, topology) = compressed(spec, turns, collective, chunks);
        let rejection = verify_compressed(base.clone(), &topology).expect_err("two images meet");
        assert!(rejection.violations.iter().any(|it| it.kind() == "resource_overlap"), "{collective}: {rejection}");
        assert!(verify(naively_expanded(&base), &topology).is_err());
    }
}

#[test]
fn corrupted_generators_are_refused() {
    for &(spec, turns) in MACHINES {
        let (good, topology) = compressed(spec, turns, Collective::AllGather, 1);
        for number in 0..good.generators.len() {
            type Corruption = (&'static str, fn(&mut Generator));
            let corruptions: [Corruption; 7] = [
                ("ranks", |it| it.ranks.swap(0, 1)),
                ("links", |it| it.links.swap(0, 1)),
                ("chunks", |it| it.chunks.swap(0, 1)),
                ("a rank twice", |it| it.ranks[1] = it.ranks[0]),
                ("a rank too many", |it| it.ranks.push(Rank(0))),
                ("a link that does not exist", |it| it.links[0] = LinkId(9999)),
                ("identity", |it| {
                    it.ranks.sort_unstable();
                    it.links.sort_unstable();
                    it.chunks.sort_unstable();
                }),
            ];
            for (name, corrupt) in corruptions {
                let mut bad = good.clone();
                corrupt(&mut bad.generators[number]);
                let rejection = verify_compressed(bad.clone(), &topology).expect_err(name);
                assert!(rejection.violations.iter().any(|it| it.kind() == "no_symmetry"), "{spec} {name}: {rejection}");
                let lists_fit = bad.generators[number].ranks.len() == topology.rank_count() && name != "a rank twice";
                if lists_fit && !name.starts_with("a link") {
                    assert!(verify(naively_expanded(&bad), &topology).is_err(), "{spec} {name}");
                }
            }
        }
        let mut half = good.clone();
        half.generators.pop();
        assert!(verify_compressed(half, &topology).is_err(), "{spec}: one generator less");
        let mut boastful = good;
        boastful.base.bound = Some(LowerBound { value: Micros(1e9), name: "cut".to_owned() });
        assert!(verify_compressed(boastful, &topology).is_err(), "{spec}: a bound above the makespan");
    }
}

#[test]
fn symmetries_of_the_machine_must_be_those_of_the_demand() {
    let (mut compressed, topology) =
        compressed("ring:5,alpha=1us,bandwidth=1GBps", &[(1, 5)], Collective::AllGather, 1);
    let request = Request::new(Collective::Scatter, 5, 5);
    compressed.base.demand = Arc::new(Demand::new(request).expect("a valid request"));
    let rejection = verify_compressed(compressed, &topology).expect_err("all chunks start at the root");
    assert!(rejection.violations.iter().any(|it| it.kind() == "no_symmetry"), "{rejection}");
}
