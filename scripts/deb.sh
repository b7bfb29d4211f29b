#!/usr/bin/env bash
# deb.sh [VERSION] - build Debian packages of the current sources into build/deb, and check them with lintian. VERSION
# replaces the version made from git.
set -euo pipefail
cd "$(dirname "$0")/.."
go=$(readlink -f build/bin/go)
description=$(git describe --tags --long --always --dirty --match 'v[0-9]*')
version=${1:-$(scripts/deb-version "$description" "$(git rev-list --count HEAD)")}

# Build in a copy: dpkg-buildpackage writes into debian/ and beside the sources.
rm -rf build/deb
mkdir -p build/deb/source
git ls-files -z --cached --others --exclude-standard | tar --null --ignore-failed-read -T - -c 2>/dev/null | tar -x -C build/deb/source
cat >build/deb/source/debian/changelog <<END
watari ($version) unstable; urgency=medium

  * Built from $description.

 -- $(sed -n 's/^Maintainer: //p' debian/control)  $(git log -1 --format=%cD)
END

# debhelper sets a different home directory for each step. Keep Go's caches where they are.
cd build/deb/source
export GOCACHE GOMODCACHE GOPATH SOURCE_DATE_EPOCH
GOCACHE=$("$go" env GOCACHE) GOMODCACHE=$("$go" env GOMODCACHE) GOPATH=$("$go" env GOPATH)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
GO=$go UPSTREAM=${description%%-dirty} DEB_BUILD_OPTIONS="noautodbgsym nocheck parallel=$(nproc)" \
    dpkg-buildpackage --build=binary --no-sign
cd ..
rm -rf source
lintian --fail-on error,warning --info --tag-display-limit 0 ./*.changes
