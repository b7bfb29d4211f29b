#!/usr/bin/env bash
# setup.sh [LIST...] - install a Go toolchain and the Debian packages in the lists, as far as they are missing. A list is a
# file of package names; a bare word means scripts/packages/WORD. The default list is build. Safe to repeat.
set -euo pipefail
cd "$(dirname "$0")/.."
PATH=${PATH//"$PWD/build/bin:"/} # build/bin/go is a link to the Go that find_go looks for

as_root=(env)
[ "$(id -u)" = 0 ] || as_root=(sudo env)
apt=("${as_root[@]}" DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends)

# Packages must not start daemons on the user's machine. Debian asks policy-rc.d before each start. The machine's own
# policy is moved aside meanwhile. The new policy gets its name when it is complete, so whatever ends this script, the next one
# knows which policy is whose.
policy=/usr/sbin/policy-rc.d
mark="written by Watari's scripts/setup.sh"
forbid_starts() {
    printf '#!/bin/sh\n# %s: no daemon is started during an installation\nexit 101\n' "$mark" |
        "${as_root[@]}" install -m 755 /dev/stdin "$policy.watari-new"
    "${as_root[@]}" sync "$policy.watari-new"
    if [ -e "$policy" ]; then "${as_root[@]}" mv "$policy" "$policy.watari-saved"; fi
    "${as_root[@]}" mv "$policy.watari-new" "$policy"
}
restore_starts() {
    if grep -qs "$mark" "$policy"; then "${as_root[@]}" rm -f "$policy"; fi
    if [ -e "$policy.watari-saved" ]; then "${as_root[@]}" mv "$policy.watari-saved" "$policy"; fi
}

# One setup at a time, of all clones on this machine: each would restore the policy under another's installation. apt holds the
# lock, too, and goes on if this script is killed; what apt starts does not get it.
exec 9<"$(dirname "$policy")"
if ! flock -n 9; then
    echo "== waiting for another setup.sh on this machine"
    flock 9
fi
restore_starts # an earlier setup may have been killed, or the machine switched off

# Packages may also enable daemons for the next boot. Disable those of the packages just installed.
disable_units() {
    command -v systemctl >/dev/null || return 0
    local units
    units=$(dpkg -L "$@" | sed -nE 's,^(/usr)?/lib/systemd/system/([^/@]+\.(service|socket|timer|path))$,\2,p')
    for unit in $units; do
        if [ "$(systemctl is-enabled "$unit" 2>/dev/null)" = enabled ]; then "${as_root[@]}" systemctl disable -q "$unit"; fi
    done
}

lists=()
for list in "${@:-build}"; do
    case $list in */*) lists+=("$list") ;; *) lists+=("scripts/packages/$list") ;; esac
done
missing=()
while read -r package; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done < <(sed 's/#.*//; /^[[:space:]]*$/d' "${lists[@]}" | sort -u)
if [ "${#missing[@]}" -gt 0 ]; then
    trap restore_starts EXIT
    forbid_starts
    scripts/quietly apt-update "updating apt's lists" "${apt[@]}" update
    scripts/quietly apt-install "installing ${#missing[@]} Debian packages without starting their services: ${missing[*]}" \
        "${apt[@]}" install "${missing[@]}"
    disable_units "${missing[@]}"
    restore_starts
    trap - EXIT
fi

# libvirt's daemon does not start its QEMU driver without this user. Debian's libvirt-daemon-system makes the user, but
# would also start a daemon and a network on this machine.
if ! getent passwd libvirt-qemu >/dev/null; then
    echo "== making the system user libvirt-qemu, which libvirt needs to run guests"
    "${as_root[@]}" useradd --system --user-group --no-create-home --home-dir /var/lib/libvirt --shell /usr/sbin/nologin libvirt-qemu
fi

# Go 1.21 and later fetch the exact toolchain that go.mod names; Debian 12's Go (1.19) does not.
go_minor() { "$1" version 2>/dev/null | sed -n 's/.*go1\.\([0-9]*\).*/\1/p'; }
find_go() {
    local candidate
    for candidate in go /usr/local/go/bin/go /usr/lib/go-*/bin/go; do
        if [ "$(go_minor "$candidate" || true)" -ge 21 ] 2>/dev/null; then command -v "$candidate"; return 0; fi
    done
    return 1
}
if ! find_go >/dev/null; then
    if ! grep -rqs bookworm-backports /etc/apt/sources.list /etc/apt/sources.list.d; then
        # shellcheck disable=SC2016 # $(SITE) is apt's own
        mirror=$(apt-get indextargets --format '$(SITE)' 'Codename: bookworm' | head -n 1)
        [ -n "$mirror" ] || { echo "setup: apt has no source of Debian's bookworm, which is needed for Go: add one to /etc/apt/sources.list" >&2; exit 1; }
        echo "deb $mirror bookworm-backports main" | "${as_root[@]}" tee /etc/apt/sources.list.d/watari-backports.list >/dev/null
    fi
    scripts/quietly apt-update "updating apt's lists, with Debian's backports for Go" "${apt[@]}" update
    scripts/quietly apt-go "installing Go from Debian's backports" "${apt[@]}" install -t bookworm-backports golang-1.24-go
fi
mkdir -p build/bin
ln -sfn "$(find_go)" build/bin/go
