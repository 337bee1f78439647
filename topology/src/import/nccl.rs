//! NCCL's topology XML, as `NCCL_TOPO_DUMP_FILE` writes it and `NCCL_TOPO_FILE` reads it.
//!
//! The principal function is [`read`]. `system` contains a `cpu` for each NUMA domain, with `pci` bridges and endpoints
//! below it, and `gpu` (with `nvlink` and `c2c`) and `nic` (with `net`) below those. Domains with different `host_hash`
//! are different machines. Bandwidths are those of NCCL's own tables: usable bandwidth for each PCIe lane and NVLink by
//! generation, and between two sockets by vendor. Other attributes are ignored.

use super::board::{DeviceTree, DirectLink, ImportedBoard, SharedIndex, TreeNode, outlets};
use super::nominal;
use super::xml::{self, XmlElement};
use super::{Assumed, ImportOptions, at_byte, speed};
use crate::document::TextError;
use crate::quantity::show_bandwidth;
use crate::spelling::shorten;
use crate::{Micros, MicrosPerByte, TopologyResult};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

const NVLINK_ALPHA: Micros = Micros(0.7);
const PCIE_ALPHA: Micros = Micros(2.0);
const NETWORK_ALPHA: Micros = Micros(2.6);

/// As many devices as NCCL itself has room for: each pair of GPUs gets links.
const MOST_GPUS: usize = 640;
/// More bridges, one below the other, than any machine has: each is a resource of every link that passes it.
const DEEPEST: usize = 12;
/// More NVLinks than any GPU has.
const MOST_NVLINKS: u64 = 128;
/// More MB/s than any link between processor and GPU has.
const MOST_C2C: u64 = 10_000_000;

/// More Mb/s than any port has.
const MOST_MEGABITS: u64 = 100_000_000;

/// A GPU while the document is read.
struct NcclGpu<'x> {
    element: &'x XmlElement,
    busid: String,
    place: TreeNode,
    machine: usize,
}

/// One `net`.
struct NcclNet {
    place: TreeNode,
    name: String,
    speed: MicrosPerByte,
    note: String,
    alpha: Option<f64>,
}

/// A machine while the document is read.
#[derive(Default)]
struct NcclHost<'x> {
    hash: Option<&'x str>,
    board: ImportedBoard,
    nets: Vec<NcclNet>,
}

struct NcclParser<'x> {
    text: &'x str,
    origin: &'x str,
    assumed: Assumed,
    hosts: Vec<(NcclHost<'x>, DeviceTree)>,
    gpus: Vec<NcclGpu<'x>>,
    /// The machine and bus id of every PCI device, and the byte where it stands.
    busids: BTreeMap<(usize, String), usize>,
}

/// Reads a dump; see [`super::import`].
pub(super) fn read(
    text: &str,
    origin: &str,
    options: &ImportOptions,
) -> TopologyResult<(Vec<ImportedBoard>, Vec<String>)> {
    let root = xml::parse(text, origin)?;
    let mut parser = NcclParser {
        text,
        origin,
        assumed: options.assumed,
        hosts: Vec::new(),
        gpus: Vec::new(),
        busids: BTreeMap::new(),
    };
    parser.system(&root)?;
    let boards = parser.boards()?;
    let notes = vec![
        "The format is NCCL's topology XML, which says how devices are wired; bandwidths are nominal, from the speeds"
            .to_owned(),
        "it states and NCCL's own tables (see beside each), every α is assumed. `antiphon profile` measures them."
            .to_owned(),
    ];
    Ok((boards, notes))
}

impl<'x> NcclParser<'x> {
    fn fault(&self, element: &XmlElement, reason: impl Into<String>) -> TextError {
        at_byte(self.text, self.origin, element.at, reason)
    }

    /// A whole number; absent and negative ones are `None`.
    fn number(&self, element: &XmlElement, key: &str) -> Result<Option<u64>, TextError> {
        let Some(text) = element.get(key) else { return Ok(None) };
        match text.trim().parse::<i64>() {
            Ok(number) => Ok(u64::try_from(number).ok()),
            Err(_) => {
                let reason = format!("`{key}` of <{}> is `{}`, not a whole number", element.name, shorten(text));
                Err(self.fault(element, reason))
            }
        }
    }

