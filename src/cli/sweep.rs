//! What `antiphon sweep` takes.

use super::values::{ChunkCount, collective};
use super::{SearchArgs, SizeList};
use clap::Args;
use schedule::Collective;
use std::path::PathBuf;

/// `antiphon sweep`: every combination of topologies, collectives, sketches, chunk counts and sizes is a cell.
#[derive(Args, Debug)]
pub(crate) struct SweepArgs {
    /// Machines: SPECs or paths, separated by commas; a piece such as `alpha=1us` belongs to the SPEC before it.
    #[arg(long, value_name = "SPECS", required = true)]
    pub topology: Vec<SpecList>,
    /// Operations, separated by commas.
    #[arg(long, value_delimiter = ',', required = true, value_parser = collective())]
    pub collective: Vec<Collective>,
    /// Sizes, such as 1KB,64KB,1MB or 1KB..1GB (each twice the one before) or 1KB..1GB:4 (four times).
    #[arg(long, value_name = "A..B[:F]|LIST")]
    pub sizes: SizeList,
    /// Sketches, separated by commas (default: none); the word `none` stands for cells without a sketch.
    #[arg(long, value_delimiter = ',', value_name = "F,G")]
    pub sketch: Vec<PathBuf>,
    /// Chunks per rank, separated by commas; `auto` searches.
    #[arg(long, value_delimiter = ',', default_value = "auto", value_name = "N,M|auto")]
    pub chunks: Vec<ChunkCount>,
    /// How hard to look in every cell.
    #[command(flatten, next_help_heading = "How hard to look")]
    pub search: SearchArgs,
    /// Worker processes (default: the number of cores divided by the threads of a worker; a worker has 1 thread by
    /// default). A worker that is busy with a cell for twice the time limit and a minute, or without a limit for an
    /// hour, is ended. Under mpirun every process but the first has one worker.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub jobs: Option<u16>,
    /// The folder for all results. A folder with an interrupted sweep of the same cells is continued.
    #[arg(short, long, value_name = "DIR")]
    pub output: PathBuf,
}

/// `antiphon sweep-worker`
#[derive(Args, Debug)]
pub(crate) struct SweepWorkerArgs {
    /// How hard to look.
    #[command(flatten, next_help_heading = "How hard to look")]
    pub search: SearchArgs,
}

/// SPECs between commas.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SpecList(pub Vec<String>);

impl std::str::FromStr for SpecList {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let mut specs: Vec<String> = Vec::new();
        for piece in text.split(',') {
            // `key=value` has no parameters before it and is no path.
            let is_option = piece.split_once('=').is_some_and(|(key, _)| !key.contains([':', '/']));
            match specs.last_mut() {
                Some(spec) if is_option => *spec = format!("{spec},{piece}"),
                _ => specs.push(piece.to_owned()),
            }
        }
        if specs.iter().any(String::is_empty) {
            Err("a SPEC is missing between commas".to_owned())
        } else {
            Ok(Self(specs))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_belong_to_the_spec_before_them() {
        let specs = |text: &str| text.parse::<SpecList>().map(|list| list.0.join(" | "));
        assert_eq!(specs("dgx1,ndv2x2"), Ok("dgx1 | ndv2x2".to_owned()));
        assert_eq!(
            specs("ring:4,alpha=1us,bandwidth=1GBps,torus2d:2x2,./a=b.yaml"),
            Ok("ring:4,alpha=1us,bandwidth=1GBps | torus2d:2x2 | ./a=b.yaml".to_owned())
        );
        assert!(specs("dgx1,,ndv2").is_err());
    }
}
