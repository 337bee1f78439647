//! The matrix that `nvidia-smi topo -m` prints.
//!
//! The principal function is [`read`]. The matrix says how two devices are joined: `NV#` by that many NVLinks, `PIX`
//! and `PXB` by PCIe bridges, `PHB` and `NODE` through one socket, `SYS` through two sockets. From this a tree is
//! built: devices that are joined by bridges share one bridge, and devices of one socket share its way to the others.
//! Where every GPU has more NVLinks to its peers together than any GPU has, there must be an NVSwitch.

use super::board::{DeviceTree, DirectLink, ImportedBoard, SharedIndex, TreeNode, outlets};
use super::{ImportOptions, speed};
use crate::document::TextError;
use crate::spelling::shorten;
use crate::{Micros, MicrosPerByte, TopologyResult};

/// No GPU has more NVLinks (NVLink 4 and 5 have eighteen).
const MOST_NVLINKS: usize = 18;
/// More devices than any machine has.
const MOST_DEVICES: usize = 1024;

const NVLINK_ALPHA: Micros = Micros(0.7);
const PCIE_ALPHA: Micros = Micros(2.0);
const NETWORK_ALPHA: Micros = Micros(2.6);

/// The way between two devices.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SmiPath {
    Itself,
    NvLinks(usize),
    /// PCIe bridges only.
    Bridge,
    /// Within a socket.
    Socket,
    /// Between sockets.
    System,
}

/// A row or column of the matrix.
struct SmiDevice {
    name: String,
    is_gpu: bool,
    ways: Vec<SmiPath>,
    /// Which cores are near: what stands in the row behind the matrix.
    affinity: String,
}

/// A word and the column where it begins, from 1.
type Word = (usize, String);

struct SmiParser<'t> {
    origin: &'t str,
}

/// Reads the matrix; see [`super::import`].
pub(super) fn read(
    text: &str,
    origin: &str,
    options: &ImportOptions,
) -> TopologyResult<(Vec<ImportedBoard>, Vec<String>)> {
    let devices = SmiParser { origin }.devices(text)?;
    let (board, nvlink) = build(&devices, options);
    let notes = vec![
        "The format is `nvidia-smi topo -m`, which says how devices are wired and nothing about speed: every bandwidth"
            .to_owned(),
        "is nominal (see beside each), every α assumed. `antiphon profile` measures them.".to_owned(),
        format!("An NVLink is taken for {nvlink}."),
    ];
    Ok((vec![board], notes))
}

/// The words of a line, without colour codes.
fn words(line: &str) -> Vec<Word> {
    let mut words: Vec<Word> = Vec::new();
    let mut inside = false;
    let mut letters = line.chars().enumerate().peekable();
    while let Some((column, letter)) = letters.next() {
        if letter == '\u{1b}' {
            // An escape sequence ends with a letter.
            while letters.next_if(|(_, letter)| !letter.is_ascii_alphabetic()).is_some() {}
            letters.next();
        } else if letter.is_whitespace() {
            inside = false;
        } else {
            match words.last_mut().filter(|_| inside) {
                Some((_, word)) => word.push(letter),
                None => words.push((column + 1, letter.to_string())),
            }
            inside = true;
        }
    }
    words
}

fn is_gpu(name: &str) -> bool {
    name.strip_prefix("GPU")
        .is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
}

