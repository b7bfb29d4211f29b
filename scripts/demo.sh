#!/usr/bin/env bash
# demo.sh - the main use: LAMMPS runs on two sites, once undisturbed, and once while a guest moves to the other site and
# back. Every step is a command that a user would type. The complete output is in build/demo and build/log.
#
# The demo has a manager of its own, with its state in /var/lib/watari-demo, and a lab of its own. It uses and changes nothing of a
# Watari that is installed on this machine. It keeps the state, and with it the image, for the next time.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH=$PWD/build/bin:$PATH
lab=demo
cluster=md
guest=md-2
state=/var/lib/watari-demo
listen=0.0.0.0:17173 # a lab's hosts reach the manager at this machine's address in the lab
export WATARI_CONFIG=$state/admin.json
work=build/demo

say() { printf '\n== %s\n' "$*"; }
run() { printf '\n$ watari %s\n' "$*"; brief watari "$@"; }
# A terminal shows progress in place. Otherwise each step is a line: all lines go to the log, the important ones are shown.
brief() {
    if [ -t 2 ]; then "$@"; return; fi
    local status=0
    # The braces make this shell do the redirection. Otherwise the command's process would do it, and $! would not be the filter.
    { "$@"; } 2> >(tee -a "$work/demo.log" | grep --line-buffered -vE "$details" >&2) || status=$?
    wait "$!" || true # for the filter, so that its last lines precede the next command's
    return "$status"
}
details='^network namespace|^removed |^host .* ready$|^host .* is ready for guests|^waiting for host |[0-9] %|starting on .*: (host|restoring|waits|giving|making a template: saving)|starting on [ab][0-9]+$|: (setting|resuming)'
now() { date +%s.%N; }
since() { echo "$(now) $1" | awk '{printf "%.2f", $1 - $2}'; }
took() { printf '   %.1f s\n' "$1"; }

stop() { echo "demo: $*" >&2; exit 1; }

# While there may be something of this demo, the file $state/running exists. Once the lab is up, it identifies the lab.
running=$state/running
lab_folder=/var/lib/watari/lab/$lab
lab_exists() { [ -e "$lab_folder" ] || [ -e "/run/watari/lab/$lab" ]; }
lab_identity() { grep -oE '"[a-z]+[0-9]+": "[0-9a-f-]{36}"' "$lab_folder/lab.json" || true; } # the hosts' UUIDs, which no other lab has
lab_is_ours() { [ -e "$running" ] && { [ ! -s "$running" ] || [ "$(cat "$running")" = "$(lab_identity)" ]; }; }

[ "$(id -u)" = 0 ] || stop "it needs root: sudo make demo"
install -d -m 700 "$state"
exec 9<"$state"
flock -n 9 || stop "another demo runs on this machine"
if lab_exists && ! lab_is_ours; then
    stop "there is a lab \"$lab\" that is not this demo's, and the demo needs its name." \
        "If nobody needs that lab (an early demo may have left it), remove it with \`build/bin/watari lab down --name $lab\`, and repeat."
fi
rm -rf "$work"; mkdir -p "$work" build/reports

created=
finish() {
    status=$?
    trap - EXIT INT TERM
    [ -z "${background:-}" ] || kill -INT "$background" 2>/dev/null || true
    if [ "$status" != 0 ]; then
        say "the demo failed (status $status); each step is in $work/demo.log; what the manager says:"
        watari status || true
        watari events --last 20 || true
    fi
    say "cleaning up"
    local clean=yes
    : >"$running"
    [ -z "$created" ] || watari cluster delete "$cluster" --wait >/dev/null 2>&1 || clean=
    brief watari lab down --name "$lab" || clean=
    watari down --state "$state" || clean=
    if [ -n "$clean" ]; then rm -f "$running"; fi # otherwise the next demo cleans up
    exit "$status"
}

if [ -e "$running" ]; then
    say "cleaning up after a demo that was killed"
    : >"$running"
    brief watari lab down --name "$lab"
    watari down --state "$state"
    find "$state" -mindepth 1 ! -path "$running" -delete # the image is made again from what is cached
fi

: >"$running"
trap finish EXIT
trap 'exit 130' INT TERM

