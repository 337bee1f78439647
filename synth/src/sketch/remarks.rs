//! How far a schedule follows the wishes of a sketch; a remark is not a violation.
//!
//! The principal function is [`remarks`]. The command line may override chunk counts and sizes, and symmetries and
//! connections only guide the search. A user who compares a schedule with a sketch still wants to know about them.

use super::resolve::Sketch;
use crate::problem::{ConnectionPolicy, Constraints};
use crate::symmetry::chunk_images;
use schedule::{ChunkId, Schedule};
use std::collections::BTreeSet;
use topology::symmetry::Automorphism;
use topology::{LinkId, counted};

/// Where the schedule differs from the wishes of `sketch`, and how far it meets the sketch's preferences.
pub fn remarks(schedule: &Schedule, sketch: &Sketch) -> Vec<String> {
    let request = schedule.demand.request();
    let mut remarks = Vec::new();
    if let Some(wished) = sketch.pins.chunks_per_rank.filter(|&wished| wished != request.chunks_per_rank) {
        remarks.push(format!("{} per rank, where the sketch has {wished}", counted_chunks(request.chunks_per_rank)));
    }
    if !sketch.pins.sizes.contains(request.size_bytes) {
        remarks.push(format!("the sketch is meant for {}, not for {} bytes", sketch.pins.sizes, request.size_bytes));
    }
    let lopsided = sketch.constraints.symmetry.iter().filter(|symmetry| !is_symmetric(schedule, symmetry)).count();
    if lopsided > 0 {
        remarks.push(format!("symmetries not kept: {lopsided} of {}", sketch.constraints.symmetry.len()));
    }
    remarks.extend(connections(schedule, &sketch.constraints));
    remarks
}

fn counted_chunks(count: u32) -> String {
    counted(count as usize, "chunk")
}

fn used_links(schedule: &Schedule) -> BTreeSet<LinkId> {
    schedule.transfers.iter().map(|transfer| transfer.link).collect()
}

/// For each line of `connections`, how many links of its switches are in use.
fn connections(schedule: &Schedule, constraints: &Constraints) -> Vec<String> {
    let used = used_links(schedule);
    let by_line = constraints.connections.chunk_by(|a, b| a.line == b.line);
    let remark = |wishes: &[crate::problem::ConnectionWish]| {
        let links = || wishes.iter().flat_map(|wish| &wish.links);
        let open = links().filter(|link| used.contains(link)).count();
        let word = if wishes[0].wish == ConnectionPolicy::Few { "few" } else { "many" };
        format!("{open} of {} connections open, where line {} wants {word}", links().count(), wishes[0].line)
    };
    by_line.map(remark).collect()
}

/// Whether, for every chunk and link of a transfer, the chunk's image uses the link's image; times are not compared.
fn is_symmetric(schedule: &Schedule, symmetry: &Automorphism) -> bool {
    let Some(images) = chunk_images(&schedule.demand)(symmetry) else { return false };
    let routes =
        schedule.transfers.iter().flat_map(|transfer| transfer.chunks.iter().map(|&chunk| (chunk, transfer.link)));
    let routes: BTreeSet<(ChunkId, LinkId)> = routes.collect();
    routes.iter().all(|(chunk, link)| routes.contains(&(images[chunk.index()], symmetry.links[link.index()])))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem::by_hand::copies;
    use crate::sketch::SketchFile;
    use schedule::{Collective, Demand, Request, replay};
    use std::sync::Arc;
    use topology::resolve;

    #[test]
    fn wishes_that_are_not_met_are_told() {
        let topology = resolve("clique:3").unwrap();
        let text = "symmetry: [{rotate: 1}]\nconnections: few\nchunks_per_rank: 2\nsizes: {to: 1KB}\n";
        let sketch = SketchFile::parse(text, "s.yaml").unwrap().resolve(&topology).unwrap();
        let schedule = |size: u64, chunks: u32, sent: &[(u32, u32, u32)]| {
            let request = Request::new(Collective::AllGather, 3, size).with_chunks(chunks);
            let demand = Arc::new(Demand::new(request).unwrap());
            let transfers = replay(&demand, &topology, &copies(&topology, sent)).unwrap();
            Schedule::new(&topology, demand, transfers, "by hand")
        };
        let ring = [(0, 0, 1), (1, 0, 1), (2, 1, 2), (3, 1, 2), (4, 2, 0), (5, 2, 0)];
        let around = [(0, 1, 2), (1, 1, 2), (2, 2, 0), (3, 2, 0), (4, 0, 1), (5, 0, 1)];
        let kept = remarks(&schedule(600, 2, &[ring, around].concat()), &sketch);
        let few = "3 of 6 connections open, where line 2 wants few";
        assert_eq!(kept, [few]);
        let star = [(0, 0, 1), (0, 0, 2), (1, 1, 0), (1, 0, 2), (2, 2, 0), (2, 0, 1)];
        let broken = remarks(&schedule(3_000, 1, &star), &sketch);
        assert_eq!(
            broken,
            [
                "1 chunk per rank, where the sketch has 2",
                "the sketch is meant for up to 1 KB, not for 3000 bytes",
                "symmetries not kept: 1 of 1",
                "4 of 6 connections open, where line 2 wants few",
            ]
        );
    }
}
