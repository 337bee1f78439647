#!/bin/sh
# Builds libantiphon_mpi.so for one MPI.
#
#   plugin/mpi/build.sh MPICC OUT     MPICC compiles for that MPI; libantiphon.so lies next to OUT, or in ANTIPHON_LIB
set -eu

mpicc=$1
out=$2
here=$(cd "$(dirname "$0")" && pwd)
mkdir -p "$(dirname "$out")"
# The application's MPI is found first; libantiphon where this library is, or where the loader looks.
"$mpicc" -shared -fPIC -o "$out" -std=c11 -D_DEFAULT_SOURCE -O2 -g -Wall -Wextra -Werror -fvisibility=hidden \
    -I"$here" -I"${ANTIPHON_INCLUDE:-$here/../../include}" "$here"/*.c \
    -L"${ANTIPHON_LIB:-$(dirname "$out")}" -lantiphon -lpthread -Wl,-rpath,'$ORIGIN' -Wl,--no-undefined -Wl,-z,relro,-z,now
