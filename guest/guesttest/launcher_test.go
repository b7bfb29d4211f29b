package guesttest

// launcher_test.go - a launcher over many guests: the memory that it costs the guest in which it runs.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/guest/bare"
)

const (
	launched = 32 // guests beside the head
	// launchedLimit is the most memory that the launcher may cost the head for each guest, in KiB.
	launchedLimit = 256
	// smallHead is the memory of a small head guest, in MiB.
	smallHead = 160
)

// headOf boots the head of a cluster of this many guests. One machine plays the other guests.
func headOf(t *testing.T, ctx context.Context, others, memory int) *Guest {
	image, identities, directory := Image(t), Identities(t, 1+others), t.TempDir()
	for _, identity := range identities {
		identity.HomeServer = ""
	}
	network := filepath.Join(directory, "net")
	head := Start(t, identities[0], bare.Options{Image: image, Network: network, Memory: memory})
	machine := Start(t, identities[1], bare.Options{Image: image, Network: network, Index: 1, Memory: 512})
	head.Ready(time.Minute)
	machine.Ready(time.Minute)

	program := filepath.Join(directory, "standins")
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", program, "watari/test/standins")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build the guests' stand-ins: %v: %s", err, text)
	}
	put := func(source, path string) {
		if err := machine.Put(ctx, source, path); err != nil {
			t.Fatal(err)
		}
	}
	put(program, "/opt/standins")
	addresses := ""
	for _, identity := range identities[2:] {
		text, err := proto.Marshal(identity)
		if err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(directory, identity.GetName())
		if err := os.WriteFile(file, text, 0o600); err != nil {
			t.Fatal(err)
		}
		put(file, "/opt/identities/"+identity.GetName())
		addresses += "ip address add " + identity.GetAddress() + "/32 dev eth0; "
	}
	machine.MustRun(ctx, "", addresses+`setsid /opt/standins /opt/identities >/tmp/standins.log 2>&1 &
		for i in $(seq 300); do [ -s /tmp/standins.log ] && break; sleep 0.1; done; cat /tmp/standins.log; grep -q ready /tmp/standins.log`)
	return head
}

// usage is memory of a guest, in KiB.
type usage struct {
	Used      int // memory that is neither free nor a cache
	Agent     int // private to the agent
	Programs  int // private to the launcher's programs, all together
	Processes int // the launcher's programs
	Tables    int // page tables of all processes
	Stacks    int // kernel stacks of all processes
	Slab      int // kernel objects that cannot be reclaimed, those of sockets among them
}

// launcherProgram is what launchers start for each guest.
const launcherProgram = "/run/watari/watari-guest-rsh"

// measure reads the guest's memory. The guest is quiet meanwhile.
func measure(ctx context.Context, g *Guest) usage {
	text := g.MustRun(ctx, "", `private() { cat "$@" 2>/dev/null | awk '/^Private/ {s += $2} END {print s+0}'; }
		programs=$(pgrep -f '^`+launcherProgram+` md-' | sed 's,.*,/proc/&/smaps_rollup,')
		private /proc/$(cat /run/watari/agent.pid)/smaps_rollup
		private /dev/null $programs; echo $programs | wc -w
		for f in PageTables KernelStack SUnreclaim MemTotal MemFree Buffers Cached SReclaimable; do
			awk -v f="$f:" '$1 == f {print $2}' /proc/meminfo
		done`)
	var u usage
	var total, free, buffers, cached, slab int
	if n, err := fmt.Sscan(text, &u.Agent, &u.Programs, &u.Processes, &u.Tables, &u.Stacks, &u.Slab, &total, &free, &buffers, &cached, &slab); err != nil {
		g.t.Fatalf("%d numbers of %q: %v", n, text, err)
	}
	u.Used = total - free - buffers - cached - slab
	return u
}

func TestALauncherOverManyGuestsTakesLittleMemory(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	head := headOf(t, ctx, launched, smallHead)
	head.MustRun(ctx, "watari", "mkdir /tmp/l; mkfifo /tmp/l/hold /tmp/l/go")
	type result struct {
		Result
		err error
	}
	ended := make(chan result, 1)
	go func() {
		r, err := head.Run(ctx, "watari", fmt.Sprintf(`cd /tmp/l; read line <go
			for i in $(seq %d); do
				`+launcherProgram+` md-$i 'hostname; cat; exit '$i <hold >$i.out 2>$i.err & p="$p $!"
			done
			for p in $p; do wait $p; echo $?; done`, launched))
		ended <- result{r, err}
	}()
	head.MustRun(ctx, "watari", "cd /tmp/l; (exec sleep 1000 >hold) & seq 1; sleep 0.1")
	measure(ctx, head) // its own files are then in memory for both later measurements
	before, begun := measure(ctx, head), time.Now()
	head.MustRun(ctx, "watari", fmt.Sprintf(`cd /tmp/l; echo >go
		for i in $(seq %d); do until [ -s $i.out ]; do [ -s $i.err ] && cat $i.err && exit 1; sleep 0.1; done; done`, launched))
	t.Logf("%d commands run after %v", launched, time.Since(begun))
	var after usage
	each := 0
	for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(time.Second) {
		after = measure(ctx, head)
		// The agent gives memory back a while after the start.
		if each = (after.Used - before.Used) / launched; each <= launchedLimit || time.Now().After(deadline) {
			break
		}
	}
	t.Logf("before: %+v KiB", before)
	t.Logf("after:  %+v KiB", after)
	t.Logf("each: %d KiB", each)
	if after.Processes != launched || each > launchedLimit {
		t.Errorf("%d programs; the head has %d KiB less memory for each guest, want at most %d", after.Processes, each, launchedLimit)
	}
	head.MustRun(ctx, "watari", "pkill -f '^sleep 1000'")
	r := <-ended
	var want strings.Builder
	for i := range launched {
		fmt.Fprintf(&want, "%d\n", 1+i)
	}
	if r.err != nil || r.Stdout != want.String() {
		t.Errorf("exit statuses %q, %v, %s", r.Stdout, r.err, r.Stderr)
	}
	if out := head.MustRun(ctx, "watari", fmt.Sprintf("cd /tmp/l; for i in $(seq %d); do cat $i.out; done; cat *.err", launched)); out != strings.Repeat("md-1\n", launched) {
		t.Errorf("output %q", out)
	}
}