    /// A whole number within `range`; `None` where it is absent.
    fn bounded(&self, element: &XmlElement, key: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, TextError> {
        let Some(text) = element.get(key) else { return Ok(None) };
        match text.trim().parse::<u64>() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => {
                let (least, most) = range.into_inner();
                let (name, text) = (&element.name, shorten(text));
                Err(self
                    .fault(element, format!("`{key}` of <{name}> is `{text}`, not a number from {least} to {most}")))
            }
        }
    }

    fn system(&mut self, root: &'x XmlElement) -> Result<(), TextError> {
        if root.name != "system" {
            let reason = format!("the document is <{}>; NCCL's topology is <system>", shorten(&root.name));
            return Err(self.fault(root, reason));
        }
        let cpus: Vec<&XmlElement> = root.all("cpu").collect();
        if let [first, ..] = &root.children[..]
            && cpus.is_empty()
        {
            return Err(self.fault(first, "<system> holds a <cpu> for each NUMA domain, and this has none"));
        }
        for cpu in cpus {
            let hash = cpu.get("host_hash");
            let host = match self.hosts.iter().position(|(host, _)| host.hash == hash) {
                Some(host) => host,
                None => {
                    self.hosts.push((NcclHost { hash, ..NcclHost::default() }, DeviceTree::new()));
                    self.hosts.len() - 1
                }
            };
            let (beta, note) = nominal::between_sockets(cpu.get("arch"), cpu.get("vendor"), self.assumed);
            let index = self.number(cpu, "numaid")?.map_or_else(|| "?".to_owned(), |id| id.to_string());
            let (host_state, tree) = &mut self.hosts[host];
            let edge = host_state.board.share_both(&format!("cpu{index}.smp"), beta, &note);
            let place = tree.add(0, Some(edge));
            self.devices(cpu, host, place, place)?;
        }
        if self.gpus.is_empty() {
            return Err(self.fault(root, "there is no <gpu> in it, so there are no ranks"));
        }
        self.number_gpus()
    }

    /// Reads everything below a socket or a bridge at `place`; `socket` is the end of C2C links.
    fn devices(
        &mut self,
        parent: &'x XmlElement,
        host: usize,
        place: TreeNode,
        socket: TreeNode,
    ) -> Result<(), TextError> {
        for child in &parent.children {
            match child.name.as_str() {
                "pci" => {
                    let (beta, note) = self.lanes(child)?;
                    let busid = child.get("busid").unwrap_or("?");
                    self.check_busid(child, host)?;
                    let (state, tree) = &mut self.hosts[host];
                    let edge = state.board.share_both(&format!("pci.{}", shorten(busid)), beta, &note);
                    let below = tree.add(place, Some(edge));
                    if tree.distance(socket, below) > DEEPEST {
                        return Err(self.fault(child, format!("<pci> stands in {DEEPEST} others or more")));
                    }
                    self.devices(child, host, below, socket)?;
                }
                "gpu" => self.gpu(parent, child, host, place, socket)?,
                "nic" => {
                    for net in child.all("net") {
                        self.net(net, host, place)?;
                    }
                }
                "net" => self.net(child, host, place)?,
                _ => {}
            }
        }
        Ok(())
    }

    /// A bus id names one device of a machine.
    fn check_busid(&mut self, pci: &'x XmlElement, host: usize) -> Result<(), TextError> {
        let Some(busid) = pci.get("busid").filter(|busid| !busid.is_empty()) else { return Ok(()) };
        match self.busids.insert((host, busid.to_ascii_lowercase()), pci.at) {
            None => Ok(()),
            Some(other) => {
                let (line, _) = place_of(self.text, other);
                let busid = shorten(busid);
                Err(self.fault(pci, format!("bus id {busid} is another device already, in line {line}")))
            }
        }
    }

    fn lanes(&self, pci: &XmlElement) -> Result<(MicrosPerByte, String), TextError> {
        let text = pci.get("link_speed").unwrap_or_default();
        let width = self.number(pci, "link_width")?.unwrap_or(0);
        Ok(nominal::lanes(text, width, self.assumed))
    }

