//! The device tree that Linux shows in `/sys`, or a copy of it.
//!
//! The principal function is [`read`]. Below `devices/pci….` every PCI device is a folder inside the folder of the
//! bridge above it; its files say what it is (`class`), to which processor it belongs (`numa_node`) and which link it
//! has negotiated (`current_link_speed`, `current_link_width`). GPUs are found by their class, NICs by the `net` and
//! `infiniband` folders that their drivers add. Without a GPU every processor is a rank. NVLinks do not appear here.
//!
//! The folder may come from anybody: symbolic links are not followed, and depth, number and length of files are
//! bounded.

use super::board::{DeviceTree, DirectLink, ImportedBoard, SharedIndex, TreeNode, outlets};
use super::nominal::lanes;
use super::{Assumed, ImportOptions, speed};
use crate::quantity::show_bandwidth;
use crate::spec::bad_part;
use crate::spelling::shorten;
use crate::{Micros, MicrosPerByte, TopologyError, TopologyResult};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};

/// Deeper than any chain of bridges.
const MAX_DEPTH: usize = 24;
/// More folders than the PCI devices and network interfaces of a machine.
const MAX_FOLDERS: usize = 20_000;
/// Longer than any attribute that is looked at.
const MAX_ATTRIBUTE: u64 = 4096;
/// More ranks than any machine has.
const MOST_RANKS: usize = 256;

const PCIE_ALPHA: Micros = Micros(2.0);
const SOCKET_ALPHA: Micros = Micros(1.0);
const NETWORK_ALPHA: Micros = Micros(2.6);

/// PCI classes: what a device is for.
const BRIDGE: u32 = 0x0604;
const DISPLAYS: [u32; 2] = [0x0300, 0x0380];
const ACCELERATORS: [u32; 2] = [0x0302, 0x1200];
/// A display of a management controller has one lane, a GPU many.
const LEAST_GPU_LANES: u64 = 8;

/// A PCI device.
struct SysDevice {
    address: String,
    /// The first two bytes.
    class: u32,
    numa: Option<u64>,
    /// As printed, such as `16.0 GT/s PCIe`.
    rate: String,
    width: u64,
    /// How many bridges are above.
    depth: usize,
    above: Option<usize>,
    nets: Vec<SysNet>,
}

/// A port to the network.
struct SysNet {
    name: String,
    /// Mbit/s, if it says so.
    megabits: Option<f64>,
}

struct SysReader {
    devices: Vec<SysDevice>,
    folders: usize,
}

/// Reads a tree; see [`super::import_sys`].
pub(super) fn read(root: &Path, options: &ImportOptions) -> TopologyResult<(Vec<ImportedBoard>, Vec<String>)> {
    let devices = if is_folder(&root.join("devices")) { root.join("devices") } else { root.to_owned() };
    let mut walk = SysReader { devices: Vec::new(), folders: 0 };
    for (name, path) in walk.folders_in(&devices)? {
        if name.starts_with("pci") {
            walk.bus(&path, None, 0)?;
        }
    }
    if walk.devices.is_empty() {
        let reason = "holds no `devices/pci…`; expected /sys or a copy of it";
        return Err(bad_part(format!("`{}`", shorten(&root.to_string_lossy())), reason));
    }
    let mut notes = vec![
        "The format is Linux's /sys, which says how devices are wired; bandwidths are nominal, from the speeds it states"
            .to_owned(),
        "(see beside each), every α is assumed; NVLinks do not appear in it. `antiphon profile` measures them.".to_owned(),
    ];
    let board = build(&walk.devices, options.assumed, &mut notes)?;
    Ok((vec![board], notes))
}

fn is_folder(path: &Path) -> bool {
    path.symlink_metadata().is_ok_and(|about| about.is_dir())
}

/// The first line of a file, if it is a short text.
fn attribute(folder: &Path, name: &str) -> Option<String> {
    let path = folder.join(name);
    // A pipe or a device of the same name would wait for ever.
    path.symlink_metadata().ok().filter(std::fs::Metadata::is_file)?;
    let mut text = String::new();
    std::fs::File::open(path).ok()?.take(MAX_ATTRIBUTE).read_to_string(&mut text).ok()?;
    text.lines().next().map(|line| line.trim().to_owned())
}

