//! Heat maps of block characters, for terminals and for logs without colours.

use super::{HeatMap, Quantity, colour};
use std::fmt::Write;

/// The characters from the least to the largest value.
const SHADES: [char; 5] = ['·', '░', '▒', '▓', '█'];
/// Values that differ by less than this factor are in one class.
const STEP: f64 = 1.12;
/// The gap between the two maps.
const GAP: &str = "    ";

/// The bandwidth and α of all pairs, with legends, side by side if `width` columns suffice; colour codes only if
/// `coloured`.
pub(crate) fn terminal(map: &HeatMap<'_>, coloured: bool, width: usize) -> String {
    let blocks = [Quantity::Bandwidth, Quantity::Alpha].map(|quantity| TextBlock::draw(map, quantity, coloured));
    let beside = blocks.iter().map(|block| block.width).sum::<usize>() + GAP.len() <= width;
    if !beside {
        let texts = blocks.map(|block| block.lines.join("\n"));
        return texts.join("\n\n");
    }
    let [left, right] = &blocks;
    let mut text = String::new();
    for line in 0..left.lines.len().max(right.lines.len()) {
        let of = |block: &TextBlock| {
            (block.lines.get(line).cloned().unwrap_or_default(), block.widths.get(line).copied().unwrap_or(0))
        };
        let ((one, columns), (other, _)) = (of(left), of(right));
        let _ = writeln!(text, "{one}{:fill$}{GAP}{other}", "", fill = left.width.saturating_sub(columns));
    }
    text.lines().map(str::trim_end).collect::<Vec<_>>().join("\n")
}

/// One map, with the width of each line without its colour codes.
struct TextBlock {
    lines: Vec<String>,
    widths: Vec<usize>,
    width: usize,
}

impl TextBlock {
    fn draw(map: &HeatMap<'_>, quantity: Quantity, coloured: bool) -> Self {
        let classes = ValueClasses::of(&map.values(quantity));
        let borders = map.borders();
        let mut block = Self { lines: Vec::new(), widths: Vec::new(), width: 0 };
        let digits = map.order.iter().map(|rank| rank.to_string().len()).max().unwrap_or(1);
        block.line(format!("{}, row → column", quantity.title()), None);
        // Cells have two columns; longer numbers use the space of several cells.
        let every = [1, 2, 4, 4][digits.clamp(1, 4) - 1];
        let mut head = " ".repeat(digits + 1);
        for (place, rank) in map.order.iter().enumerate() {
            if borders.contains(&place) {
                head.push(' ');
            }
            let room = digits + 1 + 2 * place + borders.iter().filter(|&&border| border <= place).count();
            if place % every == 0 {
                let _ = write!(head, "{:fill$}{rank}", "", fill = room.saturating_sub(head.chars().count()));
            }
        }
        block.line(head, None);
        for (row, &from) in map.order.iter().enumerate() {
            if borders.contains(&row) {
                block.line(String::new(), None);
            }
            let (mut text, mut columns) = (format!("{:>digits$} ", from.to_string()), digits + 1);
            for (column, &to) in map.order.iter().enumerate() {
                if borders.contains(&column) {
                    text.push(' ');
                    columns += 1;
                }
                let cell = match map.value(quantity, from, to) {
                    Some(value) => classes.paint(classes.class(value), coloured),
                    None => "  ".to_owned(),
                };
                text.push_str(&cell);
                columns += 2;
            }
            block.line(text, Some(columns));
        }
        for class in (0..classes.0.len()).rev() {
            let (low, high, count) = classes.0[class];
            let range = match (quantity.show(low), quantity.show(high)) {
                (low, high) if low == high => low,
                (low, high) => format!("{low} to {high}"),
            };
            let plain = format!("   {range}, {count} {}", if count == 1 { "link" } else { "links" });
            let columns = 2 + plain.chars().count();
            block.line(format!("{}{plain}", classes.paint(class, coloured)), Some(columns));
        }
        block
    }

    fn line(&mut self, text: String, columns: Option<usize>) {
        let columns = columns.unwrap_or_else(|| text.chars().count());
        self.width = self.width.max(columns);
        self.lines.push(text);
        self.widths.push(columns);
    }
}

/// Classes of values: the least, the largest and the number of each, ascending.
struct ValueClasses(Vec<(f64, f64, usize)>);

