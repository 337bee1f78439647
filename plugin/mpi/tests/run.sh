#!/bin/sh
# Tests libantiphon_mpi.so with one MPI: the same program without and with it; where the MPI has functions with large counts
# (MPI 4), also a program that calls those, and one half of the ranks with each program.
#
#   plugin/mpi/tests/run.sh MPICC MPIRUN LIBRARY [RANKS...]     RANKS: 1 2 3 4 5 if none are given
#
# Tables come from the program antiphon: $ANTIPHON, or the one next to libantiphon.so.
set -eu

mpicc=$1
mpirun=$2
library=$(realpath "$3")
shift 3
here=$(cd "$(dirname "$0")" && pwd)
antiphon=${ANTIPHON:-$(dirname "$library")/antiphon}
version=$("$antiphon" --version 2>/dev/null) || echo "skipped: calls with tables, because there is no $antiphon"
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
# Long messages need both sides, so MPI has to go on while a rank waits for a call of ours.
export OMPI_MCA_btl_vader_single_copy_mechanism=none
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

# said RANKS TABLE OF_RANK_1: makes the calls of `tables` with these tables, `-` for none. What rank 0 says, and how it ends, is in
# $folder/out.
said() {
    others=$(($1 - 2))
    set -- "$1" "$2" "$3" "$mpirun"
    table() { if [ "$1" = - ]; then echo NO_TABLE=; else echo "ANTIPHON_TABLE=$1"; fi; }
    set -- "$@" -n 1 env LD_PRELOAD="$library" "$(table "$2")" "$folder/check" tables
    set -- "$@" : -n 1 env LD_PRELOAD="$library" "$(table "$3")" "$folder/check" tables
    [ $others = 0 ] || set -- "$@" : -n $others env LD_PRELOAD="$library" "$(table "$2")" "$folder/check" tables
    what="$1 ranks, tables $2 $3"
    shift 3
    if ! timeout 300 "$@" >"$folder/out" 2>&1 || ! grep -q "all as it must be" "$folder/out"; then
        cat "$folder/out"
        echo "failed: $what"
        exit 1
    fi
    echo "$what"
}

# has PATTERN: rank 0 has said such a line
has() {
    grep -Eq "$1" "$folder/out" && return
    cat "$folder/out"
    echo "failed: nobody has said: $1"
    exit 1
}

# has_by_stock CALLS: so many calls of rank 0 were sums by stock, whichever plans that has for their sizes
has_by_stock() {
    sums=$(grep "rank 0 called" "$folder/out" | grep -Eo "allreduce [0-9]+ \(allreduce classic/[a-z/-]*\)" |
        awk '{ sum += $2 } END { print sum + 0 }')
    [ "$sums" = "$1" ] && return
    cat "$folder/out"
    echo "failed: $sums sums by stock, not $1"
    exit 1
}

# key RANKS: the key of a table of these ranks
key() {
    machines=$(seq -s , "$1" | sed 's/[0-9][0-9]*/0/g')
    echo "\"key\": {\"ranks\": $1, \"machines\": [$machines], \"version\": \"${version##* }\", \"policy\": 1}"
}

# A table that all ranks have, that rank 1 has not, and that is another one on rank 1; plans, and a function: tables RANKS
tables() {
    for chunks in 1 2; do
        "$antiphon" synth --topology "clique:$1" --collective allreduce --size 1KB --chunks $chunks --strategy classic \
            -o "$folder/plan$chunks.json" --force >/dev/null
    done
    export ANTIPHON_DEBUG=info
    plan="$folder/plan1.json"
    said "$1" "$plan" "$plan"
    has "called allreduce 600 \(allreduce classic/[a-z/-]* of "
    said "$1" "$plan" -
    has "because the ranks have different tables: rank 1 has none"
    has_by_stock 600
    said "$1" "$plan" "$folder/plan2.json"
    has "because the ranks have different tables: rank 1 has another than rank 0"
    has_by_stock 600
    # Some calls are timed, with stock as well.
    export ANTIPHON_CONFIRM=2
    said "$1" "$plan" "$plan"
    has "allreduce [0-9]+ \(allreduce classic/[a-z/-]* of "
    has "allreduce [0-9]+ \(allreduce classic/[a-z/-]*\)"
    unset ANTIPHON_CONFIRM
    # What a table names for blocking calls serves blocking calls of MPI.
    cat >"$folder/function.json" <<END
{"format": "antiphon-table/1",
 $(key "$1"),
 "cells": [{"collective": "allreduce", "ranges": [{"from_bytes": 0, "to_bytes": null, "plan": null, "evidence": []}],
   "functions": [{"from_bytes": 0, "to_bytes": 4096, "function": "stock reducescatter + allgather", "dtype": "i64",
     "op": "sum", "evidence": []}]}], "plans": {}}
END
    said "$1" "$folder/function.json" "$folder/function.json"
    has "called allreduce 600 \(function stock reducescatter \+ allgather\)"
    unset ANTIPHON_DEBUG
}

