package vm

// faults_test.go - the state of both sides of a migration after something dies at each point of it. The guarantee that a
// guest never runs twice depends on it.

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
)

// Procedures of libvirt's remote protocol by which the source's daemon speaks to the target's.
const (
	procedurePrepare = 303 // REMOTE_PROC_DOMAIN_MIGRATE_PREPARE3_PARAMS
	procedureFinish  = 306 // REMOTE_PROC_DOMAIN_MIGRATE_FINISH3_PARAMS
)

// hold stops a message of libvirt's remote protocol on its way.
type hold struct {
	procedure uint32
	reply     bool
	reached   chan struct{} // closed when the message has come
	release   chan struct{} // closed to let it go on
}

// copyMessages forwards messages, and holds one of them: length (4 bytes, its own included), program, version, procedure,
// type, serial, status, payload; all big-endian.
func (h *hold) copyMessages(f *forwarding, to, from net.Conn, replies bool) {
	defer to.Close()
	for {
		var head [4]byte
		if _, err := io.ReadFull(from, head[:]); err != nil {
			return
		}
		body := make([]byte, binary.BigEndian.Uint32(head[:])-4)
		if _, err := io.ReadFull(from, body); err != nil {
			return
		}
		const remoteProgram = 0x20008086
		if replies == h.reply && binary.BigEndian.Uint32(body) == remoteProgram &&
			binary.BigEndian.Uint32(body[8:]) == h.procedure {
			close(h.reached)
			<-h.release
		}
		if f.pass(to, append(head[:], body...)) != nil {
			return
		}
	}
}

// point is a point of a migration at which a fault strikes.
type point struct {
	name string
	hold *hold // nil: after some memory has been sent
}

func points() []point {
	held := func(procedure uint32, reply bool) *hold {
		return &hold{procedure, reply, make(chan struct{}), make(chan struct{})}
	}
	return []point{
		{"before the target prepares", held(procedurePrepare, false)},
		{"the target has prepared", held(procedurePrepare, true)},
		{"during the transfer", nil},
		{"all sent, the target not told", held(procedureFinish, false)},
		{"the target has finished, its reply on the way", held(procedureFinish, true)},
	}
}

var faults = []string{"source daemon", "target daemon", "source QEMU", "target QEMU", "connection", "silence", "abort"}

func TestMigrationFaults(t *testing.T) {
	if os.Getenv("WATARI_TEST_FULL") == "" {
		t.Skip("set WATARI_TEST_FULL=1 for each kind of death at each point of a migration (10 minutes)")
	}
	need(t)
	hosts := &pair{source: startHost(t, "h1"), target: startHost(t, "h2")}
	n := 0
	for i := range points() {
		for _, fault := range faults {
			at := points()[i]
			n++
			t.Run(strings.ReplaceAll(at.name+"/"+fault, " ", "_"), func(t *testing.T) {
				p := *hosts
				p.spec = newSpec(fmt.Sprintf("f%d", n), "test.dirty=8")
				p.spec.MemoryBytes = 128 << 20
				p.strike(t, at, fault)
			})
		}
	}
}

// strike migrates a guest, makes the fault happen at the point, and reports the remaining state.
func (p *pair) strike(t *testing.T, at point, fault string) {
	p.source.prepare(t, p.spec)
	p.target.prepare(t, p.spec)
	ctx := context.Background()
	t.Cleanup(func() {
		for _, h := range []*testHost{p.source, p.target} {
			if err := h.driver.Destroy(ctx, p.spec.UID); err != nil {
				t.Error(err)
			}
		}
	})
	if err := p.source.driver.Boot(ctx, p.spec); err != nil {
		t.Fatal(err)
	}
	p.source.counts(t, p.spec, 3)
	if at.hold != nil {
		p.connect(t, at.hold.copyMessages)
	} else {
		p.connect(t, copyStream)
		p.options.BandwidthBytes = 4 << 20
	}
	aborting, abort := context.WithCancel(ctx)
	defer abort()
	failed := make(chan error, 1)
	go func() { failed <- p.source.driver.Migrate(aborting, p.spec.UID, p.options) }()
	p.await(t, at, failed)

	release := sync.OnceFunc(func() {
		if at.hold != nil {
			close(at.hold.release)
		}
	})
	defer release()
	begun := time.Now()
	switch fault {
	case "source daemon":
		p.source.killDaemon(t)
	case "target daemon":
		p.target.killDaemon(t)
	case "source QEMU":
		p.source.killGuest(t, p.spec.Name)
	case "target QEMU":
		if _, err := os.Stat(p.target.path("/run/libvirt/qemu/" + NamePrefix + p.spec.Name + ".pid")); err != nil {
			t.Skip("there is no QEMU at the target yet")
		}
		p.target.killGuest(t, p.spec.Name)
	case "connection":
		for _, link := range p.links {
			link.cut()
		}
	case "silence":
		for _, link := range p.links {
			close(link.frozen)
		}
	case "abort":
		abort()
	}
	if fault != "connection" {
		time.Sleep(300 * time.Millisecond) // the fault strikes while the message is on its way
	}
	release()
	p.report(t, begun, failed)
}