say "a manager on this machine, and a lab: two sites with two hosts each, 20 ms and 200 Mbit/s apart"
run up --no-agent --state "$state" --listen "$listen"
run lab up --name "$lab" --sites 2 --hosts 2 --wan 20ms,200mbit
lab_identity >"$running"
run host list

say "an image with Open MPI and LAMMPS, from Debian's packages (kept for the next time)"
begin=$(now)
scripts/quietly image '$ watari image build mpi --packages openmpi-bin,lammps' watari image build mpi --packages openmpi-bin,lammps
image_s=$(since "$begin")
tail -n 1 build/log/image.log

say "a cluster of four guests over both sites"
begin=$(now)
created=yes
run cluster create "$cluster" --guests 4 --vcpus 1 --memory 512M --image mpi --spread site --wait
ready_s=$(since "$begin")
took "$ready_s"
run guest list "$cluster"

melt() { # melt LOG: run the melt and fetch its log as LOG
    watari run "$cluster" --stage examples/melt/in.melt --collect "log.lammps:$1" -- lmp -in in.melt
}
digest() { # shortens LAMMPS's output: every fifth line of the table, and the time
    awk '/^ *Step /{inside=1; print; fflush(); next} /^Loop time/{inside=0; print} inside && $1 % 50 == 0 {print; fflush()}'
}

say "the melt, left alone (every fifth line of its output; the rest is in $work/undisturbed.out)"
printf '$ watari run %s --stage examples/melt/in.melt --collect log.lammps:%s -- lmp -in in.melt\n' "$cluster" "$work/undisturbed.log"
begin=$(now)
melt "$work/undisturbed.log" 2>&1 | tee "$work/undisturbed.out" | digest || { tail -n 20 "$work/undisturbed.out"; exit 1; }
undisturbed_s=$(since "$begin")
took "$undisturbed_s"

say "the melt again; $guest moves to the other site while it runs, and back"
# The last step that the program printed.
step() { awk '/^ *Step /{inside=1; next} /^Loop time/{inside=0} inside && $1 ~ /^[0-9]+$/ {s=$1} END {print s+0}' "$work/migrated.out"; }
begin=$(now)
: > "$work/migrated.out" # an earlier demo's file must not be read
melt "$work/migrated.log" > "$work/migrated.out" 2>&1 &
background=$!
while [ "$(step)" -lt 20 ]; do
    kill -0 "$background" 2>/dev/null || { cat "$work/migrated.out"; echo "the run ended before the guest was moved"; exit 1; }
    sleep 0.2
done
site_of() { watari guest list "$cluster" | awk -v guest="$guest" '$1 == guest {print substr($3, 1, 1)}'; } # b1 belongs to site b
other() { if [ "$1" = a ]; then echo b; else echo a; fi; }
home=$(site_of)
begin_step=$(step)
printf '\n$ watari migrate %s --to-site %s     # at step %s\n' "$guest" "$(other "$home")" "$begin_step"
brief watari -o json migrate "$guest" --to-site "$(other "$home")" > "$work/migration.json"
end_step=$(step)
watari guest list "$cluster"
back=()
if [ "$end_step" -lt 150 ]; then
    printf '\n$ watari migrate %s --to-site %s     # at step %s\n' "$guest" "$home" "$end_step"
    brief watari -o json migrate "$guest" --to-site "$home" > "$work/back.json"
    back=(--back "$work/back.json" --back-end-step "$(step)")
fi
wait "$background" || { tail -n 20 "$work/migrated.out"; exit 1; }
background=
migrated_s=$(since "$begin")
digest < "$work/migrated.out"
took "$migrated_s"

say "result"
acceleration=$(watari -o json host list | grep -q KVM && echo kvm || echo "tcg (no usable KVM here)")
go run ./bench/demo --undisturbed "$work/undisturbed.log" --migrated "$work/migrated.log" --migration "$work/migration.json" "${back[@]}" \
    --begin-step "$begin_step" --end-step "$end_step" --image-s "$image_s" --ready-s "$ready_s" \
    --undisturbed-s "$undisturbed_s" --migrated-s "$migrated_s" --acceleration "$acceleration"