    fn gpu(
        &mut self,
        parent: &'x XmlElement,
        gpu: &'x XmlElement,
        host: usize,
        place: TreeNode,
        socket: TreeNode,
    ) -> Result<(), TextError> {
        if self.gpus.len() == MOST_GPUS {
            return Err(self.fault(gpu, format!("there are more than {MOST_GPUS} GPUs")));
        }
        let mut place = place;
        let mut direct = 0.0;
        for c2c in gpu.all("c2c") {
            let bandwidth = self.bounded(c2c, "bw", 0..=MOST_C2C)?;
            let count = self.bounded(c2c, "count", 1..=MOST_NVLINKS)?;
            // MB/s for each link.
            direct += bandwidth.unwrap_or(0) as f64 * count.unwrap_or(1) as f64 * 1e-3;
        }
        let mut why = "nominal for C2C to the processor";
        for nvlink in gpu.all("nvlink").filter(|nvlink| leads_to_cpu(nvlink)) {
            direct += self.nvlinks(nvlink)? as f64 * self.nvlink_speed(gpu)?;
            why = "nominal for NVLink to the processor";
        }
        if direct > 0.0 {
            let (beta, note) = speed(None, direct, why);
            let (state, tree) = &mut self.hosts[host];
            let edge = state.board.share_both(&format!("gpu.{}.c2c", self.gpus.len()), beta, &note);
            place = tree.add(socket, Some(edge));
        }
        let busid = parent.get("busid").unwrap_or_default().to_ascii_lowercase();
        self.gpus.push(NcclGpu { element: gpu, busid, place, machine: host });
        Ok(())
    }

    /// How many NVLinks lead to one device.
    fn nvlinks(&self, nvlink: &XmlElement) -> Result<u64, TextError> {
        Ok(self.bounded(nvlink, "count", 1..=MOST_NVLINKS)?.unwrap_or(1))
    }

    fn nvlink_speed(&self, gpu: &XmlElement) -> Result<f64, TextError> {
        if let Some(given) = self.assumed.nvlink {
            return Ok(given.gbps());
        }
        let generation = self.number(gpu, "sm")?.unwrap_or(0);
        Ok(nominal::nvlink(generation))
    }

    fn net(&mut self, net: &XmlElement, host: usize, place: TreeNode) -> Result<(), TextError> {
        let stated = match net.get("speed") {
            // NCCL writes -1 for what it does not know.
            Some("-1" | "0") | None => None,
            Some(_) => self.bounded(net, "speed", 1..=MOST_MEGABITS)?,
        };
        let (speed, note) = match (self.assumed.nic, stated) {
            (Some(_), _) | (None, None) => speed(self.assumed.nic, 12.0, "assumed: the dump states no speed"),
            // Mb/s, eight bits to a byte.
            (None, Some(megabits)) => speed(None, megabits as f64 / 8e3, &format!("nominal for {megabits} Mb/s")),
        };
        let alpha = net.get("latency").and_then(|text| text.trim().parse::<f64>().ok());
        let alpha = alpha.filter(|alpha| (1e-3..1e6).contains(alpha));
        let name = net.get("name").unwrap_or("net").to_owned();
        self.hosts[host].0.nets.push(NcclNet { place, name: shorten(&name), speed, note, alpha });
        Ok(())
    }

    /// Puts the GPUs in the order of their ranks: by NCCL's numbers if it gives them, else in the order of the text.
    fn number_gpus(&mut self) -> Result<(), TextError> {
        let mut order: Vec<(usize, u64, usize)> = Vec::new();
        let mut ranks: BTreeMap<u64, usize> = BTreeMap::new();
        for (index, gpu) in self.gpus.iter().enumerate() {
            let rank = self.number(gpu.element, "rank")?;
            let device = self.number(gpu.element, "dev")?;
            let position = rank.or(device).unwrap_or(index as u64);
            if let Some(rank) = rank {
                if let Some(&other) = ranks.get(&rank) {
                    let (line, _) = place_of(self.text, self.gpus[other].element.at);
                    let reason = format!("rank {rank} is another GPU already, in line {line}");
                    return Err(self.fault(gpu.element, reason));
                }
                ranks.insert(rank, index);
            }
            order.push((gpu.machine, position, index));
        }
        order.sort_unstable();
        let mut sorted: Vec<Option<NcclGpu<'x>>> = std::mem::take(&mut self.gpus).into_iter().map(Some).collect();
        self.gpus = order.into_iter().filter_map(|(_, _, index)| sorted[index].take()).collect();
        Ok(())
    }

