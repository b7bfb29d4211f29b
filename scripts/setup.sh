#!/usr/bin/env bash
# setup.sh [PACKAGE...] - install what building and testing need: Debian packages (those named too) and a Go
# toolchain. Safe to repeat.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=${PATH//"$PWD/build/bin:"/} # build/bin/go is a link to what is looked for here

say() { printf '== %s\n' "$*"; }
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi; }

missing=()
while read -r package; do
    case $package in ''|'#'*) continue ;; esac
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done < <(cat scripts/packages; printf "%s\n" "$@")
if [ "${#missing[@]}" -gt 0 ]; then
    say "installing ${#missing[@]} Debian packages: ${missing[*]}"
    as_root apt-get update -q
    # Daemons that a package would start belong to whoever runs the machine, so none is started here.
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends "${missing[@]}"
fi

# libvirt's daemon does not start its QEMU driver without this user, which Debian's libvirt-daemon-system makes;
# that package would also start a daemon and a network on this machine.
if ! getent passwd libvirt-qemu >/dev/null; then
    say "making the system user libvirt-qemu"
    as_root useradd --system --user-group --no-create-home --home-dir /var/lib/libvirt --shell /usr/sbin/nologin libvirt-qemu
fi

# Any Go from 1.21 on fetches the exact toolchain that go.mod names; Debian 12's own (1.19) does not.
go_minor() { "$1" version 2>/dev/null | sed -n 's/.*go1\.\([0-9]*\).*/\1/p'; }
find_go() {
    local candidate
    for candidate in go /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
        if [ "$(go_minor "$candidate" || true)" -ge 21 ] 2>/dev/null; then command -v "$candidate"; return 0; fi
    done
    return 1
}
if ! find_go >/dev/null; then
    say "installing Go from Debian's backports"
    if ! grep -rqs bookworm-backports /etc/apt/sources.list /etc/apt/sources.list.d; then
        # shellcheck disable=SC2016 # $(SITE) is apt's own
        mirror=$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' | head -n 1)
        [ -n "$mirror" ] || { echo "setup: apt has no source for Debian's bookworm, from which Go would be had: add one to /etc/apt/sources.list" >&2; exit 1; }
        echo "deb $mirror bookworm-backports main" | as_root tee /etc/apt/sources.list.d/watari-backports.list >/dev/null
    fi
    as_root apt-get update -q
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -q -t bookworm-backports golang-1.24-go
fi
mkdir -p build/bin
ln -sfn "$(find_go)" build/bin/go
say "Go: $(build/bin/go version)"