/// Whether a name is that of a PCI function, such as `0000:3b:00.0`.
fn is_address(name: &str) -> bool {
    let hex = |text: &str, digits: std::ops::RangeInclusive<usize>| {
        digits.contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_hexdigit())
    };
    let mut parts = name.split([':', '.']);
    let fits = |part: Option<&str>, digits| part.is_some_and(|part| hex(part, digits));
    fits(parts.next(), 4..=8)
        && fits(parts.next(), 2..=2)
        && fits(parts.next(), 2..=2)
        && fits(parts.next(), 1..=1)
        && parts.next().is_none()
}

impl SysReader {
    /// The folders in a folder, by name.
    fn folders_in(&mut self, path: &Path) -> TopologyResult<Vec<(String, PathBuf)>> {
        let shown = || shorten(&path.to_string_lossy());
        let unreadable = |error: std::io::Error| TopologyError::Unreadable { path: shown(), reason: error.to_string() };
        let mut found = Vec::new();
        for entry in std::fs::read_dir(path).map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if entry.file_type().map_err(unreadable)?.is_dir() {
                self.folders += 1;
                if self.folders > MAX_FOLDERS {
                    return Err(bad_part(
                        format!("`{}`", shown()),
                        format!("there are more than {MAX_FOLDERS} folders"),
                    ));
                }
                found.push((entry.file_name().to_string_lossy().into_owned(), entry.path()));
            }
        }
        found.sort_unstable();
        Ok(found)
    }

    /// The devices below a bridge.
    fn bus(&mut self, path: &Path, above: Option<usize>, depth: usize) -> TopologyResult<()> {
        if depth > MAX_DEPTH {
            let reason = format!("there are more than {MAX_DEPTH} bridges one below the other");
            return Err(bad_part(format!("`{}`", shorten(&path.to_string_lossy())), reason));
        }
        for (name, path) in self.folders_in(path)? {
            if !is_address(&name) {
                continue;
            }
            let text = |name| attribute(&path, name);
            let number = |name| text(name).and_then(|text| text.parse::<u64>().ok());
            let class = text("class").and_then(|text| u32::from_str_radix(text.strip_prefix("0x")?, 16).ok());
            // A virtual function is not another card.
            let is_virtual = path.join("physfn").symlink_metadata().is_ok();
            self.devices.push(SysDevice {
                address: name,
                class: if is_virtual { 0 } else { class.unwrap_or(0) >> 8 },
                numa: number("numa_node"),
                rate: text("current_link_speed").unwrap_or_default(),
                width: number("current_link_width").unwrap_or(0),
                depth,
                above,
                nets: Vec::new(),
            });
            let index = self.devices.len() - 1;
            if !is_virtual {
                self.devices[index].nets = self.nets(&path)?;
            }
            self.bus(&path, Some(index), depth + 1)?;
        }
        Ok(())
    }

    /// The network interfaces of a device, even where its driver puts another device between.
    fn nets(&mut self, path: &Path) -> TopologyResult<Vec<SysNet>> {
        let (mut cards, mut interfaces) = (Vec::new(), Vec::new());
        let below: Vec<(String, PathBuf)> =
            self.folders_in(path)?.into_iter().filter(|(name, _)| !is_address(name)).collect();
        let virtio = below.iter().filter(|(name, _)| name.starts_with("virtio")).map(|(_, path)| path.clone());
        for place in std::iter::once(path.to_owned()).chain(virtio) {
            if is_folder(&place.join("infiniband")) {
                for (name, card) in self.folders_in(&place.join("infiniband"))? {
                    let rate = attribute(&card.join("ports").join("1"), "rate");
                    cards.push(SysNet { name, megabits: rate.as_deref().and_then(gigabits).map(|rate| rate * 1e3) });
                }
            }
            if is_folder(&place.join("net")) {
                for (name, interface) in self.folders_in(&place.join("net"))? {
                    let speed = attribute(&interface, "speed").and_then(|text| text.parse::<f64>().ok());
                    interfaces.push(SysNet { name, megabits: speed });
                }
            }
        }
        // Both names are for the same port.
        let mut nets = if cards.is_empty() { interfaces } else { cards };
        for net in &mut nets {
            net.megabits = net.megabits.filter(|rate| (1.0..1e9).contains(rate));
        }
        Ok(nets)
    }
}

/// The number in front of `Gb/sec`.
fn gigabits(text: &str) -> Option<f64> {
    let (rate, rest) = text.split_once(' ')?;
    rate.parse().ok().filter(|_| rest.starts_with("Gb/sec"))
}

