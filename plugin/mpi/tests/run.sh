#!/bin/sh
# Tests libantiphon_mpi.so with one MPI: the same program without and with it; where the MPI has functions with large counts
# (MPI 4), also a program that calls those, and one half of the ranks with each program.
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
compile() {
    "$mpicc" -std=c11 -D_DEFAULT_SOURCE -O1 -g -Wall -Wextra -Werror -Wno-stringop-overread -Wno-stringop-overflow \
        "$@" "$here"/*.c -lpthread
}
compile -o "$folder/check"
has_large_counts=
printf '#include <mpi.h>\nMPI_VERSION\n' >"$folder/version.c"
if "$mpicc" -E "$folder/version.c" | tail -n 1 | grep -q '^[4-9]'; then
    compile -DLARGE_COUNTS -o "$folder/large"
    has_large_counts=yes
fi
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1

# run PROGRAM RANKS TESTS PRELOAD
run() {
    before=$(date +%s%N)
    if [ "$1" = both ]; then
        half=$(($2 / 2))
        set -- "$@" -n $half env LD_PRELOAD="$4" "$folder/check" "$3" : -n $(($2 - half)) env LD_PRELOAD="$4" "$folder/large" "$3"
    else
        set -- "$@" -n "$2" env LD_PRELOAD="$4" "$folder/$1" "$3"
    fi
    what="$mpirun, $1, $2 ranks, $3, ${4:+with libantiphon_mpi, }"
    shift 4
    if ! timeout 300 "$mpirun" "$@" >"$folder/out" 2>&1; then
        cat "$folder/out"
        echo "failed: $what$*"
        exit 1
    fi
    grep -q "all as it must be" "$folder/out"
    after=$(date +%s%N)
    echo "$what$(((after - before) / 1000000)) ms"
    grep "antiphon:" "$folder/out" || true
}

# What the two are compared for is chosen once, and kept in a file: choices PROGRAM RANKS
choices() {
    export ANTIPHON_MPI_TUNE="$folder/choices" ANTIPHON_DEBUG=info
    rm -f "$ANTIPHON_MPI_TUNE"
    run "$1" "$2" choices "$library"
    grep -q "(to compare)" "$folder/out"
    for kind in allreduce allgather reduce_scatter alltoall bcast reduce gather scatter barrier; do
        grep -Eq "^$kind $2 [0-9]+ [0-9]+ (antiphon|mpi) [0-9.]+ [0-9.]+$" "$ANTIPHON_MPI_TUNE"
    done
    cp "$ANTIPHON_MPI_TUNE" "$folder/kept"
    run "$1" "$2" choices "$library"
    if grep "(to compare)" "$folder/out"; then exit 1; fi
    cmp "$ANTIPHON_MPI_TUNE" "$folder/kept"
    # All that the file says goes to MPI, and nothing of it is right for another MPI.
    sed -i 's/ antiphon / mpi /' "$ANTIPHON_MPI_TUNE"
    run "$1" "$2" choices "$library"
    grep -q "allreduce [0-9]* (MPI is faster)" "$folder/out"
    printf 'antiphon-mpi-tune/1 0, another\nallreduce 2 0 0 mpi 1 1\n' >"$ANTIPHON_MPI_TUNE"
    run "$1" "$2" choices "$library"
    grep -q "is for another MPI or version" "$folder/out"
    grep -q "(to compare)" "$folder/out"
    unset ANTIPHON_MPI_TUNE ANTIPHON_DEBUG
}

for ranks in ${*:-1 2 3 4 5}; do
    for tests in reductions moves requests comms threads; do
        run check "$ranks" $tests ""
        run check "$ranks" $tests "$library"
        [ -n "$has_large_counts" ] || continue
        case $tests in
        reductions | requests) run large "$ranks" $tests "$library" ;;
        moves)
            run large "$ranks" $tests ""
            run large "$ranks" $tests "$library"
            [ "$ranks" = 1 ] || run both "$ranks" $tests "$library"
            ;;
        esac
    done
    case $ranks in
    2 | 4) choices check "$ranks" ;;
    esac
done
