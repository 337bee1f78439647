//! The map as one SVG file without external resources; a tooltip shows what was measured.

use super::{MOST, WinnerCell, WinnerMap, share};
use crate::heatmap::{colour, escaped};
use crate::screen::bytes;
use std::fmt::Write;

/// The margin around the picture, in pixels.
const MARGIN: f64 = 24.0;
/// The width of the names of collectives, in pixels.
const NAMES: f64 = 110.0;
/// The size of a cell, in pixels.
const CELL: (f64, f64) = (54.0, 24.0);
/// The height of a title with the sizes below it, in pixels.
const HEAD: f64 = 44.0;
/// The height of the legend below a map, in pixels.
const LEGEND: f64 = 40.0;
const LINE: f64 = 18.0;
/// The uncertainty that has the darkest colour.
const LEAST_SURE: f64 = 0.2;
/// Colours that most colour-blind people can tell apart [1]; the number in the cell tells them apart for everybody.
///
/// [1] Okabe & Ito, "Color Universal Design", 2008.
const PALETTE: [&str; 7] = ["#e69f00", "#56b4e9", "#009e73", "#f0e442", "#0072b2", "#d55e00", "#cc79a7"];
/// The colour of stock.
const STOCK_COLOUR: &str = "#ddd";

/// What a map shows.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MapLayer {
    Winner,
    Gain,
    Confidence,
}

impl MapLayer {
    const ALL: [Self; 3] = [Self::Winner, Self::Gain, Self::Confidence];

    fn title(self) -> &'static str {
        match self {
            Self::Winner => "the fastest",
            Self::Gain => "how much faster than stock",
            Self::Confidence => "how sure that is",
        }
    }

    /// The colour of a cell, and what is written in it.
    fn look(self, cell: &WinnerCell) -> (String, String) {
        let shade = |share: f64| {
            let [red, green, blue] = colour(share);
            format!("#{red:02x}{green:02x}{blue:02x}")
        };
        match (self, cell.winner) {
            (Self::Winner, None) => (STOCK_COLOUR.to_owned(), "stock".to_owned()),
            (Self::Winner, Some(winner)) => (PALETTE[winner % PALETTE.len()].to_owned(), (winner + 1).to_string()),
            (Self::Gain, _) => (shade(share(cell.gain)), format!("{:.2}×", cell.gain)),
            (Self::Confidence, _) => (shade(1.0 - (cell.uncertainty / LEAST_SURE).min(1.0)), cell.noise()),
        }
    }
}

/// The picture: three maps, one below the other, each with its legend.
pub(in crate::commands::tune) fn svg(map: &WinnerMap, title: &str) -> String {
    let grid = CELL.1 * map.rows.len() as f64;
    let panel = HEAD + grid + LEGEND;
    let width = (2.0 * MARGIN + NAMES + CELL.0 * map.sizes.len() as f64).max(480.0);
    let height = 2.0 * MARGIN + LINE + 3.0 * panel + LINE * map.names.len() as f64;
    let mut text = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\" font-family=\"system-ui, sans-serif\" font-size=\"12\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
    );
    words(&mut text, (MARGIN, MARGIN + 4.0), "start", 12, title);
    let mut top = MARGIN + LINE;
    for layer in MapLayer::ALL {
        draw(&mut text, map, layer, top + HEAD);
        top += panel;
        if layer == MapLayer::Winner {
            top = names(&mut text, map, top - LEGEND + LINE) + LEGEND - LINE;
        }
    }
    text.push_str("</svg>\n");
    text
}