impl SysDevice {
    fn is_gpu(&self) -> bool {
        ACCELERATORS.contains(&self.class) || DISPLAYS.contains(&self.class) && self.width >= LEAST_GPU_LANES
    }

    /// Whether the device is the lower end of a PCIe link. Along a path, bridges alternate between upper end and lower
    /// end of a link.
    fn ends_a_link(&self) -> bool {
        self.class != BRIDGE || self.depth % 2 == 1
    }
}

fn build(devices: &[SysDevice], assumed: Assumed, notes: &mut Vec<String>) -> TopologyResult<ImportedBoard> {
    let mut board = ImportedBoard::default();
    let mut tree = DeviceTree::new();
    let mut sockets: BTreeMap<u64, TreeNode> = BTreeMap::new();
    let (smp, smp_note) = speed(assumed.smp, 10.0, "assumed between processors");
    let mut places: Vec<TreeNode> = Vec::new();
    let homes: Vec<u64> = devices.iter().map(|device| device.numa.unwrap_or(0)).collect();
    for (device, home) in devices.iter().zip(&homes) {
        let above = match device.above {
            Some(above) => places[above],
            None => *sockets.entry(*home).or_insert_with(|| {
                let edge = board.share_both(&format!("cpu{home}.smp"), smp, &smp_note);
                tree.add(0, Some(edge))
            }),
        };
        let edge = device.ends_a_link().then(|| {
            let (beta, note) = lanes(&device.rate, device.width, assumed);
            board.share_both(&format!("pci.{}", device.address), beta, &note)
        });
        places.push(tree.add(above, edge));
    }
    let gpus: Vec<usize> = (0..devices.len()).filter(|&index| devices[index].is_gpu()).collect();
    let ranks: Vec<TreeNode> = if gpus.is_empty() {
        sockets.values().copied().collect()
    } else {
        gpus.iter().map(|&gpu| places[gpu]).collect()
    };
    if ranks.len() > MOST_RANKS {
        let reason = format!("{} GPUs are more than the {MOST_RANKS} of any machine", ranks.len());
        return Err(bad_part("the tree".to_owned(), reason));
    }
    let (alpha, what) = if gpus.is_empty() { (SOCKET_ALPHA, "between processors") } else { (PCIE_ALPHA, "PCIe") };
    notes.push(match gpus.is_empty() {
        true => format!("There is no GPU in it: a rank is one of {} processors (NUMA nodes).", ranks.len()),
        false => {
            let names = gpus.iter().map(|&gpu| devices[gpu].address.as_str()).collect::<Vec<_>>();
            format!("A rank is a GPU: {}.", names.join(", "))
        }
    });
    board.ranks = ranks.len();
    for from in 0..ranks.len() {
        for to in (0..ranks.len()).filter(|&to| to != from) {
            let (shared, note) = (tree.path(ranks[from], ranks[to]), format!("{what}, nominal; α assumed"));
            board.wires.push(DirectLink { from, to, alpha, beta: MicrosPerByte::ZERO, shared, note });
        }
    }
    let nics = ports(devices, &places, assumed, &mut board);
    board.outlets = outlets(&tree, &ranks, &nics);
    Ok(board)
}

/// A way out of the machine, as [`outlets`] takes it.
type SysPort = (TreeNode, [SharedIndex; 2], Micros, String);

fn ports(devices: &[SysDevice], places: &[TreeNode], assumed: Assumed, board: &mut ImportedBoard) -> Vec<SysPort> {
    let nets = devices.iter().zip(places).flat_map(|(device, place)| device.nets.iter().map(move |net| (net, *place)));
    // If some ports tell their speed, those that do not have no cable.
    let any = devices.iter().flat_map(|device| &device.nets).any(|net| net.megabits.is_some());
    let mut ports = Vec::new();
    for (net, place) in nets.filter(|(net, _)| net.megabits.is_some() || !any) {
        let (beta, note) = match (assumed.nic, net.megabits) {
            (Some(_), _) | (None, None) => speed(assumed.nic, 12.0, "assumed: its speed is not stated"),
            (None, Some(megabits)) => speed(None, megabits / 8e3, &format!("nominal for {megabits} Mb/s")),
        };
        let name = shorten(&net.name);
        let edge = board.share_both(&format!("net.{name}"), beta, &note);
        ports.push((place, edge, NETWORK_ALPHA, format!("through {name}, {}; α assumed", show_bandwidth(beta))));
    }
    ports
}

