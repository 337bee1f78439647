#!/bin/sh
# Builds the wheel, with the command inside: wheel.sh COMMAND FOLDER, from the root of the repository, after `.ci/setup python`.
set -eu
command=$1
folder=$2
bin=target/python/build/bin
compatibility="--compatibility linux"
if [ -n "${MANYLINUX:-}" ]; then
    # The command must be for the same systems as the library.
    "$bin/python" -m pip install --quiet --disable-pip-version-check ziglang cargo-zigbuild
    # The bindings of the solver are the same for all versions of glibc, so they are made from the headers of this computer.
    headers="-I$(cc -print-file-name=include) -I/usr/include -I/usr/include/$(uname -m)-linux-gnu"
    PATH="$PWD/$bin:$PATH" BINDGEN_EXTRA_CLANG_ARGS="$headers" "$bin/cargo-zigbuild" zigbuild --release --locked --target "$(uname -m)-unknown-linux-gnu.2.28" -p antiphon
    command=target/$(uname -m)-unknown-linux-gnu/release/antiphon
    compatibility="--zig --compatibility manylinux_2_28"
fi
mkdir -p python/antiphon/bin
install -m 755 "$command" python/antiphon/bin/antiphon
rm -f "$folder"/antiphon-*.whl
# shellcheck disable=SC2086  # a list of options
PATH="$PWD/$bin:$PATH" "$bin/maturin" build --quiet --release --locked $compatibility --manifest-path python/Cargo.toml --out "$folder" \
    --interpreter "$bin/python"
echo "built $(ls "$folder"/antiphon-*.whl)"
