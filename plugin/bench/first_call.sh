#!/bin/sh
# How long the first call of a size takes next to the third one, in µs, and how long many processes take to start.
#
#   plugin/bench/first_call.sh INCLUDE LIBRARY [RANKS...]     folders of antiphon.h and libantiphon.so; 2 4 8 if no ranks are given
set -eu

here=$(dirname "$0")
include=$1
library=$(cd "$2" && pwd)
shift 2
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
${CC:-cc} -O2 -Wall -Wextra -Werror -o "$folder/first" "$here/first_call.c" -I "$include" -L "$library" -lantiphon -Wl,-rpath,"$library"

# Starts ranks, with a second argument only to see how long that takes.
ranks() {
    port=$((20000 + ($$ + $1) % 20000))
    for rank in $(seq 1 $(($1 - 1))) 0; do
        env ANTIPHON_RANK="$rank" ANTIPHON_SIZE="$1" ANTIPHON_MASTER="127.0.0.1:$port" \
            ANTIPHON_SECRET="a secret of benchmarks" "$folder/first" ${2:-} &
    done
    wait
}

for count in ${*:-2 4 8}; do ranks "$count"; done
for count in 16 64 128; do
    begin=$(date +%s%N)
    ranks "$count" start
    echo "$count processes started, made three barriers and ended in $((($(date +%s%N) - begin) / 1000000)) ms"
done