impl SmiParser<'_> {
    fn fault(&self, line: usize, column: usize, reason: impl Into<String>) -> TextError {
        TextError { origin: self.origin.to_owned(), line, column, reason: reason.into() }
    }

    fn devices(&self, text: &str) -> Result<Vec<SmiDevice>, TextError> {
        let mut lines = text.lines().enumerate().map(|(index, line)| (index + 1, words(line)));
        let head = lines.by_ref().find(|(_, words)| {
            // The header has no row name in front: it is the only line that begins with two devices.
            words.first().is_some_and(|(_, word)| is_gpu(word))
                && words.get(1).is_none_or(|(_, word)| is_gpu(word) || word == "CPU" || way(word).is_none())
        });
        let Some((line, head)) = head else {
            let reason = "found no matrix: expected the output of `nvidia-smi topo -m`, whose first line names GPU0, \
                          GPU1 and so on; or NCCL XML, or TACCL JSON";
            return Err(self.fault(1, 1, reason));
        };
        let end =
            head.iter().position(|(_, word)| ["CPU", "NUMA", "GPU"].contains(&word.as_str())).unwrap_or(head.len());
        let names = &head[..end];
        if names.len() > MOST_DEVICES {
            return Err(self.fault(line, 1, format!("{} devices are more than {MOST_DEVICES}", names.len())));
        }
        for (index, (column, name)) in names.iter().enumerate() {
            if names[..index].iter().any(|(_, other)| other == name) {
                return Err(self.fault(line, *column, format!("`{}` has two columns", shorten(name))));
            }
        }
        let mut rows: Vec<Option<SmiRow>> = names.iter().map(|_| None).collect();
        for (line, words) in lines {
            let Some((column, name)) = words.first() else { continue };
            let Some(index) = names.iter().position(|(_, known)| known == name) else {
                if rows.iter().any(Option::is_some) {
                    break;
                }
                continue;
            };
            if rows[index].is_some() {
                return Err(self.fault(line, *column, format!("`{}` has two rows", shorten(name))));
            }
            rows[index] = Some(self.row(line, &words, index, names)?);
        }
        self.check(line, names, rows)
    }

    fn row(&self, line: usize, words: &[Word], index: usize, names: &[Word]) -> Result<SmiRow, TextError> {
        let mut places = Vec::new();
        for (other, (_, name)) in names.iter().enumerate() {
            let Some((column, word)) = words.get(other + 1) else {
                let column = words.last().map_or(1, |(column, word)| column + word.chars().count());
                let reason = format!("the row ends before the column of `{}`", shorten(name));
                return Err(self.fault(line, column, reason));
            };
            let Some(way) = way(word) else {
                let reason = format!(
                    "`{}` is no way between devices; known are X, NV1 and so on, PIX, PXB, PHB, NODE, SYS",
                    shorten(word)
                );
                return Err(self.fault(line, *column, reason));
            };
            if (way == SmiPath::Itself) != (other == index) {
                return Err(self.fault(line, *column, "`X` stands where a device meets itself, and only there"));
            }
            places.push((line, *column, way));
        }
        let affinity: Vec<&str> = words[names.len() + 1..].iter().map(|(_, word)| word.as_str()).collect();
        Ok(SmiRow { places, affinity: affinity.join(" ") })
    }

    /// All rows must be there, and both halves of the matrix equal.
    fn check(&self, line: usize, names: &[Word], rows: Vec<Option<SmiRow>>) -> Result<Vec<SmiDevice>, TextError> {
        let mut devices: Vec<SmiDevice> = Vec::new();
        for ((column, name), row) in names.iter().zip(rows) {
            let Some(row) = row else {
                return Err(self.fault(line, *column, format!("`{}` has a column and no row", shorten(name))));
            };
            for (other, device) in devices.iter().enumerate() {
                let (line, column, way) = row.places[other];
                let mirrored = device.ways[devices.len()];
                if mirrored != way {
                    let reason = format!(
                        "`{}` and `{}` are {way:?} here and {mirrored:?} in the other half",
                        shorten(name),
                        shorten(&device.name)
                    );
                    return Err(self.fault(line, column, reason));
                }
            }
            let ways = row.places.into_iter().map(|(_, _, way)| way).collect();
            devices.push(SmiDevice { is_gpu: is_gpu(name), name: name.clone(), ways, affinity: row.affinity });
        }
        Ok(devices)
    }
}

struct SmiRow {
    /// Line, column and path.
    places: Vec<(usize, usize, SmiPath)>,
    affinity: String,
}

fn way(word: &str) -> Option<SmiPath> {
    Some(match word {
        "X" => SmiPath::Itself,
        "PIX" | "PXB" | "PSB" => SmiPath::Bridge,
        "PHB" | "NODE" => SmiPath::Socket,
        "SYS" | "SOC" => SmiPath::System,
        _ => {
            let count = word.strip_prefix("NV")?;
            let count =
                if count.bytes().all(|byte| byte.is_ascii_digit()) { count.parse().ok()? } else { return None };
            if count == 0 || count > 999 {
                return None;
            }
            SmiPath::NvLinks(count)
        }
    })
}

/// Joins devices whose path is one of `accepted`: the group of each device, and the number of groups.
fn groups(devices: &[SmiDevice], accepted: &[SmiPath], same: impl Fn(usize, usize) -> bool) -> (Vec<usize>, usize) {
    let mut group: Vec<Option<usize>> = vec![None; devices.len()];
    let mut count = 0;
    for first in 0..devices.len() {
        if group[first].is_some() {
            continue;
        }
        let mut waiting = vec![first];
        group[first] = Some(count);
        while let Some(next) = waiting.pop() {
            for (other, group) in group.iter_mut().enumerate().filter(|(_, group)| group.is_none()) {
                if accepted.contains(&devices[next].ways[other]) || same(next, other) {
                    *group = Some(count);
                    waiting.push(other);
                }
            }
        }
        count += 1;
    }
    (group.into_iter().flatten().collect(), count)
}

