//! The topology JSON of TACCL.
//!
//! The principal function is [`read`]. Three facts are not in the file. (1) Its numbers are multiples of the cost of
//! one chunk, and only the file's name tells the size of this chunk (`…_1MB`). (2) All times may be scaled, because
//! TACCL rounds them down to whole numbers. (3) The kind of machine is on TACCL's command line. A `custom` file lists
//! its links as matrices (indexed `[receiver][sender]`); the links of the other kinds come from our own SPECs.

use super::ImportOptions;
use super::board::{DirectLink, ImportedBoard, Outlet};
use crate::document::PathSegment::{Index, Key};
use crate::document::{Document, TextError};
use crate::quantity::parse_bytes;
use crate::spec::{bad_part, unknown_word};
use crate::{MAX_RANKS, Micros, MicrosPerByte, Topology, TopologyResult, resolve};
use serde::Deserialize;

/// The kinds of topology whose links are not in the file, and the SPEC of one such machine. The number of ranks is
/// added after a `:` at its end.
const KINDS: [(&str, &str); 3] = [("DGX2", "dgx2x1"), ("NDv2", "ndv2x1"), ("HubAndSpoke", "clique:")];

/// The kind whose file lists its links.
const CUSTOM: &str = "custom";

/// No machine has more parallel links between two ranks.
const MOST_PARALLEL: u32 = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TacclFile {
    name: String,
    gpus_per_node: u32,
    alpha: f64,
    #[serde(default)]
    nics_per_node: Option<i64>,
    #[serde(default)]
    node_betas_list: Option<Vec<f64>>,
    #[serde(default)]
    remote_alpha: Option<f64>,
    #[serde(default)]
    remote_beta: Option<f64>,
    #[serde(default)]
    links: Option<Vec<Vec<u32>>>,
    #[serde(default)]
    betas: Option<Vec<Vec<f64>>>,
    // α + β rounded down to a whole number; α and β themselves are more exact.
    #[serde(default, rename = "node_invbws_list")]
    _node_invbws_list: Option<Vec<f64>>,
    #[serde(default, rename = "invbws")]
    _invbws: Option<Vec<Vec<f64>>>,
    #[serde(default, rename = "remote_invbw", alias = "remote_invbws")]
    _remote_invbw: Option<f64>,
}

/// Turns numbers of the file into µs and µs per byte.
struct TacclUnits {
    scale: f64,
    chunk: f64,
}

impl TacclUnits {
    fn alpha(&self, value: f64) -> Micros {
        Micros(value / self.scale)
    }

    fn beta(&self, value: f64) -> MicrosPerByte {
        MicrosPerByte(value / self.scale / self.chunk)
    }
}

/// Reads a topology file; see [`super::import`].
pub(super) fn read(
    text: &str,
    origin: &str,
    options: &ImportOptions,
) -> TopologyResult<(Vec<ImportedBoard>, Vec<String>)> {
    let document = Document::json(origin, text);
    let file: TacclFile = document.parse()?;
    check(&document, &file)?;
    let mut notes = vec!["The format is TACCL's topology JSON.".to_owned()];
    let units = units(&document, &file, options, &mut notes)?;
    let kind = kind(&document, &file, options, &mut notes)?;
    let mut board = match &kind {
        None => custom(&document, &file, &units)?,
        Some(spec) => shaped(&document, &file, &units, &resolve(spec)?)?,
    };
    join_nics(&document, &file, &units, &mut board)?;
    Ok((vec![board], notes))
}

fn check(document: &Document<'_>, file: &TacclFile) -> Result<(), TextError> {
    if file.gpus_per_node == 0 || file.gpus_per_node as usize > MAX_RANKS {
        return Err(document.fault(&[Key("gpus_per_node")], format!("a machine has 1 to {MAX_RANKS} GPUs")));
    }
    for (key, value) in
        [("alpha", Some(file.alpha)), ("remote_alpha", file.remote_alpha), ("remote_beta", file.remote_beta)]
    {
        // -1 stands for "nothing" where there are no NICs.
        let absent = key != "alpha" && !has_nics(file);
        if value.is_some_and(|value| !absent && !(0.0..=1e12).contains(&value)) {
            return Err(document.fault(&[Key(key)], "a cost must be a number from 0 to 10¹²"));
        }
    }
    Ok(())
}

fn has_nics(file: &TacclFile) -> bool {
    file.nics_per_node.is_some_and(|count| count > 0)
}

/// The last part of a name that is a size: `NDv2_32KB`, `topo-dgx2-1MB.json`.
fn size_in(name: &str) -> Option<u64> {
    let name = name.strip_suffix(".json").unwrap_or(name);
    let last = name.rsplit(['_', '-', '/']).next()?;
    let has_unit = last.ends_with('B');
    parse_bytes(last).ok().filter(|&bytes| has_unit && bytes > 0)
}