// await waits until the migration is at the point.
func (p *pair) await(t *testing.T, at point, failed <-chan error) {
	t.Helper()
	if at.hold != nil {
		select {
		case <-at.hold.reached:
		case err := <-failed:
			t.Fatalf("the migration ended too early: %v", err)
		case <-time.After(30 * time.Second):
			t.Fatalf("not %s within 30 s", at.name)
		}
		return
	}
	eventually(t, 30*time.Second, "memory is sent", func() bool {
		progress, err := p.source.driver.Progress(context.Background(), p.spec.UID)
		return err == nil && progress.ProcessedBytes > 4<<20
	})
}

// report waits for the end, waits until both sides no longer change, and checks what must hold in any case.
func (p *pair) report(t *testing.T, begun time.Time, failed <-chan error) {
	t.Helper()
	var seen []string
	targetRan := func() bool { return p.target.count(p.spec) > 0 }
	note := func() {
		line := fmt.Sprintf("source %s, target %s", p.look(p.source), p.look(p.target))
		if len(seen) == 0 || !strings.HasSuffix(seen[len(seen)-1], line) {
			seen = append(seen, fmt.Sprintf("%.1f s: %s", time.Since(begun).Seconds(), line))
		}
	}
	var err error
	ended := false
	for deadline := time.Now().Add(80 * time.Second); !ended; {
		note()
		select {
		case err = <-failed:
			ended = true
			seen = append(seen, fmt.Sprintf("%.1f s: Migrate returned: %v", time.Since(begun).Seconds(), err))
		case <-time.After(200 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Errorf("Migrate did not return; seen: %s", strings.Join(seen, "\n\t"))
			return
		}
	}
	for rest := time.Now().Add(6 * time.Second); time.Now().Before(rest); time.Sleep(200 * time.Millisecond) {
		note()
	}
	t.Logf("\n\t%s", strings.Join(seen, "\n\t"))
	if targetRan() {
		t.Error("THE TARGET'S GUEST RAN BY ITSELF")
	}
	if err == nil && p.look(p.source) != "none" {
		t.Error("Migrate succeeded, and the guest is still at the source")
	}
	p.goOn(t, err)
}

// goOn checks that the outcome is true, and that a guest that is still at the source continues there.
func (p *pair) goOn(t *testing.T, err error) {
	t.Helper()
	var failure *MigrateError
	if !errors.As(err, &failure) {
		return
	}
	state := p.source.domain(t, p.spec.UID).State
	want := map[Outcome]State{OutcomeRunning: StateRunning, OutcomePaused: StatePaused, OutcomeGone: StateGone}[failure.Outcome]
	if state != want {
		t.Errorf("the outcome was %q, and the guest is %v", failure.Outcome, state)
	}
	if state == StateGone {
		return
	}
	ctx := context.Background()
	if err := p.target.driver.Destroy(ctx, p.spec.UID); err != nil {
		t.Error(err)
	}
	if err := p.source.driver.Resume(ctx, p.spec.UID); err != nil {
		t.Error(err)
	}
	p.source.counts(t, p.spec, p.source.count(p.spec)+2)
}

// look returns a short word for the guest's state on a host, from its daemon and its console.
func (p *pair) look(h *testHost) string {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	domains, err := h.driver.List(ctx)
	if err != nil {
		return "unreachable"
	}
	for _, d := range domains {
		if d.UID == p.spec.UID {
			return fmt.Sprintf("%v (%s)", d.State, d.Reason)
		}
	}
	return "none"
}
