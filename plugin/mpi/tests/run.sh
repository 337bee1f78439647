#!/bin/sh
# Tests libantiphon_mpi.so with one MPI: the same program without and with it.
#
#   plugin/mpi/tests/run.sh MPICC MPIRUN LIBRARY [RANKS...]     RANKS: 1 2 3 4 5 if none are given
set -eu

mpicc=$1
mpirun=$2
library=$(realpath "$3")
shift 3
here=$(cd "$(dirname "$0")" && pwd)
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
# The compiler knows nothing of constants of MPI that stand for no array.
"$mpicc" -std=c11 -D_DEFAULT_SOURCE -O1 -g -Wall -Wextra -Werror -Wno-stringop-overread -Wno-stringop-overflow \
    -o "$folder/check" "$here"/*.c -lpthread
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

for ranks in ${*:-1 2 3 4 5}; do
    for tests in "reductions" "moves" "requests" "comms" "threads"; do
        for preload in "" "$library"; do
            before=$(date +%s%N)
            if ! timeout 120 "$mpirun" -n "$ranks" env LD_PRELOAD="$preload" "$folder/check" $tests >"$folder/out" 2>&1; then
                cat "$folder/out"
                echo "failed: $mpirun, $ranks ranks, $tests, with LD_PRELOAD=$preload"
                exit 1
            fi
            grep -q "all as it must be" "$folder/out"
            after=$(date +%s%N)
            echo "$mpirun, $ranks ranks, $tests, ${preload:+with libantiphon_mpi, }$(((after - before) / 1000000)) ms"
            grep "antiphon:" "$folder/out" || true
        done
    done
done