fn units(
    document: &Document<'_>,
    file: &TacclFile,
    options: &ImportOptions,
    notes: &mut Vec<String>,
) -> Result<TacclUnits, TextError> {
    let chunk = match options.chunk_bytes.filter(|&bytes| bytes > 0) {
        Some(bytes) => bytes,
        None => {
            let named = size_in(&file.name).or_else(|| size_in(document.origin));
            let Some(bytes) = named else {
                let reason = "β is multiplied by the size of a chunk, and neither this name nor that of the file ends \
                              in a size (`…_1MB`); say it with --chunk-bytes";
                return Err(document.fault(&[Key("name")], reason));
            };
            notes
                .push(format!("β is for a chunk of {bytes} bytes, as the name says (--chunk-bytes if that is wrong)."));
            bytes
        }
    };
    let scale = match options.scale.filter(|scale| scale.is_finite() && *scale > 0.0) {
        Some(scale) => scale,
        None => {
            // The α between machines is assumed to be between one and ten microseconds.
            let remote = file.remote_alpha.filter(|alpha| has_nics(file) && *alpha >= 10.0);
            let scale = remote.map_or(1.0, |alpha| 10f64.powi(alpha.log10().floor() as i32));
            if scale > 1.0 {
                notes.push(format!(
                    "Times are taken for {scale} units to the microsecond, because the remote α would else be {} µs (--scale if that is wrong).",
                    file.remote_alpha.unwrap_or(0.0)
                ));
            }
            scale
        }
    };
    Ok(TacclUnits { scale, chunk: chunk as f64 })
}

/// The SPEC with the links of this kind; `None` if the file lists its links itself.
fn kind(
    document: &Document<'_>,
    file: &TacclFile,
    options: &ImportOptions,
    notes: &mut Vec<String>,
) -> TopologyResult<Option<String>> {
    let complete = |spec: &str| match spec.ends_with(':') {
        true => format!("{spec}{}", file.gpus_per_node),
        false => spec.to_owned(),
    };
    if let Some(wanted) = &options.kind {
        if wanted.eq_ignore_ascii_case(CUSTOM) {
            return Ok(None);
        }
        let known = KINDS.iter().find(|(name, _)| wanted.eq_ignore_ascii_case(name));
        let Some((_, spec)) = known else {
            let names = KINDS.iter().map(|(name, _)| *name).chain([CUSTOM]);
            return Err(unknown_word("kind", wanted, names));
        };
        return Ok(Some(complete(spec)));
    }
    if file.links.is_some() {
        return Ok(None);
    }
    let named =
        |(name, _): &&(&str, &str)| file.name.get(..name.len()).is_some_and(|start| start.eq_ignore_ascii_case(name));
    match KINDS.iter().find(named) {
        Some((name, spec)) => {
            notes.push(format!("The links are those of TACCL's {name}, as the name says (--kind if that is wrong)."));
            Ok(Some(complete(spec)))
        }
        None => {
            let names: Vec<&str> = KINDS.iter().map(|(name, _)| *name).collect();
            let reason = format!(
                "there are no `links`, and the name begins with none of {}; say which it is with --kind",
                names.join(", ")
            );
            Err(document.fault(&[Key("name")], reason).into())
        }
    }
}

/// A machine of a known shape: its links have as many different speeds as the file lists, the fastest first.
fn shaped(
    document: &Document<'_>,
    file: &TacclFile,
    units: &TacclUnits,
    shape: &Topology,
) -> TopologyResult<ImportedBoard> {
    if file.gpus_per_node as usize != shape.rank_count() {
        let reason = format!("this kind of machine has {} GPUs, not {}", shape.rank_count(), file.gpus_per_node);
        return Err(document.fault(&[Key("gpus_per_node")], reason).into());
    }
    let mut speeds: Vec<f64> = shape.links().iter().map(|link| link.beta.0).collect();
    speeds.sort_unstable_by(f64::total_cmp);
    speeds.dedup();
    let Some(betas) = &file.node_betas_list else {
        return Err(document
            .fault(&[Key("name")], "`node_betas_list` is missing; this kind of machine needs it")
            .into());
    };
    if betas.len() != speeds.len() {
        let reason =
            format!("this kind of machine has links of {} speed(s), but {} are listed", speeds.len(), betas.len());
        return Err(document.fault(&[Key("node_betas_list")], reason).into());
    }
    if let Some(bad) = betas.iter().position(|beta| !(0.0..=1e12).contains(beta)) {
        let reason = "a cost must be a number from 0 to 10¹²";
        return Err(document.fault(&[Key("node_betas_list"), Index(bad)], reason).into());
    }
    let beta = |old: MicrosPerByte| {
        let class = speeds.iter().position(|speed| *speed == old.0);
        units.beta(class.map_or(betas[0], |class| betas[class]))
    };
    let mut board = ImportedBoard { ranks: shape.rank_count(), ..ImportedBoard::default() };
    for resource in shape.resources() {
        let name = resource.name.rsplit_once("machine0.").map_or(resource.name.as_str(), |(_, name)| name);
        board.share(name.to_owned(), beta(resource.beta), "as the file says");
    }
    for link in shape.links() {
        board.wires.push(DirectLink {
            from: link.from.index(),
            to: link.to.index(),
            alpha: units.alpha(file.alpha),
            beta: beta(link.beta),
            shared: link.resources.iter().map(|id| id.index()).collect(),
            note: "as the file says".to_owned(),
        });
    }
    Ok(board)
}