#[cfg(test)]
mod tests {
    use super::super::{ImportOptions, import_sys};
    use super::*;
    use rand::{RngExt, SeedableRng};

    /// A copy of `/sys` that goes away with the test.
    struct Copied(PathBuf);

    impl Drop for Copied {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const GEN4: [(&str, &str); 2] = [("current_link_speed", "16.0 GT/s PCIe\n"), ("current_link_width", "16\n")];

    /// Two processors; below a switch at the first two GPUs and a NIC, at the second one GPU, a management display and
    /// a NIC with a virtual function.
    fn entries() -> Vec<(String, Vec<(&'static str, &'static str)>)> {
        let of = |class: &'static str, numa: &'static str| {
            let mut files = vec![("class", class), ("numa_node", numa)];
            files.extend(GEN4);
            files
        };
        let port = "pci0000:00/0000:00:01.0";
        let switch = format!("{port}/0000:01:00.0");
        let far = "pci0000:80/0000:80:01.0";
        let entry = |path: String, files| (path, files);
        vec![
            entry(port.to_owned(), of("0x060400\n", "0\n")),
            entry(switch.clone(), of("0x060400\n", "0\n")),
            entry(format!("{switch}/0000:02:00.0"), of("0x060400\n", "0\n")),
            entry(format!("{switch}/0000:02:00.0/0000:03:00.0"), of("0x030200\n", "0\n")),
            entry(format!("{switch}/0000:02:01.0"), of("0x060400\n", "0\n")),
            entry(format!("{switch}/0000:02:01.0/0000:04:00.0"), of("0x030200\n", "0\n")),
            entry(format!("{switch}/0000:02:02.0"), of("0x060400\n", "0\n")),
            entry(format!("{switch}/0000:02:02.0/0000:05:00.0"), of("0x020700\n", "0\n")),
            entry(
                format!("{switch}/0000:02:02.0/0000:05:00.0/infiniband/mlx5_0/ports/1"),
                vec![("rate", "200 Gb/sec (4X HDR)\n")],
            ),
            entry(format!("{switch}/0000:02:02.0/0000:05:00.0/net/ib0"), vec![("speed", "200000\n")]),
            entry(far.to_owned(), of("0x060400\n", "1\n")),
            entry(format!("{far}/0000:81:00.0"), of("0x120000\n", "1\n")),
            entry("pci0000:80/0000:80:02.0".to_owned(), vec![("class", "0x060400\n"), ("numa_node", "1\n")]),
            entry(
                "pci0000:80/0000:80:02.0/0000:82:00.0".to_owned(),
                vec![("class", "0x030000\n"), ("numa_node", "1\n"), ("current_link_width", "1\n")],
            ),
            entry("pci0000:80/0000:80:03.0".to_owned(), of("0x060400\n", "1\n")),
            entry("pci0000:80/0000:80:03.0/0000:83:00.0".to_owned(), of("0x020000\n", "1\n")),
            entry("pci0000:80/0000:80:03.0/0000:83:00.0/net/eth0".to_owned(), vec![("speed", "100000\n")]),
            entry("pci0000:80/0000:80:03.0/0000:83:00.1".to_owned(), of("0x020000\n", "1\n")),
            entry("pci0000:80/0000:80:03.0/0000:83:00.1/net/eth1".to_owned(), vec![("speed", "-1\n")]),
            entry("pci0000:80/0000:80:03.0/0000:83:00.2/physfn".to_owned(), vec![]),
            entry("pci0000:80/0000:80:03.0/0000:83:00.2/net/eth2".to_owned(), vec![("speed", "100000\n")]),
            entry("system/node/node0".to_owned(), vec![]),
        ]
    }

    fn write(name: &str, entries: &[(String, Vec<(&str, &str)>)]) -> Copied {
        let root = std::env::temp_dir().join(format!("antiphon-sys-{}-{name}", std::process::id()));
        let copied = Copied(root.clone());
        for (path, files) in entries {
            let folder = root.join("devices").join(path);
            std::fs::create_dir_all(&folder).unwrap();
            files.iter().for_each(|(name, text)| std::fs::write(folder.join(name), text).unwrap());
        }
        copied
    }

