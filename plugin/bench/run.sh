#!/bin/sh
# The time of an AllReduce of libantiphon next to Open MPI's, in the same run, in µs: `make bench-library`.
#
#   plugin/bench/run.sh INCLUDE LIBRARY     folders of antiphon.h and libantiphon.so; ROUNDS=5 runs of each, by turns
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

# Runs both by turns, so that both see the same computer, and shows the medians of their times side by side. Arguments: a title, the
# number of ranks, the number of machines they pretend to be on, options of mpirun.
compare() {
    title=$1 ranks=$2 machines=$3
    shift 3
    rm -f "$folder/ours.txt" "$folder/peer.txt"
    for _ in $(seq "${ROUNDS:-5}"); do
        ours "$ranks" "$machines" >>"$folder/ours.txt"
        [ -z "$peer" ] || mpirun --allow-run-as-root --oversubscribe "$@" -n "$ranks" "$folder/mpi" >>"$folder/peer.txt"
    done
    medians "$folder/ours.txt" >"$folder/a"
    : >"$folder/b"
    [ -z "$peer" ] || medians "$folder/peer.txt" >"$folder/b"
    echo "$title"
    paste -d' ' "$folder/a" "$folder/b" | awk '{ printf "%10d B %12.2f %12s %s\n", $1, $2, $4, ($4 > 0 ? sprintf("%.2f×", $4 / $2) : "") }'
}

# The median time of each size in a list of sizes and times.
medians() {
    sort -n -k1,1 -k2,2 "$1" | awk '
        $1 != size && NR > 1 { print size, times[int((count + 1) / 2)]; count = 0 }
        { size = $1; times[++count] = $2 }
        END { print size, times[int((count + 1) / 2)] }'
}

compare "2 ranks, shared memory:      libantiphon     Open MPI" 2 1
compare "4 ranks, shared memory:      libantiphon     Open MPI" 4 1
compare "2 ranks, TCP on the loopback: libantiphon     Open MPI" 2 2 --mca btl tcp,self
