#!/bin/sh
# Installs libantiphon for programs in C and other languages: the header, the shared and the static library, and what
# pkg-config says of them.
#
#   plugin/install.sh ARCHIVE PREFIX     ARCHIVE is the static library that Cargo has built
#
# The shared library is linked here, because its symbols have versions (antiphon.map). DESTDIR, if set, is put before PREFIX.
set -eu

archive=$1
prefix=$2
root=${DESTDIR:-}$prefix
here=$(dirname "$0")
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$here/../Cargo.toml" | head -1)
# Programs that were linked against one minor version before 1.0 do not run with another one.
soname=libantiphon.so.$(echo "$version" | cut -d. -f1-2)

mkdir -p "$root/include" "$root/lib/pkgconfig"
install -m 644 "$here/../include/antiphon.h" "$root/include/antiphon.h"
install -m 644 "$archive" "$root/lib/libantiphon.a"
${CC:-cc} -shared -o "$root/lib/$soname" -Wl,-soname,"$soname" -Wl,--version-script="$here/antiphon.map" \
    -Wl,--gc-sections -Wl,-z,relro,-z,now -Wl,--whole-archive "$archive" -Wl,--no-whole-archive -lm -lpthread -ldl -lgcc_s
strip --strip-unneeded "$root/lib/$soname"
ln -sf "$soname" "$root/lib/libantiphon.so"
cat >"$root/lib/pkgconfig/antiphon.pc" <<PC
prefix=$prefix
includedir=\${prefix}/include
libdir=\${prefix}/lib

Name: antiphon
Description: Collective communication with synthesized plans
Version: $version
Cflags: -I\${includedir}
Libs: -L\${libdir} -lantiphon
Libs.private: -lm -lpthread -ldl -lgcc_s
PC
glibc=$(objdump -T "$root/lib/$soname" | sed -n 's/.*(\?GLIBC_\([0-9.]*\)).*/\1/p' | sort -V | tail -1)
echo "installed in $root: lib/$soname, lib/libantiphon.a, include/antiphon.h, lib/pkgconfig/antiphon.pc (needs glibc $glibc)"
