#!/bin/sh
# The times of all collectives of libantiphon next to Open MPI's, in the same run, in µs: `make bench-library`.
#
#   plugin/bench/run.sh INCLUDE LIBRARY     folders of antiphon.h and libantiphon.so
#
# Lists with commas say what is measured: COLLECTIVES, SIZES in bytes, PLACES=2,4,tcp (so many ranks in shared memory, and
# 2 over TCP). Each is run ROUNDS=5 times, by turns. collectives.c says how time is taken.
set -eu

here=$(dirname "$0")
all=allreduce,allgather,reduce_scatter_block,alltoall,broadcast,reduce,gather,scatter,barrier
collectives=${COLLECTIVES:-$all}
sizes=${SIZES:-64,1024,65536,1048576}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${CC:-cc} -O2 -Wall -Wextra -Werror -o "$folder/ours" "$here/collectives.c" -I "$1" -L "$2" -lantiphon \
    -Wl,-rpath,"$(cd "$2" && pwd)"
peer=""
if command -v mpicc >/dev/null && command -v mpirun >/dev/null; then
    mpicc -O2 -DUSE_MPI -o "$folder/mpi" "$here/collectives.c" && peer=yes
fi

# Starts ranks of the library; the second argument says on how many machines they pretend to be.
ours() {
    port=$((20000 + $$ % 20000))
    for rank in $(seq 1 $(($1 - 1))) 0; do
        env ANTIPHON_RANK="$rank" ANTIPHON_SIZE="$1" ANTIPHON_MASTER="127.0.0.1:$port" \
            ANTIPHON_SECRET="a secret of benchmarks" ANTIPHON_HOST="machine $((rank % $2))" \
            "$folder/ours" "$collectives" "$sizes" &
    done
    wait
}

# Runs both by turns, so that both see the same computer, and shows the medians of their times side by side. Arguments: a
# title, the number of ranks, the number of machines they pretend to be on, options of mpirun.
compare() {
    title=$1 ranks=$2 machines=$3
    shift 3
    : >"$folder/times"
    for _ in $(seq "${ROUNDS:-5}"); do
        ours "$ranks" "$machines" | sed 's/^/ours /' >>"$folder/times"
        [ -z "$peer" ] ||
            mpirun --allow-run-as-root --oversubscribe "$@" -n "$ranks" "$folder/mpi" "$collectives" "$sizes" |
            sed 's/^/peer /' >>"$folder/times"
    done
    printf '\n%s, µs:\n\n| collective | bytes | libantiphon | Open MPI | × |\n|---|---:|---:|---:|---:|\n' "$title"
    sort -k2,2 -k3,3n -k1,1 -k4,4n "$folder/times" | awk '
        # Lines of one library, collective and size follow each other, with growing times.
        function end_group() { if (count) median[who] = times[int((count + 1) / 2)]; count = 0 }
        function end_row() {
            if (!row) return
            gain = median["peer"] && median["ours"] ? sprintf("%.2f", median["peer"] / median["ours"]) : ""
            printf "| %s | %s | %s | %s |\n", row, median["ours"], median["peer"], gain
            delete median
        }
        { now = $2 " | " ($2 == "barrier" ? "" : $3) }
        now != row || $1 != who { end_group() }
        now != row { end_row() }
        { row = now; who = $1; times[++count] = $4 }
        END { end_group(); end_row() }'
}

for place in $(echo "${PLACES:-2,4,tcp}" | tr , ' '); do
    case $place in
    tcp) compare "2 ranks, TCP on the loopback" 2 2 --mca btl tcp,self ;;
    *) compare "$place ranks, shared memory" "$place" 1 ;;
    esac
done
