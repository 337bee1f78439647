#!/bin/sh
# The time of an AllReduce of libantiphon next to Open MPI's, in the same run, in µs: `make bench-library`.
#
#   plugin/bench/run.sh INCLUDE LIBRARY     folders of antiphon.h and libantiphon.so
set -eu

here=$(dirname "$0")
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${CC:-cc} -O2 -o "$folder/ours" "$here/allreduce.c" -I "$1" -L "$2" -lantiphon -Wl,-rpath,"$(cd "$2" && pwd)"
peer=""
if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    mpicc -O2 -DUSE_MPI -o "$folder/mpi" "$here/allreduce.c" && peer=yes
fi

# Starts ranks of the library; the second argument says on how many machines they pretend to be.
ours() {
    port=$((20000 + $$ % 20000))
    for rank in $(seq 1 $(($1 - 1))) 0; do
        env ANTIPHON_RANK="$rank" ANTIPHON_SIZE="$1" ANTIPHON_MASTER="127.0.0.1:$port" \
            ANTIPHON_SECRET="a secret of benchmarks" ANTIPHON_HOST="machine $((rank % $2))" "$folder/ours" &
    done
    wait
}

# Shows two lists of sizes and times side by side.
show() {
    echo "$1"
    paste -d' ' "$folder/a" "$folder/b" | awk '{ printf "%10d B %12.2f %12s %s\n", $1, $2, $4, ($4 > 0 ? sprintf("%.2f×", $4 / $2) : "") }'
}

for ranks in 2 4; do
    ours "$ranks" 1 >"$folder/a"
    : >"$folder/b"
    [ -z "$peer" ] || mpirun --allow-run-as-root --oversubscribe -n "$ranks" "$folder/mpi" >"$folder/b"
    show "$ranks ranks, shared memory:      libantiphon     Open MPI"
done
ours 2 2 >"$folder/a"
: >"$folder/b"
[ -z "$peer" ] || mpirun --allow-run-as-root --oversubscribe --mca btl tcp,self -n 2 "$folder/mpi" >"$folder/b"
show "2 ranks, TCP on the loopback: libantiphon     Open MPI"