/// The machine, and a note on the assumed bandwidth of an NVLink.
fn build(devices: &[SmiDevice], options: &ImportOptions) -> (ImportedBoard, String) {
    let assumed = &options.assumed;
    let mut board = ImportedBoard::default();
    let mut tree = DeviceTree::new();
    let (smp, smp_note) = speed(assumed.smp, 10.0, "nominal for a link between two sockets");
    let (pcie, pcie_note) = speed(assumed.pcie, 24.0, "nominal for PCIe 4.0 x16, which is assumed");
    let (nic, nic_note) = speed(assumed.nic, 25.0, "nominal for 200 Gb/s, which is assumed");
    // For two GPUs joined by NVLink the matrix does not show their PCIe path; the cores near them show it.
    let near = |a: usize, b: usize| {
        let affinity = &devices[a].affinity;
        matches!(devices[a].ways[b], SmiPath::NvLinks(_)) && !affinity.is_empty() && *affinity == devices[b].affinity
    };
    let (bridge_of, _) = groups(devices, &[SmiPath::Bridge], |_, _| false);
    let (socket_of, sockets) = groups(devices, &[SmiPath::Bridge, SmiPath::Socket], near);
    let socket_places: Vec<TreeNode> = (0..sockets)
        .map(|socket| {
            let edge = board.share_both(&format!("socket{socket}.smp"), smp, &smp_note);
            tree.add(0, Some(edge))
        })
        .collect();
    let mut bridges: Vec<Option<TreeNode>> = vec![None; devices.len()];
    let mut places = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        let bridge = bridge_of[index];
        let shared = bridge_of.iter().filter(|other| **other == bridge).count() > 1;
        let above = match bridges[bridge] {
            Some(place) => place,
            None if !shared => socket_places[socket_of[index]],
            None => {
                let edge = board.share_both(&format!("bridge{bridge}.pcie"), pcie, &pcie_note);
                tree.add(socket_places[socket_of[index]], Some(edge))
            }
        };
        if shared {
            bridges[bridge] = Some(above);
        }
        let edge = board.share_both(&format!("{}.pcie", device.name.to_lowercase()), pcie, &pcie_note);
        places.push(tree.add(above, Some(edge)));
    }
    let gpus: Vec<usize> = (0..devices.len()).filter(|&index| devices[index].is_gpu).collect();
    board.ranks = gpus.len();
    let (nvlink, nvlink_note) = speed(assumed.nvlink, 25.0, "nominal for NVLink 2, 3 and 4");
    join_gpus(&mut board, devices, &gpus, nvlink, |from, to| tree.path(places[from], places[to]));
    let nics: Vec<_> = (0..devices.len())
        .filter(|&index| !devices[index].is_gpu)
        .map(|index| {
            let name = devices[index].name.to_lowercase();
            let port = board.share_both(&format!("{name}.port"), nic, &nic_note);
            (places[index], port, NETWORK_ALPHA, format!("through {name}; α assumed"))
        })
        .collect();
    let ranks: Vec<TreeNode> = gpus.iter().map(|&gpu| places[gpu]).collect();
    board.outlets = outlets(&tree, &ranks, &nics);
    (board, nvlink_note)
}

/// A link from every GPU to every other: NVLink where there is one, else through PCIe.
fn join_gpus(
    board: &mut ImportedBoard,
    devices: &[SmiDevice],
    gpus: &[usize],
    nvlink: MicrosPerByte,
    pcie: impl Fn(usize, usize) -> Vec<SharedIndex>,
) {
    let mut ports: Vec<Option<[SharedIndex; 2]>> = vec![None; gpus.len()];
    for (rank, &gpu) in gpus.iter().enumerate() {
        let cables = gpus.iter().filter_map(|&other| match devices[gpu].ways[other] {
            SmiPath::NvLinks(count) => Some(count),
            _ => None,
        });
        let (total, most) = cables.fold((0, 0), |(total, most), count| (total + count, count.max(most)));
        if total > MOST_NVLINKS.max(most) {
            let beta = MicrosPerByte(nvlink.0 / most as f64);
            let note = format!("{most} NVLinks to an NVSwitch, nominal");
            ports[rank] = Some(board.share_both(&format!("gpu{rank}.nvlink"), beta, &note));
        }
    }
    for (from, &sender) in gpus.iter().enumerate() {
        for (to, &receiver) in gpus.iter().enumerate().filter(|(to, _)| *to != from) {
            let wire = match (devices[sender].ways[receiver], ports[from], ports[to]) {
                (SmiPath::NvLinks(count), Some([tx, _]), Some([_, rx])) => DirectLink {
                    from,
                    to,
                    alpha: NVLINK_ALPHA,
                    beta: MicrosPerByte(nvlink.0 / count as f64),
                    shared: vec![tx, rx],
                    note: format!("NV{count} through an NVSwitch, nominal; α assumed"),
                },
                (SmiPath::NvLinks(count), _, _) => DirectLink {
                    from,
                    to,
                    alpha: NVLINK_ALPHA,
                    beta: MicrosPerByte(nvlink.0 / count as f64),
                    shared: Vec::new(),
                    note: format!("NV{count}, nominal; α assumed"),
                },
                (way, _, _) => DirectLink {
                    from,
                    to,
                    alpha: PCIE_ALPHA,
                    beta: MicrosPerByte::ZERO,
                    shared: pcie(sender, receiver),
                    note: format!("PCIe ({way:?}), nominal; α assumed"),
                },
            };
            board.wires.push(wire);
        }
    }
}
