//! Descriptions that other programs wrote: `nvidia-smi topo -m`, NCCL's topology XML, TACCL's topology JSON, and the
//! device tree that Linux shows in `/sys`.
//!
//! The principal functions are [`import`] and [`import_sys`]. One module reads each format into [`ImportedBoard`]s: a
//! machine with its links, their resources and its way out. Boards are then joined and printed. Most of these texts say
//! how a machine is wired and not how fast it is. Every number therefore has a note with its source. A user who needs
//! exact numbers should measure them (`antiphon profile`).

mod board;
mod nccl;
mod nominal;
mod nvidia_smi;
mod sys;
mod taccl;
#[cfg(test)]
mod tests;
mod xml;

use crate::document::TextError;
use crate::measured::{self, Beside};
use crate::quantity::{parse_bandwidth, show_bandwidth};
use crate::spec::{bad_part, unknown_word};
use crate::spelling::{shorten, shorten_message};
use crate::{MicrosPerByte, Topology, TopologyError, TopologyResult};
use std::path::Path;
use std::str::FromStr;

/// The longest text that is imported: the dump of a rack has a few hundred kilobytes.
const MAX_BYTES: usize = 16 << 20;

/// Facts that the text does not contain and that the user may give.
#[derive(Clone, PartialEq, Debug)]
pub struct ImportOptions {
    /// How many such machines are joined through their NICs.
    pub machines: u64,
    /// For TACCL: the size in bytes of the chunk whose β values the file has; if absent, the file's name tells it
    /// (`…_1MB`).
    pub chunk_bytes: Option<u64>,
    /// For TACCL: how many units of the file are a microsecond; if absent, it is guessed from the remote α.
    pub scale: Option<f64>,
    /// For TACCL: the kind of topology, which is on its command line and not in its file; if absent, the name tells it.
    pub kind: Option<String>,
    /// Bandwidths of parts that the text names without a number.
    pub assumed: Assumed,
}

impl Default for ImportOptions {
    fn default() -> Self {
        Self { machines: 1, chunk_bytes: None, scale: None, kind: None, assumed: Assumed::default() }
    }
}

/// Bandwidths (each direction) for parts that a text names without their speed. An absent one has a usual value.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Assumed {
    nvlink: Option<MicrosPerByte>,
    pcie: Option<MicrosPerByte>,
    smp: Option<MicrosPerByte>,
    nic: Option<MicrosPerByte>,
}

impl FromStr for Assumed {
    type Err = TopologyError;

    /// `nvlink=25GBps,pcie=24GBps,smp=10GBps,nic=25GBps`, any of them.
    fn from_str(text: &str) -> TopologyResult<Self> {
        let mut assumed = Self::default();
        for part in text.split(',') {
            let Some((key, value)) = part.split_once('=') else {
                return Err(bad_part(format!("`{}`", shorten(part)), "expected `key=bandwidth`, such as `nic=25GBps`"));
            };
            let slot = match key {
                "nvlink" => &mut assumed.nvlink,
                "pcie" => &mut assumed.pcie,
                "smp" => &mut assumed.smp,
                "nic" => &mut assumed.nic,
                _ => return Err(unknown_word("thing to assume", key, ["nvlink", "pcie", "smp", "nic"].into_iter())),
            };
            *slot = Some(parse_bandwidth(value).map_err(|error| bad_part(format!("`{}`", shorten(part)), error))?);
        }
        Ok(assumed)
    }
}

/// A bandwidth and its source.
fn speed(given: Option<MicrosPerByte>, usual: f64, why: &str) -> (MicrosPerByte, String) {
    match given {
        Some(beta) => (beta, format!("{}, as given", show_bandwidth(beta))),
        None => {
            let beta = MicrosPerByte::from_gbps(usual);
            (beta, format!("{}, {why}", show_bandwidth(beta)))
        }
    }
}

/// A topology that another program described.
#[derive(Clone, PartialEq, Debug)]
pub struct Imported {
    /// The machine.
    pub topology: Topology,
    /// What it was read from, and what a reader should know about the numbers.
    pub notes: Vec<String>,
    links: Vec<String>,
    resources: Vec<String>,
}

impl Imported {
    /// Prints the topology as YAML that [`crate::load`] reads, the notes in front and the source of each number beside it.
    pub fn to_yaml(&self) -> String {
        let about = self.notes.join("\n");
        let beside = Beside { links: self.links.clone(), resources: self.resources.clone(), ..Beside::default() };
        measured::print(&self.topology, &about, &beside)
    }
}

/// Reads a foreign description; the text itself shows its format. `origin` is the name of the text in messages.
///
/// # Errors
/// [`TopologyError::InText`] with `origin:line:column`; others if `options` do not fit the text.
pub fn import(text: &str, origin: &str, options: &ImportOptions) -> TopologyResult<Imported> {
    let fault = |reason: &str| {
        TopologyError::InText(TextError { origin: origin.to_owned(), line: 1, column: 1, reason: reason.to_owned() })
    };
    if text.len() > MAX_BYTES {
        return Err(fault(&format!("{} bytes are more than the {MAX_BYTES} that are imported", text.len())));
    }
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let (boards, mut notes) = match text.trim_start().chars().next() {
        Some('<') => nccl::read(text, origin, options)?,
        Some('{') => taccl::read(text, origin, options)?,
        Some(_) => nvidia_smi::read(text, origin, options)?,
        None => return Err(fault("the text is empty; expected `nvidia-smi topo -m`, NCCL XML or TACCL JSON")),
    };
    if boards.len() > 1 && options.machines > 1 {
        let reason = format!("{origin} describes {} machines already", boards.len());
        return Err(bad_part(format!("`machines={}`", options.machines), reason));
    }
    notes.insert(0, format!("Imported from {origin} by `antiphon topology import`."));
    board::join(&boards, options.machines, origin, notes)
}

/// Reads `/sys`, or a copy of it, of a machine with or without GPUs.
///
/// # Errors
/// [`TopologyError::Unreadable`] if the folder cannot be listed; [`TopologyError::BadPart`] if it holds no PCI devices,
/// or more than any machine has; others if `options` do not fit.
pub fn import_sys(root: &Path, options: &ImportOptions) -> TopologyResult<Imported> {
    let (boards, mut notes) = sys::read(root, options)?;
    let origin = shorten(&root.to_string_lossy());
    notes.insert(0, format!("Imported from {origin} by `antiphon topology import`."));
    board::join(&boards, options.machines, &origin, notes)
}

/// What is wrong at a byte of a text, with its line and column.
fn at_byte(text: &str, origin: &str, byte: usize, reason: impl Into<String>) -> TextError {
    let before = &text.as_bytes()[..byte.min(text.len())];
    let start = before.iter().rposition(|&byte| byte == b'\n').map_or(0, |newline| newline + 1);
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    let column = String::from_utf8_lossy(&before[start..]).chars().count() + 1;
    TextError { origin: origin.to_owned(), line, column, reason: shorten_message(&reason.into()) }
}
