//! The examples below the help of each command and on its man page. A test parses each line.

pub(super) const ALL: &str = "\
Examples:
  antiphon demo
  antiphon synth --topology ndv2x2 --collective allgather --size 1GB -o plan.json
  antiphon verify plan.json
  antiphon run plan.json
  antiphon synth --help";

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

pub(super) const TOPOLOGY_LIST: &str = "\
Examples:
  antiphon topology list
  antiphon topology list --json";

pub(super) const TOPOLOGY_SHOW: &str = "\
Examples:
  antiphon topology show ring:8,bandwidth=200Gbps
  antiphon topology show ndv2x2 --heat-map
  antiphon topology show here.yaml --json";

pub(super) const TOPOLOGY_CHECK: &str = "\
Examples:
  antiphon topology check here.yaml
  antiphon topology check box.yaml,machines=2";

pub(super) const TOPOLOGY_IMPORT: &str = "\
Examples:
  antiphon topology import topo.txt --machines 2 -o here.yaml
  antiphon topology import /sys -o here.yaml
  antiphon topology import taccl.json --kind NDv2 --chunk-bytes 1MB";

pub(super) const PROFILE: &str = "\
Examples:
  antiphon profile --ranks 8 -o here.yaml
  antiphon profile --device gpu -o gpus.yaml
  antiphon profile --ranks 16 --emulate ndv2x2 --slowdown 1000 -o measured.yaml";

pub(super) const SKETCH: &str = "\
Examples:
  antiphon sketch check sketches/sk1-ndv2-n2.yaml --topology ndv2x2
  antiphon sketch import taccl.json --topology ndv2x2 -o sketch.yaml";

pub(super) const SKETCH_CHECK: &str = "\
Examples:
  antiphon sketch check sketches/sk1-ndv2-n2.yaml --topology ndv2x2";

pub(super) const SKETCH_IMPORT: &str = "\
Examples:
  antiphon sketch import taccl.json
  antiphon sketch import taccl.json --topology ndv2x2 -o sketch.yaml";

pub(super) const BOUND: &str = "\
Examples:
  antiphon bound --topology ndv2x2 --collective allgather --size 1GB
  antiphon bound --topology dgx1 --collective allreduce --size 64M --chunks 8 --json
  antiphon bound --topology dgx1 --collective allgather --size 64MB --groups 0,2,4,6/1,3,5,7";

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

pub(super) const COMPLETIONS: &str = "\
Examples:
  antiphon completions bash
  antiphon completions zsh";

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
  antiphon tune --device gpu --ranks 8 --topology gpus.yaml -o table.json
  antiphon tune --rank 0 --world-size 4 --master node0:29500 -o table.json
  antiphon tune show table.json
  antiphon tune export table.json --format nccl-csv -o rules.csv";

pub(super) const TUNE_SHOW: &str = "\
Examples:
  antiphon tune show table.json
  antiphon tune show table.json --svg table.svg";

pub(super) const TUNE_VERIFY: &str = "\
Examples:
  antiphon tune verify table.json";

pub(super) const TUNE_DIFF: &str = "\
Examples:
  antiphon tune diff monday.json friday.json";

pub(super) const TUNE_MERGE: &str = "\
Examples:
  antiphon tune merge monday.json friday.json -o table.json";

pub(super) const TUNE_EXPORT: &str = "\
Examples:
  antiphon tune export table.json --format nccl-csv -o rules.csv
  antiphon tune export table.json --format ompi-rules -o rules.conf
  antiphon tune export table.json --format ucc";

#[cfg(test)]
mod tests {
    use crate::cli::Cli;
    use clap::{Command, CommandFactory, Parser};

    #[test]
    fn every_command_has_examples_that_are_command_lines() {
        let (mut count, root) = (0, Cli::command());
        let mut commands = vec![(String::new(), &root)];
        while let Some((above, command)) = commands.pop() {
            let path = format!("{above}{}", command.get_name());
            let examples = command.get_after_help().unwrap_or_else(|| panic!("{path} has no examples")).to_string();
            for line in examples.lines().skip(1) {
                // `--help` parses as an error that is no mistake.
                let parsed = Cli::try_parse_from(line.split_whitespace());
                let is_right = parsed.as_ref().map_or_else(|error| !error.use_stderr(), |_| true);
                assert!(is_right, "{line}: {}", parsed.unwrap_err());
                assert!(line.trim_start().starts_with(&path), "{line} stands with {path}");
                count += 1;
            }
            let own = |it: &&Command| !it.is_hide_set();
            commands.extend(command.get_subcommands().filter(own).map(|it| (format!("{path} "), it)));
        }
        assert!(count > 45, "{count}");
    }
}