/// A machine whose file lists its links: `links[receiver][sender]` parallel links, each with `betas[receiver][sender]`.
fn custom(document: &Document<'_>, file: &TacclFile, units: &TacclUnits) -> TopologyResult<ImportedBoard> {
    let ranks = file.gpus_per_node as usize;
    let missing = |key: &str| document.fault(&[Key("name")], format!("`{key}` is missing; a custom topology needs it"));
    let links = file.links.as_ref().ok_or_else(|| missing("links"))?;
    let betas = file.betas.as_ref().ok_or_else(|| missing("betas"))?;
    check_square(document, "links", links, ranks)?;
    check_square(document, "betas", betas, ranks)?;
    let mut board = ImportedBoard { ranks, ..ImportedBoard::default() };
    for (to, row) in links.iter().enumerate() {
        for (from, &count) in row.iter().enumerate().filter(|(_, count)| **count > 0) {
            let at = |key: &'static str, reason: &str| {
                Err(document.fault(&[Key(key), Index(to), Index(from)], reason).into())
            };
            if from == to {
                return at("links", "a GPU needs no link to itself");
            }
            if count > MOST_PARALLEL {
                return at("links", "so many parallel links are not accepted");
            }
            let beta = betas[to][from];
            if !(0.0..=1e12).contains(&beta) {
                return at("betas", "a cost must be a number from 0 to 10¹²");
            }
            for _ in 0..count {
                board.wires.push(DirectLink {
                    from,
                    to,
                    alpha: units.alpha(file.alpha),
                    beta: units.beta(beta),
                    shared: Vec::new(),
                    note: "as the file says".to_owned(),
                });
            }
        }
    }
    Ok(board)
}

fn check_square<T>(document: &Document<'_>, key: &str, rows: &[Vec<T>], ranks: usize) -> Result<(), TextError> {
    if rows.len() != ranks {
        return Err(document.fault(&[Key(key)], format!("{} rows for {ranks} GPUs", rows.len())));
    }
    match rows.iter().position(|row| row.len() != ranks) {
        Some(row) => {
            Err(document.fault(&[Key(key), Index(row)], format!("{} columns for {ranks} GPUs", rows[row].len())))
        }
        None => Ok(()),
    }
}

/// NICs are given to the GPUs in order. TACCL splits the bandwidth of a NIC in advance; here it is a shared resource.
fn join_nics(
    document: &Document<'_>,
    file: &TacclFile,
    units: &TacclUnits,
    board: &mut ImportedBoard,
) -> TopologyResult<()> {
    let Some(nics) = file.nics_per_node.and_then(|count| usize::try_from(count).ok()).filter(|count| *count > 0) else {
        return Ok(());
    };
    if nics > board.ranks {
        let reason = format!("{nics} NICs for {} GPUs; at most one for each is known here", board.ranks);
        return Err(document.fault(&[Key("nics_per_node")], reason).into());
    }
    let (Some(alpha), Some(beta)) = (file.remote_alpha, file.remote_beta) else {
        return Err(bad_part("`nics_per_node`".to_owned(), "it needs `remote_alpha` and `remote_beta`"));
    };
    let beta = units.beta(beta);
    let ports: Vec<_> = (0..nics).map(|nic| board.share_both(&format!("nic{nic}"), beta, "as the file says")).collect();
    let outlet = |rank: usize| {
        let [tx, rx] = ports[rank * nics / board.ranks];
        Some(Outlet { alpha: units.alpha(alpha), out: vec![tx], back: vec![rx], note: "as the file says".to_owned() })
    };
    board.outlets = (0..board.ranks).map(outlet).collect();
    Ok(())
}
