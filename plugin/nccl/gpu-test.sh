#!/bin/sh
# All tests of the parts for GPUs, on the first GPU of this computer, which ranks share; those between processes take all GPUs in turn:
# docs/gpu.md says what they are.
set -e
cd "$(dirname "$0")/../.."
export ANTIPHON_GPU=real
cargo test --release --locked -p runtime --test gpu -- --nocapture --test-threads 1
if command -v compute-sanitizer >/dev/null; then
    program=$(cargo test --release --locked -p runtime --test gpu --no-run 2>&1 | sed -n 's/.*Executable.*(\(.*\))$/\1/p')
    for tool in memcheck racecheck synccheck; do
        echo "gpu-test: the kernel under compute-sanitizer, $tool:"
        compute-sanitizer --tool "$tool" --error-exitcode 1 "$program" a_graph_repeats every_type
    done
else
    echo "gpu-test: there is no compute-sanitizer in PATH (CUDA's toolkit has it): it was not run"
fi
echo "gpu-test: memory between processes, and one-shot and two-shot AllReduces over it, with a process for each rank:"
cargo test --release --locked -p runtime --test peers -- --nocapture --test-threads 1 --exact two_processes_share_memory \
    every_type_and_number_of_ranks_is_right a_rank_that_ends_between_calls_is_named a_rank_that_does_not_call_is_named

.ci/setup gpu || true
nccl=${ANTIPHON_NCCL:-$(ls "$PWD"/target/python/gpu/lib/python3*/site-packages/nvidia/nccl/lib/libnccl.so.2 2>/dev/null || true)}
if [ -z "$nccl" ]; then
    echo "gpu-test: there is no NCCL (ANTIPHON_NCCL names one): nothing over NCCL was run"
    exit 0
fi
# NCCL lets ranks share a GPU only where this is set. Ranks that are threads must not wait for each other while a module is loaded.
export ANTIPHON_NCCL="$nccl" NCCL_MULTI_RANK_GPU_ENABLE=1 CUDA_MODULE_LOADING=EAGER
echo "gpu-test: plans over NCCL, and plans whose messages the kernel moves between ranks that map memory of each other, on a GPU each:"
cargo test --release --locked -p runtime --test nccl -- --nocapture --test-threads 1
cargo test --release --locked -p plugin-nccl --test ranks -- --nocapture --exact the_real_nccl_and_plans_serve_a_program_on_a_gpu

if ! python3 -c 'import torch; assert torch.cuda.is_available()' 2>/dev/null; then
    echo "gpu-test: there is no PyTorch with a GPU: it was not run"
    exit 0
fi
cargo build --release --locked
plans=target/gpu-plans
mkdir -p $plans
for collective in allreduce allgather reducescatter broadcast; do
    target/release/antiphon synth --topology ring:2 --collective $collective --size 1MB --output $plans/$collective.json
done
program="python3 -m torch.distributed.run --nproc-per-node 2 plugin/nccl/tests/with_torch.py"
echo "PyTorch over NCCL:" && LD_PRELOAD="$nccl" $program
echo "the same, through this library:" && LD_PRELOAD=target/release/libantiphon_nccl.so $program
echo "the same, by plans:" && ANTIPHON_TABLE=$plans LD_PRELOAD=target/release/libantiphon_nccl.so $program