    fn boards(mut self) -> Result<Vec<ImportedBoard>, TextError> {
        let mut hosts = std::mem::take(&mut self.hosts);
        let mut boards = Vec::new();
        for (index, (host, tree)) in hosts.iter_mut().enumerate() {
            let gpus: Vec<&NcclGpu<'_>> = self.gpus.iter().filter(|gpu| gpu.machine == index).collect();
            if gpus.is_empty() {
                continue;
            }
            let mut board = std::mem::take(&mut host.board);
            board.ranks = gpus.len();
            self.join_gpus(&mut board, tree, &gpus)?;
            let nics: Vec<_> = host
                .nets
                .iter()
                .enumerate()
                .map(|(index, net)| {
                    let port = board.share_both(&format!("net{index}.{}", net.name), net.speed, &net.note);
                    let (alpha, word) =
                        net.alpha.map_or((NETWORK_ALPHA, "assumed"), |alpha| (Micros(alpha), "as stated"));
                    (net.place, port, alpha, format!("through {}, {}; α {word}", net.name, show_bandwidth(net.speed)))
                })
                .collect();
            let places: Vec<TreeNode> = gpus.iter().map(|gpu| gpu.place).collect();
            board.outlets = outlets(tree, &places, &nics);
            boards.push(board);
        }
        Ok(boards)
    }

    /// NVLinks, then PCIe between GPUs that have none to each other.
    fn join_gpus(&self, board: &mut ImportedBoard, tree: &DeviceTree, gpus: &[&NcclGpu<'_>]) -> Result<(), TextError> {
        let mut ports: Vec<Option<[SharedIndex; 2]>> = Vec::new();
        let mut cables: BTreeMap<(usize, usize), u64> = BTreeMap::new();
        let mut speeds = Vec::new();
        for (rank, gpu) in gpus.iter().enumerate() {
            let each = self.nvlink_speed(gpu.element)?;
            let mut to_switch = 0u64;
            for nvlink in gpu.element.all("nvlink").filter(|nvlink| !leads_to_cpu(nvlink)) {
                let count = self.nvlinks(nvlink)?;
                let target = nvlink.get("target").unwrap_or_default().to_ascii_lowercase();
                match gpus.iter().position(|other| other.busid == target && !target.is_empty()) {
                    Some(peer) if peer == rank => {
                        return Err(self.fault(nvlink, "an NVLink leads from a GPU to itself"));
                    }
                    Some(peer) => *cables.entry((rank, peer)).or_default() += count,
                    // Neither a GPU nor a processor: a switch.
                    None => to_switch += count,
                }
            }
            speeds.push(each);
            let (beta, note) = speed(None, each * to_switch.max(1) as f64, &format!("nominal for {to_switch} NVLinks"));
            ports.push((to_switch > 0).then(|| board.share_both(&format!("gpu{rank}.nvlink"), beta, &note)));
        }
        for from in 0..gpus.len() {
            for to in (0..gpus.len()).filter(|&to| to != from) {
                let count = cables.get(&(from, to)).copied().unwrap_or(0);
                if count > 0 {
                    let (beta, note) =
                        speed(None, speeds[from] * count as f64, &format!("nominal for {count} NVLinks; α assumed"));
                    board.wires.push(DirectLink { from, to, alpha: NVLINK_ALPHA, beta, shared: Vec::new(), note });
                }
                if let (Some([tx, _]), Some([_, rx])) = (ports[from], ports[to]) {
                    let note = "through an NVSwitch, nominal; α assumed".to_owned();
                    let shared = vec![tx, rx];
                    board.wires.push(DirectLink {
                        from,
                        to,
                        alpha: NVLINK_ALPHA,
                        beta: MicrosPerByte::ZERO,
                        shared,
                        note,
                    });
                } else if count == 0 {
                    let shared = tree.path(gpus[from].place, gpus[to].place);
                    let note = "PCIe, nominal; α assumed".to_owned();
                    let beta = MicrosPerByte::ZERO;
                    board.wires.push(DirectLink { from, to, alpha: PCIE_ALPHA, beta, shared, note });
                }
            }
        }
        Ok(())
    }
}

/// Class 0604 is a bridge: the processor of a POWER machine.
fn leads_to_cpu(nvlink: &XmlElement) -> bool {
    nvlink.get("tclass").is_some_and(|class| class.starts_with("0x0604"))
}

fn place_of(text: &str, byte: usize) -> (usize, usize) {
    let error = at_byte(text, "", byte, "");
    (error.line, error.column)
}
