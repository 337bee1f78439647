//! Tracks of a timeline: for every link and every resource, the messages that it serves, with their times.

use schedule::Timeline;
use topology::Micros;

/// One link or resource that is used.
pub(super) struct Track {
    /// A name for people.
    pub(super) name: String,
    pub(super) kind: TrackKind,
    /// Its id among its kind.
    pub(super) id: usize,
    /// In order of start.
    pub(super) spans: Vec<BusySpan>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum TrackKind {
    Link,
    Resource,
}

/// A message that keeps a track busy.
#[derive(Clone, Copy)]
pub(super) struct BusySpan {
    pub(super) message: usize,
    pub(super) start: Micros,
    pub(super) busy: Micros,
}

/// The used links, then the used resources, each by id.
pub(super) fn tracks(timeline: &Timeline) -> Vec<Track> {
    let topology = &*timeline.topology;
    let mut links = vec![Vec::new(); topology.links().len()];
    let mut resources = vec![Vec::new(); topology.resources().len()];
    for (index, message) in timeline.messages.iter().enumerate() {
        let (on_link, on_resources) = message.occupied(topology);
        let span = |busy| BusySpan { message: index, start: message.start, busy };
        links[message.link.index()].push(span(on_link));
        on_resources.for_each(|(resource, busy)| resources[resource.index()].push(span(busy)));
    }
    let used = |spans: &(usize, Vec<BusySpan>)| !spans.1.is_empty();
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
