//! Tracks of a timeline: what every link and every resource is busy with, and when.

use crate::simulate::occupied;
use crate::{Schedule, Transfer};
use topology::{Micros, Topology};

/// One link or resource that is used.
pub(super) struct Track {
    /// A name for people.
    pub(super) name: String,
    pub(super) kind: TrackKind,
    /// Its id among its kind.
    pub(super) id: usize,
    /// In order of start.
    pub(super) spans: Vec<Span>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TrackKind {
    Link,
    Resource,
}

/// A transfer that keeps a track busy.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub(super) transfer: usize,
    pub(super) start: Micros,
    pub(super) busy: Micros,
}

/// The used links, then the used resources, each by id.
pub(super) fn tracks(schedule: &Schedule, topology: &Topology) -> Vec<Track> {
    let mut links = vec![Vec::new(); topology.links().len()];
    let mut resources = vec![Vec::new(); topology.resources().len()];
    for (transfer, message) in schedule.transfers.iter().enumerate() {
        let (on_link, on_resources) = occupied(schedule, topology, message);
        let span = |busy| Span { transfer, start: message.start, busy };
        links[message.link.index()].push(span(on_link));
        on_resources.for_each(|(resource, busy)| resources[resource.index()].push(span(busy)));
    }
    let used = |spans: &(usize, Vec<Span>)| !spans.1.is_empty();
    let link_tracks = links.into_iter().enumerate().filter(used).map(|(id, spans)| {
        let link = &topology.links()[id];
        Track { name: format!("link {id}: {} → {}", link.from, link.to), kind: TrackKind::Link, id, spans }
    });
    let resource_tracks = resources.into_iter().enumerate().filter(used).map(|(id, spans)| {
        let name = format!("resource {id}: {}", topology.resources()[id].name);
        Track { name, kind: TrackKind::Resource, id, spans }
    });
    link_tracks.chain(resource_tracks).collect()
}

/// What a transfer carries, for people: `chunk 3`, `chunks 3 4 5`, `9 chunks`.
pub(super) fn cargo(transfer: &Transfer) -> String {
    match transfer.chunks.as_slice() {
        [chunk] => format!("chunk {chunk}"),
        few if few.len() <= 4 => few.iter().fold("chunks".to_owned(), |text, chunk| format!("{text} {chunk}")),
        many => format!("{} chunks", many.len()),
    }
}