impl ValueClasses {
    /// Divides ascending values at the widest gaps.
    fn of(values: &[f64]) -> Self {
        // The step from zero to a value, or from a value to an unlimited one, is unlimited as well.
        let gap = |at: usize| if values[at] == values[at - 1] { 1.0 } else { values[at] / values[at - 1] };
        let mut cuts: Vec<usize> = (1..values.len()).filter(|&at| gap(at) >= STEP).collect();
        cuts.sort_by(|&one, &other| gap(other).total_cmp(&gap(one)));
        cuts.truncate(SHADES.len() - 1);
        cuts.extend([0, values.len()]);
        cuts.sort_unstable();
        let class = |cut: &[usize]| (values[cut[0]], values[cut[1] - 1], cut[1] - cut[0]);
        Self(cuts.windows(2).filter(|cut| cut[0] < cut[1]).map(class).collect())
    }

    fn class(&self, value: f64) -> usize {
        self.0.iter().rposition(|(low, ..)| value >= *low).unwrap_or(0)
    }

    fn share(&self, class: usize) -> f64 {
        if self.0.len() < 2 { 1.0 } else { class as f64 / (self.0.len() - 1) as f64 }
    }

    /// The two columns of a cell.
    fn paint(&self, class: usize, coloured: bool) -> String {
        let share = self.share(class);
        if coloured {
            let [red, green, blue] = colour(share);
            return format!("\u{1b}[38;2;{red};{green};{blue}m██\u{1b}[0m");
        }
        let shade = SHADES[(share * (SHADES.len() - 1) as f64).round() as usize];
        [shade, shade].iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_a_value_of_its_own() {
        let topology = topology::resolve("ring:3").unwrap();
        let mut parts = topology::TopologyParts {
            name: "zero".to_owned(),
            ranks: 3,
            machines: topology.machines().to_vec(),
            links: topology.links().to_vec(),
            resources: Vec::new(),
        };
        parts.links[0].alpha = topology::Micros::ZERO;
        parts.links[1].beta = topology::MicrosPerByte::ZERO;
        parts.links[2].alpha = topology::Micros(2.6);
        let drawn = terminal(&HeatMap::new(&topology::Topology::new(parts).unwrap()), false, 200);
        for line in ["··   0 µs, 1 link", "2.6 µs, 1 link", "██   unlimited, 1 link", "50 GB/s, 2 links"] {
            assert!(drawn.contains(line), "no `{line}` in\n{drawn}");
        }
        // Rank 0 to rank 1, in the right map: the least α.
        assert!(drawn.lines().any(|line| line.ends_with("0   ··")), "{drawn}");
    }

    #[test]
    fn two_machines_are_drawn_apart_and_the_slow_link_stands_out() {
        let mut text =
            String::from("format: antiphon-topology/1\nname: t\nranks: 4\nmachines: [[0, 2], [1, 3]]\nlinks:\n");
        for from in 0..4 {
            for to in (0..4).filter(|to| *to != from) {
                let beta = match (from % 2 == to % 2, (from, to)) {
                    (_, (3, 1)) => 0.01,
                    (true, _) => 0.0001,
                    (false, _) => 0.001,
                };
                let _ = writeln!(
                    text,
                    "- {{from: {from}, to: {to}, alpha_us: 2, beta_us_per_byte: {beta}, latency: occupies}}"
                );
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("t.yaml");
        std::fs::write(&path, text).unwrap();
        let topology = topology::load(&path.display().to_string()).unwrap();
        let drawn = terminal(&HeatMap::new(&topology), false, 30);
        let expected = "\
bandwidth, row → column
  0 2  1 3
0   ██ ▒▒▒▒
2 ██   ▒▒▒▒

1 ▒▒▒▒   ██
3 ▒▒▒▒ ··
██   10 GB/s, 3 links
▒▒   1 GB/s, 8 links
··   0.1 GB/s, 1 link

α, row → column
  0 2  1 3
0   ██ ████
2 ██   ████

1 ████   ██
3 ████ ██
██   2 µs, 12 links";
        let trimmed: Vec<&str> = drawn.lines().map(str::trim_end).collect();
        assert_eq!(trimmed.join("\n"), expected, "{drawn}");
        let beside = terminal(&HeatMap::new(&topology), true, 120);
        assert!(beside.lines().count() < 11 && beside.contains("\u{1b}[38;2;253;231;37m██"), "{beside}");
    }
}
