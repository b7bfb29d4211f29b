#!/usr/bin/env bash
# tarball.sh - pack the programs in build/bin into a tarball in build/, for distributions without packages of Watari. watari
# and the guest's programs are static; watari-agent needs the machine's C library and libvirt's client library.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(git describe --tags --always --dirty)
name=watari-$version-linux-amd64
folder=build/tarball/$name
rm -rf build/tarball
mkdir -p "$folder"/{bin,libexec/watari,lib/systemd/system,lib/sysctl.d,share/man/man1,share/man/man8,share/doc/watari}
mkdir -p "$folder"/share/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}

install -s build/bin/watari build/bin/watari-agent "$folder/bin"
install build/bin/watari-guest build/bin/watari-guest-rsh build/bin/libpm-fi.so "$folder/libexec/watari"
install -m 644 man/watari*.1 "$folder/share/man/man1"
install -m 644 man/watari-agent.8 "$folder/share/man/man8"
install -m 644 debian/60-watari-agent.conf "$folder/lib/sysctl.d"
for unit in watari-manager watari-agent; do
    sed 's,/usr/bin/,/usr/local/bin/,' debian/*"$unit.service" >"$folder/lib/systemd/system/$unit.service"
done
build/bin/watari completion bash >"$folder/share/bash-completion/completions/watari"
build/bin/watari completion zsh >"$folder/share/zsh/site-functions/_watari"
build/bin/watari completion fish >"$folder/share/fish/vendor_completions.d/watari.fish"
cp -r README.md LICENSE examples "$folder/share/doc/watari"
mkdir -p "$folder/share/doc/watari/docs/results"
cp -r docs/ARCHITECTURE.md docs/console.png docs/design docs/guide "$folder/share/doc/watari/docs"
cp docs/results/*.md "$folder/share/doc/watari/docs/results"
licences=$folder/share/doc/watari/licences
GO=build/bin/go debian/licences ./cmd/watari ./cmd/watari-agent ./cmd/watari-guest >"$licences"

# A program that is not static by mistake would fail on a machine with another C library.
for program in "$folder/bin/watari" "$folder"/libexec/watari/watari-guest{,-rsh}; do
    if readelf --program-headers "$program" | grep -q INTERP; then echo "tarball: $program is not static" >&2; exit 1; fi
done
tar -C build/tarball --owner=0 --group=0 --sort=name --mtime="@$(git log -1 --format=%ct)" -cJf "build/$name.tar.xz" "$name"
rm -rf build/tarball
echo "build/$name.tar.xz"
