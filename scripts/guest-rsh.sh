#!/usr/bin/env bash
# guest-rsh.sh PROGRAM [SOCKET] - build watari-guest-rsh, for guests. SOCKET is the path of the guest agent's socket; tests use
# another path. The program has no C library and no segments except code and data, so that its processes need few pages.
set -euo pipefail
source=$(dirname "$0")/../cmd/watari-guest-rsh/main.c
socket=()
if [ -n "${2:-}" ]; then socket=("-DSOCKET=\"$2\""); fi
"${CC:-cc}" -std=gnu11 -Os -Wall -Wextra -Werror "${socket[@]}" -ffreestanding -fno-pie -fno-stack-protector \
    -fcf-protection=none -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
    -static -nostdlib -no-pie -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,norelro -Wl,-z,noexecstack -s \
    -o "$1" "$source"