fn words(text: &mut String, (x, y): (f64, f64), anchor: &str, size: u32, what: &str) {
    let what = escaped(what);
    let _ =
        writeln!(text, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{what}</text>");
}

fn draw(text: &mut String, map: &WinnerMap, layer: MapLayer, top: f64) {
    let left = MARGIN + NAMES;
    words(text, (MARGIN, top - 22.0), "start", 15, layer.title());
    for (column, size) in map.sizes.iter().enumerate() {
        words(text, (left + (column as f64 + 0.5) * CELL.0, top - 6.0), "middle", 10, &bytes(*size));
    }
    for (row, (collective, cells)) in map.rows.iter().enumerate() {
        let y = top + row as f64 * CELL.1;
        words(text, (left - 6.0, y + CELL.1 / 2.0 + 3.5), "end", 10, &collective.to_string());
        for (column, cell) in cells.iter().enumerate() {
            let Some(cell) = cell else { continue };
            let (x, (fill, label)) = (left + column as f64 * CELL.0, layer.look(cell));
            let (width, height) = CELL;
            let _ = writeln!(
                text,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\" \
                 stroke=\"#fff\"><title>{}</title></rect>",
                escaped(&cell.words)
            );
            // Dark words on bright cells, and bright ones on dark cells.
            let is_dark = match layer {
                MapLayer::Winner => false,
                MapLayer::Gain => share(cell.gain) < 0.6,
                MapLayer::Confidence => cell.uncertainty > 0.4 * LEAST_SURE,
            };
            let _ = writeln!(
                text,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\" font-size=\"10\" fill=\"{}\" \
                 pointer-events=\"none\">{}</text>",
                x + width / 2.0,
                y + height / 2.0 + 3.5,
                if is_dark { "#fff" } else { "#000" },
                escaped(&label)
            );
        }
    }
    let below = top + CELL.1 * map.rows.len() as f64 + 6.0;
    match layer {
        MapLayer::Winner => {}
        MapLayer::Gain => {
            scale(text, (left, below), ["as fast", &format!("{:.0}×", MOST.sqrt()), &format!("{MOST:.0}×")])
        }
        MapLayer::Confidence => scale(text, (left, below), ["±20 % or more", "±10 %", "±0 %"]),
    }
}

/// The plans by their numbers. Returns where they end.
fn names(text: &mut String, map: &WinnerMap, mut y: f64) -> f64 {
    for (index, name) in map.names.iter().enumerate() {
        let fill = PALETTE[index % PALETTE.len()];
        let _ = writeln!(
            text,
            "<text x=\"{MARGIN}\" y=\"{y:.1}\"><tspan fill=\"{fill}\">■</tspan> {} {}</text>",
            index + 1,
            escaped(name)
        );
        y += LINE;
    }
    y
}

/// The colours with their values at both ends and in the middle.
fn scale(text: &mut String, (left, top): (f64, f64), ends: [&str; 3]) {
    const STEPS: usize = 40;
    const WIDTH: f64 = 200.0;
    let wide = WIDTH / STEPS as f64;
    for step in 0..STEPS {
        let [red, green, blue] = colour(step as f64 / (STEPS - 1) as f64);
        let _ = writeln!(
            text,
            "<rect x=\"{:.2}\" y=\"{top:.1}\" width=\"{:.2}\" height=\"10\" fill=\"#{red:02x}{green:02x}{blue:02x}\"/>",
            left + step as f64 * wide,
            wide + 0.3
        );
    }
    for ((place, anchor), end) in [(0.0, "start"), (0.5, "middle"), (1.0, "end")].into_iter().zip(ends) {
        words(text, (left + place * WIDTH, top + 22.0), anchor, 10, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::tune::winners::tests::table;

    #[test]
    fn every_measured_cell_is_in_every_map_and_names_are_text() {
        let text = svg(&WinnerMap::new(&table()), "3 ranks");
        assert_eq!(text.matches("<title>").count(), 9, "three cells in three maps");
        assert!(text.contains("a &lt;ring&gt; &amp; &quot;b&quot;") && !text.contains("<ring>"));
        let balanced =
            |tag: &str| text.matches(&format!("<{tag}")).count() == text.matches(&format!("</{tag}>")).count();
        assert!(balanced("svg") && balanced("text") && balanced("title"), "every element is closed");
        assert!(!text.contains("NaN") && !text.contains("inf"));
        let is_inside = |(attribute, most): (&str, f64)| {
            text.split(&format!(" {attribute}=\"")).skip(1).all(|rest| {
                let value: f64 = rest.split('"').next().unwrap().trim_end_matches('%').parse().unwrap();
                (0.0..=most).contains(&value)
            })
        };
        let size = |name: &str| {
            let rest = text.split_once(&format!(" {name}=\"")).unwrap().1;
            rest.split('"').next().unwrap().parse::<f64>().unwrap()
        };
        assert!(is_inside(("x", size("width"))) && is_inside(("y", size("height"))));
    }
}
