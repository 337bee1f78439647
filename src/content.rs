//! The data to be moved where it does not follow from the collective: the byte matrix of an alltoallv, the chunks of a
//! custom collective, the collectives of several groups at once.
//!
//! The principal type is [`Content`], read from the files of `--matrix` and `--demand`. [`differences`] compares it
//! with the chunks that a schedule lists.

use crate::cli::Split;
use crate::failure::{Failure, Outcome, read_text};
use schedule::{Chunk, Collective, Demand, DemandError, Findings, GroupRequest, ReduceOp, Request, Violation};
use std::path::Path;
use std::sync::Arc;
use synth::matrix::DemandLines;
use synth::sketch::Sketch;
use synth::{Constraints, JointTask};
use topology::{Rank, Topology};

/// The content of a request.
pub(crate) enum Content {
    /// Nothing: the chunks follow from the collective.
    Standard,
    /// The bytes of every pair (alltoallv).
    Matrix(Vec<Vec<u64>>),
    /// The chunks (custom).
    Listed(Vec<Chunk>),
    /// Collectives at the same time, each in its group. Their numbers of ranks and chunks are those of the request.
    Groups(Vec<GroupRequest>),
}

impl Content {
    /// Reads the files that a request names.
    pub(crate) fn read(matrix: Option<&Path>, demand: Option<&Path>) -> Outcome<Self> {
        Ok(match (matrix, demand) {
            (Some(path), _) => {
                let matrix = synth::matrix::parse(&read_text(path)?, &path.display().to_string());
                Self::Matrix(matrix.map_err(Failure::bad_input)?)
            }
            (None, Some(path)) => {
                let lines = synth::matrix::parse_demand(&read_text(path)?, &path.display().to_string());
                match lines.map_err(Failure::bad_input)? {
                    DemandLines::Chunks(chunks) => Self::Listed(chunks),
                    DemandLines::Groups(groups) => Self::Groups(groups),
                }
            }
            (None, None) => Self::Standard,
        })
    }

    /// The size of the request; `given` is the user's size. If chunks have their own sizes, it follows from them.
    pub(crate) fn size(&self, given: Option<u64>) -> Outcome<u64> {
        let follows = match self {
            Self::Standard => false,
            Self::Matrix(_) | Self::Groups(_) => true,
            Self::Listed(chunks) => chunks.iter().all(|chunk| chunk.bytes.is_some()),
        };
        let needed = || Failure::bad_input(anyhow::anyhow!("--size is needed: it does not follow from the chunks"));
        if follows { Ok(given.unwrap_or(0)) } else { given.ok_or_else(needed) }
    }

    /// The demand of a request with this content.
    pub(crate) fn demand(&self, request: Request) -> Result<Demand, DemandError> {
        match self {
            Self::Standard => Demand::new(request),
            Self::Matrix(matrix) => Demand::from_matrix(request, matrix),
            Self::Listed(chunks) => {
                // The default reduction of combining chunks is the sum.
                let sum = chunks.iter().any(|chunk| chunk.combine).then_some(ReduceOp::Sum);
                Demand::listed(Request { op: request.op.or(sum), ..request }, chunks.clone())
            }
            Self::Groups(_) => Demand::joint(&self.requests(&request)),
        }
    }
}

impl Content {
    /// The collective of `request` in each of these groups at the same time.
    pub(crate) fn in_groups(groups: &Split, request: &Request) -> Outcome<Self> {
        let of_group = |group: Vec<Rank>| {
            let root = request.root.and(group.first().copied());
            let request = Request { members: group.into_iter().collect(), root, ..request.clone() };
            Demand::new(request.clone()).map(|_| GroupRequest::from(request))
        };
        let groups = groups.groups(request.ranks).into_iter().map(of_group).collect::<Result<_, _>>();
        groups.map(Self::Groups).map_err(Failure::bad_input)
    }

    /// The collectives of the groups, on the ranks of `request` and cut into as many chunks; none without groups.
    fn requests(&self, request: &Request) -> Vec<GroupRequest> {
        let Self::Groups(groups) = self else { return Vec::new() };
        let (ranks, chunks_per_rank) = (request.ranks, request.chunks_per_rank);
        let on_ranks = |group: &GroupRequest| {
            let op = group.request.op.map(|op| request.op.unwrap_or(op));
            GroupRequest { request: Request { ranks, chunks_per_rank, op, ..group.request.clone() }, ..*group }
        };
        groups.iter().map(on_ranks).collect()
    }

    /// The collectives of the groups as a task, if there are groups.
    pub(crate) fn joint(
        &self,
        topology: &Arc<Topology>,
        request: &Request,
        sketch: Option<&Sketch>,
        pinned: Option<u32>,
    ) -> Option<JointTask> {
        let groups = self.requests(request);
        let constraints = sketch.map_or_else(Constraints::none, |sketch| sketch.constraints.clone());
        let chunks = pinned.or_else(|| sketch?.pins.chunks_per_rank);
        let task = JointTask { topology: topology.clone(), constraints: Arc::new(constraints), groups, chunks };
        (!task.groups.is_empty()).then_some(task)
    }
}

/// The differences between a schedule's demand and the user's matrix or demand file; `None` if the user gives none.
pub(crate) fn differences(
    claimed: &Demand,
    matrix: Option<&Path>,
    demand: Option<&Path>,
) -> Outcome<Option<Findings<Violation>>> {
    let collective = claimed.request().collective;
    check_flags(collective, matrix.is_some(), demand.is_some(), false)?;
    let content = Content::read(matrix, demand)?;
    if matches!(content, Content::Standard) {
        return Ok(None);
    }
    let asked = content.demand(claimed.request().clone())?;
    Ok(Some(schedule::check_asked(claimed, &asked)))
}

/// Checks that `--matrix` and `--demand` are used only with their collectives.
pub(crate) fn check_flags(collective: Collective, matrix: bool, demand: bool, needed: bool) -> Outcome {
    let flags = [(Collective::AllToAllV, matrix, "--matrix"), (Collective::Custom, demand, "--demand")];
    for (of, given, flag) in flags {
        if given && collective != of {
            return Err(Failure::bad_input(anyhow::anyhow!("{flag} is for {of} only, and this is {collective}")));
        }
        if needed && !given && collective == of {
            return Err(Failure::bad_input(anyhow::anyhow!("{of} needs {flag}")));
        }
    }
    Ok(())
}
