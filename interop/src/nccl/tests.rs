//! Rings of textbook algorithms and of plans with several rings, what is refused, and the file read back.

#![allow(clippy::unwrap_used)]

use super::*;
use program::testing::schedules;
use quick_xml::Reader;
use quick_xml::events::Event;
use schedule::{Message, TransferKind};
use std::sync::Arc;
use topology::resolve;

fn order(ring: &[Rank]) -> Vec<usize> {
    ring.iter().map(|rank| rank.index()).collect()
}

/// A plan that sends each chunk of an AllGather along the ring that `of` names for it, one message after the other.
fn along(spec: &str, chunks: u32, of: impl Fn(usize) -> Vec<usize>) -> VerifiedSchedule {
    let topology = Arc::new(resolve(spec).unwrap());
    let ranks = topology.rank_count();
    let demand = schedules::demand(Collective::AllGather, ranks, chunks);
    let mut messages = Vec::new();
    for chunk in demand.chunk_ids() {
        let (ring, holder) = (of(chunk.index()), demand.chunk(chunk).holders.iter().next().unwrap().index());
        let begin = ring.iter().position(|rank| *rank == holder).unwrap();
        for hop in begin..begin + ranks - 1 {
            let [from, to] = [hop, hop + 1].map(|hop| Rank::from_index(ring[hop % ranks]));
            let link = topology.between(from, to).next().unwrap();
            messages.push(Message { chunks: [chunk].into_iter().collect(), link, kind: TransferKind::Copy });
        }
    }
    schedules::schedule(&topology, &demand, &messages)
}

#[test]
fn textbook_rings_are_one_channel() {
    for ranks in [2, 3, 5, 8] {
        for plan in [
            schedules::ring_allgather(ranks, 2),
            schedules::ring_reducescatter(ranks, 1),
            schedules::ring_allreduce(ranks, 3),
        ] {
            let graph = rings(&plan).unwrap();
            assert_eq!(graph.channels.len(), 1);
            assert_eq!(order(&graph.channels[0]), (0..ranks).collect::<Vec<_>>());
        }
    }
}

#[test]
fn a_ring_has_as_many_channels_as_its_share_says() {
    let (forth, back, other) = ([0, 1, 2, 3], [0, 3, 2, 1], [0, 2, 1, 3]);
    let plan = along("clique:4,alpha=1us,bandwidth=10GBps", 4, |chunk| match chunk % 4 {
        0 => back.to_vec(),
        1 => other.to_vec(),
        _ => forth.to_vec(),
    });
    let graph = rings(&plan).unwrap();
    let channels: Vec<Vec<usize>> = graph.channels.iter().map(|ring| order(ring)).collect();
    assert_eq!(channels, [forth, forth, other, back]);
    // Three channels pass the link from rank 3 to rank 0: two forth, and the other.
    assert!((graph.speed - 10.0 / 3.0).abs() < 1e-9, "{}", graph.speed);
}

#[test]
fn what_is_no_ring_is_refused_with_its_place() {
    let said = |plan: &VerifiedSchedule| rings(plan).unwrap_err().to_string();
    let allgather = schedules::demand(Collective::AllGather, 3, 1);
    assert!(said(&schedules::direct(&allgather)).contains("its way divides or joins"));
    let alltoall = schedules::demand(Collective::AllToAll, 3, 1);
    assert!(said(&schedules::direct(&alltoall)).contains("alltoall among 3 of 3 ranks does not follow such rings"));
    let broadcast = schedules::demand(Collective::Broadcast, 3, 1);
    let line = Arc::new(resolve("mesh2d:1x3").unwrap());
    let chain = schedules::random_trees(&line, &broadcast, &mut schedules::Random(1));
    assert!(said(&chain).contains("no link leads from rank 2 back to rank 0"), "{}", said(&chain));
    let two = Arc::new(resolve("dgx2x2").unwrap());
    let broadcast = schedules::demand(Collective::Broadcast, 32, 1);
    let machines = schedules::random_trees(&two, &broadcast, &mut schedules::Random(1));
    assert!(said(&machines).contains("for 2"), "{}", said(&machines));
}

/// What a reader of the file finds: the attributes of each graph, and the ranks of its channels by both of their numbers.
fn read(text: &str) -> Vec<(String, Vec<Vec<[usize; 2]>>)> {
    let mut reader = Reader::from_str(text);
    let mut graphs: Vec<(String, Vec<Vec<[usize; 2]>>)> = Vec::new();
    loop {
        match reader.read_event().unwrap() {
            Event::Eof => return graphs,
            Event::Start(tag) if tag.name().0 == "graph" => {
                graphs.push((tag.to_string(), Vec::new()));
            }
            Event::Start(tag) if tag.name().0 == "channel" => graphs.last_mut().unwrap().1.push(Vec::new()),
            Event::Empty(tag) => {
                let value = |name: &str| tag.try_get_attribute(name).unwrap().unwrap().value.into_owned();
                let dev = usize::from_str_radix(value("dev").strip_prefix("0x").unwrap(), 16).unwrap();
                graphs.last_mut().unwrap().1.last_mut().unwrap().push([dev, value("rank").parse().unwrap()]);
            }
            _ => {}
        }
    }
}

#[test]
fn a_file_has_rings_and_the_same_chains_for_trees() {
    let mut text = Vec::new();
    let graph = rings(&schedules::ring_allgather(17, 1)).unwrap();
    write_graph(&graph, PathType::NvLink, &mut text).unwrap();
    let graphs = read(std::str::from_utf8(&text).unwrap());
    let heads: Vec<&str> = graphs.iter().map(|(head, _)| &head[..head.find(" crossnic").unwrap()]).collect();
    assert_eq!(heads, [r#"graph id="0" pattern="4""#, r#"graph id="1" pattern="3""#]);
    for (head, channels) in &graphs {
        assert!(head.contains(r#"nchannels="1""#) && head.contains(r#"typeintra="NVL""#), "{head}");
        assert_eq!(*channels, [(0..17).map(|rank| [rank, rank]).collect::<Vec<_>>()]);
    }
}
