//! Heat maps as one SVG file without external resources; a tooltip shows the cost of a pair.

use super::{HeatMap, Quantity, colour, is_on_scale};
use std::fmt::Write;
use topology::{Rank, ResourceId, Topology, quantity};

/// The margin around the picture, in pixels.
const MARGIN: f64 = 24.0;
/// The space for the numbers of ranks and for titles, in pixels.
const LABELS: f64 = 28.0;
const TITLE: f64 = 44.0;
/// The height of the scale below a map, with its numbers, in pixels.
const SCALE: f64 = 52.0;
const LINE: f64 = 18.0;
/// The place of the least value above zero on the scale, as a share of the scale.
const ABOVE_ZERO: f64 = 0.15;
/// The approximate width of a map, in pixels.
const SIDE: f64 = 460.0;

/// The picture of all pairs: bandwidth on the left, α on the right, shared resources below.
pub(crate) fn svg(map: &HeatMap<'_>) -> String {
    let cell = (SIDE / map.order.len() as f64).clamp(7.0, 40.0);
    let side = cell * map.order.len() as f64;
    let panel = LABELS + side.max(220.0) + MARGIN;
    let shared = sharing(map.topology);
    let width = 2.0 * panel + 2.0 * MARGIN;
    let height = MARGIN + TITLE + LABELS + side + SCALE + LINE * (shared.len() + 1) as f64 + MARGIN;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    for (index, quantity) in [Quantity::Bandwidth, Quantity::Alpha].into_iter().enumerate() {
        let corner = (MARGIN + LABELS + index as f64 * (panel + MARGIN), MARGIN + TITLE + LABELS);
        draw(&mut text, map, quantity, corner, cell);
    }
    let mut y = MARGIN + TITLE + LABELS + side + SCALE + LINE;
    for line in shared {
        let _ = writeln!(text, "<text x=\"{MARGIN}\" y=\"{y:.1}\">{}</text>", escaped(&line));
        y += LINE;
    }
    text.push_str("</svg>\n");
    text
}

fn draw(text: &mut String, map: &HeatMap<'_>, quantity: Quantity, (left, top): (f64, f64), cell: f64) {
    let side = cell * map.order.len() as f64;
    let values = map.values(quantity);
    let on_scale = || values.iter().copied().filter(|&value| is_on_scale(value));
    // Where all values are zero, so is the scale.
    let none = if values.first() == Some(&0.0) { 0.0 } else { 1.0 };
    let (low, high) = (on_scale().next().unwrap_or(none), on_scale().next_back().unwrap_or(none));
    let share = |value: f64| match value {
        0.0 => 0.0,
        f64::INFINITY => 1.0,
        // A little above zeros, if there are any.
        _ if high > low => {
            ((value / low).ln() / (high / low).ln()).max(if values[0] == 0.0 { ABOVE_ZERO } else { 0.0 })
        }
        _ => 1.0,
    };
    let title = format!("{} from row to column — {}", quantity.title(), map.topology.name());
    let _ = writeln!(text, "<text x=\"{left:.1}\" y=\"{:.1}\" font-size=\"15\">{}</text>", top - 40.0, escaped(&title));
    let every = (12.0 / cell).ceil().max(1.0) as usize;
    for (place, rank) in map.order.iter().enumerate().filter(|(place, _)| place % every == 0) {
        let middle = (place as f64 + 0.5) * cell;
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\">{rank}</text>\
             <text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\" font-size=\"10\">{rank}</text>",
            left + middle,
            top - 6.0,
            left - 6.0,
            top + middle + 3.5
        );
    }
    for (row, &from) in map.order.iter().enumerate() {
        for (column, &to) in map.order.iter().enumerate() {
            let Some(value) = map.value(quantity, from, to) else { continue };
            let [red, green, blue] = colour(share(value));
            let _ = writeln!(
                text,
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{cell:.1}\" height=\"{cell:.1}\" \
                 fill=\"#{red:02x}{green:02x}{blue:02x}\"><title>{}</title></rect>",
                left + column as f64 * cell,
                top + row as f64 * cell,
                escaped(&words(map, from, to))
            );
        }
    }
    outlines(text, map, (left, top), cell);
    scale(text, quantity, (left, top + side + 14.0), side.max(200.0), (low, high));
    if let Some(beyond) = values.iter().find(|&&value| !is_on_scale(value)) {
        let [red, green, blue] = colour(share(*beyond));
        let _ = writeln!(
            text,
            "<text x=\"{left:.1}\" y=\"{:.1}\" font-size=\"11\">\
             <tspan fill=\"#{red:02x}{green:02x}{blue:02x}\">■</tspan> {}</text>",
            top + side + 54.0,
            escaped(&quantity.show(*beyond))
        );
    }
}

