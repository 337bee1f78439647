//! The examples below the help of each command and on its man page. A test parses each line.

pub(super) const DEMO: &str = "\
Examples:
  antiphon demo
  antiphon demo --emulate dgx1 -o dgx1-out";

pub(super) const TOPOLOGY: &str = "\
Examples:
  antiphon topology list
  antiphon topology show ring:8,bandwidth=200Gbps
  antiphon topology show ndv2x2 --heat-map
  antiphon topology check here.yaml
  antiphon topology import topo.txt --machines 2 -o here.yaml";

pub(super) const PROFILE: &str = "\
Examples:
  antiphon profile --ranks 8 -o here.yaml
  antiphon profile --ranks 16 --emulate ndv2x2 --slowdown 1000 -o measured.yaml";

pub(super) const SKETCH: &str = "\
Examples:
  antiphon sketch check sketches/sk1-ndv2-n2.yaml --topology ndv2x2
  antiphon sketch import taccl.json --topology ndv2x2 -o sketch.yaml";

pub(super) const BOUND: &str = "\
Examples:
  antiphon bound --topology ndv2x2 --collective allgather --size 1GB
  antiphon bound --topology dgx1 --collective allreduce --size 64M --chunks 8 --json";

pub(super) const SYNTH: &str = "\
Examples:
  antiphon synth --topology ndv2x2 --collective allgather --size 1GB -o plan.json
  antiphon synth --topology here.yaml --collective allreduce --size 64M --time-limit 5m --gap 2% -o plan.json
  antiphon synth --topology dgx1 --collective broadcast --size 1MB --members 0-3,6 --root 6 -o plan.json
  antiphon synth --topology ndv2x2 --collective allgather --sizes 1KB..1GB:4 -o plans/
  antiphon synth --topology dgx1 --collective allgather --size 64MB --groups 0,2,4,6/1,3,5,7 -o plan.json";

pub(super) const VERIFY: &str = "\
Examples:
  antiphon verify plan.json
  antiphon verify plan.json --sketch sketch.yaml
  antiphon verify plan.json --program
  antiphon verify theirs.xml --topology dgx1";

pub(super) const SIMULATE: &str = "\
Examples:
  antiphon simulate plan.json --html timeline.html
  antiphon simulate theirs.xml --topology dgx-a100 --size 64M";

pub(super) const EXPLAIN: &str = "\
Examples:
  antiphon explain plan.json
  antiphon explain plan.json --analyze --corrected corrected.yaml";

pub(super) const EXPORT: &str = "\
Examples:
  antiphon export plan.json --format msccl-xml -o plan.xml
  antiphon export plan.json --format mscclpp-json --instances 2 -o plan.mscclpp.json
  antiphon export rings.json --format nccl-graph --path nvl -o graph.xml";

pub(super) const RUN: &str = "\
Examples:
  antiphon run plan.json
  antiphon run --collective allreduce --size 1KB..1GB:4 --ranks 8
  antiphon run plan.json --emulate ndv2x2 --slowdown 1000
  antiphon run --collective allreduce --size 1MB --ranks 8 --split 0-3/4-7
  antiphon run plan.json --rank 1 --world-size 4 --master node0:29500
  antiphon run --collective alltoall --size 64M --ranks 4 --csv
  antiphon run --loop --collective allreduce --size 8..64MB:8 --ranks 4 --buffers ours";

pub(super) const SWEEP: &str = "\
Examples:
  antiphon sweep --topology dgx1,ndv2x2 --collective allgather,allreduce --sizes 1KB..1GB:4 -o sweep-out/";

pub(super) const MAN: &str = "\
Examples:
  antiphon man run
  antiphon man topology show
  antiphon man --all -o /usr/local/share/man/man1";

pub(super) const TUNE: &str = "\
Examples:
  antiphon tune --ranks 4 -o table.json
  antiphon tune --ranks 8 --collective allreduce --sizes 1KB..64MB:4 --plans plans/ --budget 2m -o table.json
  antiphon tune --ranks 4 --topology here.yaml -o table.json
  antiphon tune --ranks 4 --candidate mine=plan.json -o table.json
  antiphon tune --ranks 4 -o table.json -- python my_candidates.py
  antiphon tune --rank 0 --world-size 4 --master node0:29500 -o table.json
  antiphon tune show table.json
  antiphon tune export table.json --format nccl-csv -o rules.csv";

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use clap::{CommandFactory, Parser};

    #[test]
    fn every_example_is_a_command_line() {
        let mut count = 0;
        for command in Cli::command().get_subcommands().filter(|it| !it.is_hide_set()) {
            let Some(examples) = command.get_after_help() else { continue };
            for line in examples.to_string().lines().skip(1) {
                let parsed = Cli::try_parse_from(line.split_whitespace());
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                assert!(line.contains(command.get_name()), "{line} stands with {}", command.get_name());
                count += 1;
            }
        }
        assert!(count > 25, "{count}");
    }
}