    #[test]
    fn gpus_nics_and_bridges_are_found_with_their_speeds() {
        let tree = write("whole", &entries());
        let imported = import_sys(&tree.0, &ImportOptions { machines: 2, ..ImportOptions::default() }).unwrap();
        let topology = &imported.topology;
        assert_eq!((topology.rank_count(), topology.machines().len()), (6, 2));
        let path = |from: u32, to: u32| -> (f64, Vec<&str>) {
            let link = topology.links().iter().find(|link| (link.from.0, link.to.0) == (from, to)).unwrap();
            let names = link.resources.iter().map(|id| topology.resource(*id).name.as_str());
            ((link.beta.gbps() * 10.0).round() / 10.0, names.collect())
        };
        // Gen 4 x16: 24 GB/s of data. Below one switch nothing above it is used.
        assert_eq!(path(0, 1), (24.0, vec!["machine0.pci.0000:03:00.0.tx", "machine0.pci.0000:04:00.0.rx"]));
        let (speed, far) = path(1, 2);
        assert_eq!(speed, 10.0, "between processors");
        assert_eq!(far.len(), 5, "GPU, switch, two processors, GPU: {far:?}");
        let (speed, out) = path(0, 4);
        assert_eq!(speed, 24.0, "PCIe is slower than 200 Gb/s");
        assert!(out.contains(&"machine0.net.mlx5_0.tx") && out.contains(&"machine1.net.mlx5_0.rx"), "{out:?}");
        let (speed, out) = path(2, 5);
        assert_eq!(speed, 12.5);
        assert!(out.contains(&"machine0.net.eth0.tx") && out.contains(&"machine1.net.eth0.rx"), "{out:?}");
        let yaml = imported.to_yaml();
        assert!(yaml.contains("nominal for 16 GT/s x16") && yaml.contains("nominal for 200000 Mb/s"), "{yaml}");
    }

    #[test]
    fn without_gpus_processors_are_ranks() {
        let mut bare = entries();
        bare.iter_mut()
            .flat_map(|(_, files)| files)
            .filter(|(name, text)| *name == "class" && (text.contains("0x0302") || text.contains("0x12")))
            .for_each(|(_, text)| *text = "0x010802\n");
        let tree = write("bare", &bare);
        let imported = import_sys(&tree.0.join("devices"), &ImportOptions::default()).unwrap();
        assert_eq!((imported.topology.rank_count(), imported.topology.links().len()), (2, 2));
        assert!(imported.notes.iter().any(|note| note.contains("no GPU")));
        let empty = write("empty", &[("system".to_owned(), vec![])]);
        let error = import_sys(&empty.0, &ImportOptions::default()).unwrap_err().to_string();
        assert!(error.contains("devices/pci"), "{error}");
        let absent = import_sys(Path::new("/nowhere/at/all"), &ImportOptions::default()).unwrap_err();
        assert!(matches!(absent, TopologyError::Unreadable { .. }), "{absent}");
    }

    #[test]
    fn damaged_trees_are_read_or_refused_but_never_more() {
        let mut random = rand_pcg::Pcg64::seed_from_u64(5);
        const WORDS: [&str; 8] =
            ["", "-1\n", "99999999999999999999\n", "0x\n", "\u{0}\u{0}", "NaN\n", "16.0\n", "0x030200\n"];
        let (mut read, mut refused) = (0, 0);
        for round in 0..60 {
            let mut damaged = entries();
            for _ in 0..random.random_range(1..6) {
                let at = random.random_range(0..damaged.len());
                match random.random_range(0..4) {
                    0 => drop(damaged.remove(at)),
                    1 => {
                        let word = WORDS[random.random_range(0..WORDS.len())];
                        let files = &mut damaged[at].1;
                        if !files.is_empty() {
                            let file = random.random_range(0..files.len());
                            files[file].1 = word;
                        }
                    }
                    2 => damaged[at].0 = damaged[at].0.replacen("0000:0", "00zz:0", 1),
                    _ => {
                        let deeper =
                            format!("{}/{}", damaged[at].0, "0000:09:00.0/".repeat(random.random_range(1..40)));
                        damaged[at].0 = deeper;
                    }
                }
            }
            let tree = write(&format!("damaged{round}"), &damaged);
            match import_sys(&tree.0, &ImportOptions { machines: 2, ..ImportOptions::default() }) {
                Ok(imported) => {
                    read += 1;
                    assert!(imported.topology.rank_count() > 0);
                }
                Err(error) => {
                    refused += 1;
                    assert!(!error.to_string().is_empty());
                }
            }
        }
        assert!(read > 20 && refused > 2, "{read} {refused}");
    }
}