/// A frame around the pairs inside each machine.
fn outlines(text: &mut String, map: &HeatMap<'_>, (left, top): (f64, f64), cell: f64) {
    let mut start = 0;
    for (machine, members) in map.topology.machines().iter().enumerate() {
        let (at, size) = (start as f64 * cell, members.len() as f64 * cell);
        let _ = writeln!(
            text,
            "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{size:.1}\" height=\"{size:.1}\" fill=\"none\" stroke=\"#d33\" \
             stroke-width=\"1.5\" pointer-events=\"none\"><title>machine {machine}</title></rect>",
            left + at,
            top + at
        );
        start += members.len();
    }
}

/// The colours with their values at both ends and in the middle.
fn scale(text: &mut String, quantity: Quantity, (left, top): (f64, f64), width: f64, (low, high): (f64, f64)) {
    const STEPS: usize = 40;
    for step in 0..STEPS {
        let [red, green, blue] = colour(step as f64 / (STEPS - 1) as f64);
        let wide = width / STEPS as f64;
        let _ = writeln!(
            text,
            "<rect x=\"{:.2}\" y=\"{top:.1}\" width=\"{:.2}\" height=\"10\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/>",
            left + step as f64 * wide,
            wide + 0.3
        );
    }
    for (share, anchor) in [(0.0, "start"), (0.5, "middle"), (1.0, "end")] {
        let value = if high > low { low * (high / low).powf(share) } else { low };
        let _ = writeln!(
            text,
            "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\" font-size=\"11\">{}</text>",
            left + share * width,
            top + 24.0,
            escaped(&quantity.show(value))
        );
    }
}

fn words(map: &HeatMap<'_>, from: Rank, to: Rank) -> String {
    let Some(id) = map.link(from, to) else { return String::new() };
    let link = map.topology.link(id);
    let mut words =
        format!("{from} → {to}: α {}, {}", quantity::show_duration(link.alpha), quantity::show_bandwidth(link.beta));
    let names: Vec<&str> = link.resources.iter().map(|&id| map.topology.resource(id).name.as_str()).collect();
    if !names.is_empty() {
        let _ = write!(words, "; shares {}", names.join(", "));
    }
    words
}

/// The shared resources (most of them), a line each.
fn sharing(topology: &Topology) -> Vec<String> {
    const MOST: usize = 40;
    let count = topology.resources().len();
    let line = |index: usize| {
        let id = ResourceId::from_index(index);
        let resource = topology.resource(id);
        let bandwidth = quantity::show_bandwidth(resource.beta);
        format!("{}: {bandwidth} shared by {} links", resource.name, topology.users(id).len())
    };
    let mut lines: Vec<String> = (0..count.min(MOST)).map(line).collect();
    if count > MOST {
        lines.push(format!("and {} more", count - MOST));
    }
    lines
}

/// Text as it stands in a file.
pub(crate) fn escaped(text: &str) -> String {
    let clean = text.replace(char::is_control, " ");
    clean.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_picture_has_a_cell_with_a_title_for_every_link_and_matrix() {
        let topology = topology::resolve("ndv2x2").unwrap().renamed("a <b> & \"c\"");
        let pairs: std::collections::BTreeSet<_> = topology.links().iter().map(|link| (link.from, link.to)).collect();
        let text = svg(&HeatMap::new(&topology));
        assert_eq!(text.matches("→").count(), 2 * pairs.len());
        assert!(text.contains("a &lt;b&gt; &amp; &quot;c&quot;") && !text.contains("<b>"));
        assert_eq!(text.matches("<title>machine ").count(), 4);
        let balanced =
            |tag: &str| text.matches(&format!("<{tag}")).count() == text.matches(&format!("</{tag}>")).count();
        assert!(balanced("svg") && balanced("text") && balanced("title"), "every element is closed");
        assert!(!text.contains("NaN") && !text.contains("inf\""));
    }

    #[test]
    fn a_scale_of_zeros_says_zero() {
        let text = svg(&HeatMap::new(&topology::resolve("clique:3,alpha=0us").unwrap()));
        assert!(
            text.matches(">0 µs</text>").count() >= 3 && !text.contains(">1 µs<") && !text.contains("NaN"),
            "{text}"
        );
    }
}
