#!/usr/bin/env bash
# guest-rsh.sh PROGRAM [SOCKET] - build watari-guest-rsh, for guests. SOCKET is where it finds the guest agent; tests name
# another. The program has no C library and no segment beside code and data, so that a process of it takes few pages.
set -euo pipefail
source=$(dirname "$0")/../cmd/watari-guest-rsh/main.c
socket=()
if [ -n "${2:-}" ]; then socket=("-DSOCKET=\"$2\""); fi
"${CC:-cc}" -std=gnu11 -Os -Wall -Wextra -Werror "${socket[@]}" -ffreestanding -fno-pie -fno-stack-protector \
    -fcf-protection=none -fno-asynchronous-unwind-tables -fno-tree-loop-distribute-patterns \
    -static -nostdlib -no-pie -Wl,--build-id=none -Wl,-z,noseparate-code -Wl,-z,norelro -Wl,-z,noexecstack -s \
    -o "$1" "$source"