# all_by_mpi RANKS FILE: a table that leaves calls of all sizes to MPI
all_by_mpi() {
    between=
    {
        echo "{\"format\": \"antiphon-table/1\", $(key "$1"), \"cells\": ["
        for collective in allreduce reducescatter reduce allgather alltoall broadcast gather scatter; do
            case $collective in
            *reduce*) type='"dtype": "i64", "op": "sum"' ;;
            *) type='"dtype": "f64"' ;;
            esac
            cat <<END
$between{"collective": "$collective", "ranges": [{"from_bytes": 0, "to_bytes": null, "plan": null, "evidence": []}],
 "functions": [{"from_bytes": 0, "to_bytes": 1000000000, "function": "MPI", $type, "evidence": []}]}
END
            between=,
        done
        echo '], "plans": {}}'
    } >"$2"
}

# MPI's own functions compete, and a table leaves calls to them: candidates RANKS
candidates() {
    export ANTIPHON_MPI_TABLE="$folder/competed.json" ANTIPHON_MPI_TABLE_BUDGET=6 ANTIPHON_MPI_TABLE_SIZES=1024,16384
    rm -f "$ANTIPHON_MPI_TABLE"
    ANTIPHON_DISABLE=1 run check "$1" tables "$library"
    [ ! -e "$ANTIPHON_MPI_TABLE" ]
    run check "$1" choices "$library"
    has "there is no .*competed.json: MPI_Init measures for about 6 s"
    grep -q '"name": "MPI"' "$ANTIPHON_MPI_TABLE"
    grep -q '"name": "stock"' "$ANTIPHON_MPI_TABLE"
    # The second time nothing is measured, and nothing is written.
    cp "$ANTIPHON_MPI_TABLE" "$folder/kept"
    run check "$1" choices "$library"
    if grep "antiphon:" "$folder/out"; then exit 1; fi
    cmp "$ANTIPHON_MPI_TABLE" "$folder/kept"
    # Every rank takes what rank 0 has found, so another one's variable means nothing.
    ranks_left=$(($1 - 1))
    timeout 300 "$mpirun" -n 1 env -u ANTIPHON_MPI_TABLE LD_PRELOAD="$library" "$folder/check" choices : \
        -n $ranks_left env ANTIPHON_MPI_TABLE="$folder/nowhere.json" LD_PRELOAD="$library" "$folder/check" choices >"$folder/out" 2>&1
    has "all as it must be"
    [ ! -e "$folder/nowhere.json" ]
    # What the table leaves to MPI, MPI does: also sums that are not in place, from the first call on; with other roots than the one
    # that was measured, and in other communicators, the rest serves.
    all_by_mpi "$1" "$ANTIPHON_MPI_TABLE"
    export ANTIPHON_DEBUG=info
    run check "$1" choices "$library" >/dev/null
    rooted=$((3 * ((40 + $1 - 1) / $1)))
    for kind in "allreduce 120" "reduce_scatter 120" "allgather 120" "alltoall 120" "bcast $rooted" "reduce $rooted" \
        "gather $rooted" "scatter $rooted"; do
        has "[ ,]$kind \(function MPI\)"
    done
    for tests in reductions moves requests comms tables threads; do
        run check "$1" $tests "$library" >/dev/null
        echo "$mpirun, check, $1 ranks, $tests, by MPI where a table says so"
    done
    unset ANTIPHON_DEBUG
    # A table of other ranks, one that is none, and one that cannot be kept.
    all_by_mpi $(($1 + 1)) "$ANTIPHON_MPI_TABLE"
    run check "$1" choices "$library"
    has "competed.json is not used, and stock serves: .*it was measured with $(($1 + 1)) ranks"
    echo '{' >"$ANTIPHON_MPI_TABLE"
    run check "$1" choices "$library"
    has "competed.json is not used, and stock serves: "
    ANTIPHON_MPI_TABLE=$folder/nowhere/table.json
    run check "$1" choices "$library"
    has "MPI's functions do not compete: .*nowhere/table.json cannot be written"
    ANTIPHON_MPI_TABLE_SIZES=1024,many
    run check "$1" choices "$library"
    has "MPI's functions do not compete: ANTIPHON_MPI_TABLE_SIZES is no list"
    unset ANTIPHON_MPI_TABLE ANTIPHON_MPI_TABLE_BUDGET ANTIPHON_MPI_TABLE_SIZES
}

for ranks in ${*:-1 2 3 4 5}; do
    for tests in reductions moves requests comms tables threads; do
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
    [ "$ranks" = 1 ] || [ -z "$version" ] || tables "$ranks"
    case $ranks in
    2 | 3) [ -z "$version" ] || candidates "$ranks" ;;
    esac
done
