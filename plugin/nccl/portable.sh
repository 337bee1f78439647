#!/bin/sh
# Builds libantiphon_nccl.so for all Linux systems with glibc 2.28 or newer, as NCCL's own wheels are: portable.sh FOLDER, from the
# root of the repository, after `.ci/setup python`. The compiler zig comes from PyPI (400 MB). For other processors than that of
# this computer, `rustup target add` has to have been there.
set -eu
folder=$1
bin=target/python/build/bin
newest=2.28
"$bin/python" -m pip install --quiet --disable-pip-version-check ziglang cargo-zigbuild
for processor in x86_64 aarch64; do
    target=$processor-unknown-linux-gnu
    if ! rustc --print target-libdir --target "$target" | xargs test -d; then
        echo "skipped $processor: rustup target add $target"
        continue
    fi
    PATH="$PWD/$bin:$PATH" "$bin/cargo-zigbuild" zigbuild --quiet --release --locked --target "$target.$newest" -p plugin-nccl
    mkdir -p "$folder/$processor"
    install -m 755 "target/$target/release/libantiphon_nccl.so" "$folder/$processor"
    library=$folder/$processor/libantiphon_nccl.so
    # readelf reads the files of all processors.
    needs=$(readelf --version-info --wide "$library" | grep -o 'GLIBC_2\.[0-9]*' | sort -uV | tail -n 1)
    if [ "$(printf '%s\n' "GLIBC_$newest" "$needs" | sort -V | tail -n 1)" != "GLIBC_$newest" ]; then
        echo "$library needs $needs" >&2
        exit 1
    fi
    echo "built $library, which needs $needs"
done
