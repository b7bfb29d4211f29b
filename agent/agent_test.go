package agent

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"connectrpc.com/connect"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

const uid = "00000000-0000-4000-8000-000000000001"

func guestWish(uid string, role v1.GuestRole, epoch uint64) *v1.GuestWanted {
	w := &v1.GuestWanted{Uid: uid, Name: "md-" + uid[len(uid)-1:], Cluster: "md", Role: role, Epoch: epoch, NoFork: true,
		Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 256 << 20}, Image: &v1.Image{Digest: "sha256:1"},
		Identity: &v1.Identity{GuestUid: uid, Epoch: epoch, Address: "10.77.0.1"}}
	if role == incoming || role == outgoing {
		w.Migration = &v1.MigrationOrder{Id: "m", SourceHost: "there", TargetHost: "elsewhere"}
	}
	return w
}

var generation uint64

// take gives the agent orders of term 1.
func (o *outside) take(guests ...*v1.GuestWanted) {
	o.t.Helper()
	generation++
	w := &v1.HostWanted{Term: 1, Generation: generation, Guests: guests, Network: &v1.NetworkWanted{Generation: generation}}
	if err := o.agent.Take(w); err != nil {
		o.t.Fatal(err)
	}
}

func (o *outside) awaitReady(epoch uint64) {
	o.t.Helper()
	o.await("ready", func(h *v1.HostObserved) bool {
		g := find(h, uid)
		return g != nil && g.Ready && g.Epoch == epoch
	})
}

func TestAGuestIsStartedIdentifiedAndEnded(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	if o.identity.GetGuestUid() != uid || len(o.identity.GetEntropy()) != 64 {
		t.Errorf("identity: %v", o.identity)
	}
	at := func(what string) int { return slices.Index(o.log, what) }
	if at("plug "+uid) > at("route "+uid) || at("route "+uid) > at("boot "+uid) || at("plug "+uid) < 0 {
		t.Errorf("out of order: %v", o.log)
	}
	o.take(guestWish(uid, absent, 1))
	o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && h.Generation == generation })
	if o.state(uid) != domain.Absent || o.count("unplug "+uid) == 0 {
		t.Errorf("left: %v", o.log)
	}
	// The epoch is used up, even for another order.
	o.take(guestWish(uid, run, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
	if o.count("boot "+uid) != 1 {
		t.Errorf("an epoch was started twice: %v", o.log)
	}
	before := o.identity.GetEntropy()
	o.take(guestWish(uid, run, 2))
	o.awaitReady(2)
	if bytes.Equal(before, o.identity.GetEntropy()) {
		t.Error("two starts have the same random bytes")
	}
}

func TestAGuestAgentThatCannotMountStorageIsNamed(t *testing.T) {
	o := newOutside(t)
	o.start()
	wish := guestWish(uid, run, 1)
	wish.Identity.Mounts = []*v1.StorageMount{{Server: "nfs.lab", Port: 2049, Path: "/data", At: "/data", GatewayPort: 7200}}
	o.take(wish)
	o.await("the reason", func(h *v1.HostObserved) bool {
		g := find(h, uid)
		return g != nil && !g.Ready && g.Step == tooOldToMount
	})
	if o.identity != nil {
		t.Error("it was given an identity that it cannot fulfil")
	}
}

func TestAGuestThatEndsIsGoneAndNotStartedAgain(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.becomes(uid, domain.Absent)
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
	o.take(guestWish(uid, run, 1))
	o.await("taken up", func(h *v1.HostObserved) bool { return h.Generation == generation })
	if o.count("boot "+uid) != 1 {
		t.Errorf("started again: %v", o.log)
	}
}

// QEMU stops a guest at an internal error, also after a move. It can only reset the guest, so the guest counts as ended.
func TestAGuestThatCanNeverContinueIsEnded(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.mu.Lock()
	o.broken, o.ending = uid, domain.End{How: "something on the host told its QEMU to end", Said: []string{"terminating on signal 15"}}
	o.mu.Unlock()
	o.becomes(uid, domain.Paused)
	o.await("its end", func(h *v1.HostObserved) bool {
		g := find(h, uid)
		return g.GetCondition() == v1.GuestCondition_GUEST_CONDITION_GONE && strings.Contains(g.GetMessage(), errReset.Error()) && !strings.Contains(g.GetMessage(), o.ending.How) && g.Broken
	})
	if o.count("resume "+uid) != 1 || o.count("destroy "+uid) != 1 {
		t.Errorf("it was resumed and ended so: %v", o.log)
	}
}

func TestANewAgentLeavesRunningGuestsAlone(t *testing.T) {
	o := newOutside(t)
	stop := o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	stop()
	before := len(o.applied)
	o.start()
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_RUNNING)
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	for _, local := range o.applied[before:] {
		if !slices.Equal(local, []string{uid}) {
			t.Errorf("its route was taken away: %v", o.applied[before:])
		}
	}
	if o.count("boot "+uid) != 1 || o.count("destroy "+uid) != 0 || o.count("resume "+uid) != 0 {
		t.Errorf("it was touched: %v", o.log)
	}
}

func TestACrashBetweenTapAndRecordLeavesNoTap(t *testing.T) {
	o := newOutside(t)
	o.start()()
	const recorded, running = "recorded", "running"
	if err := NewRecordStore(filepath.Join(o.dir, "state", "guests")).Save(&machine.Record{UID: recorded, Name: "md-2", Epoch: 1, Phase: machine.PhaseReserved}, false); err != nil {
		t.Fatal(err)
	}
	template := templateUID("key")
	mark := filepath.Join(o.dir, "state", "templates", template+".making")
	if err := errors.Join(os.MkdirAll(filepath.Dir(mark), 0o755), os.WriteFile(mark, []byte("key\n"), 0o644)); err != nil {
		t.Fatal(err)
	}
	o.domains[running] = domain.Running
	o.plugged = []string{uid, recorded, running, template}
	o.down = true // then it is not known whose taps are in use
	o.start()()
	if o.count("unplug "+uid) != 0 {
		t.Errorf("the hypervisor did not answer. Done: %v", o.log)
	}
	o.down = false
	o.start()
	if o.count("unplug "+uid) != 1 || o.count("unplug "+recorded) != 0 || o.count("unplug "+running) != 0 || o.count("unplug "+template) > 1 {
		t.Errorf("done: %v", o.log)
	}
}

func TestACrashBetweenRecordAndStartUsesTheEpochUp(t *testing.T) {
	o := newOutside(t)
	o.start()()
	store := NewRecordStore(filepath.Join(o.dir, "state", "guests"))
	if err := store.Save(&machine.Record{UID: uid, Name: "md-1", Epoch: 1, Phase: machine.PhaseStarted}, false); err != nil {
		t.Fatal(err)
	}
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
	if o.count("boot "+uid) != 0 {
		t.Errorf("started: %v", o.log)
	}
}

func TestAStaleCopyIsEndedBeforeANewerEpochIsStarted(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.take(guestWish(uid, run, 3))
	o.awaitReady(3)
	if d, b := slices.Index(o.log, "destroy "+uid), o.count("boot "+uid); d < 0 || b != 2 {
		t.Errorf("done: %v", o.log)
	}
	// Late orders of the older epoch.
	o.take(guestWish(uid, run, 1))
	o.await("a problem", func(h *v1.HostObserved) bool {
		return slices.ContainsFunc(h.Problems, func(p string) bool { return strings.Contains(p, "epoch 3 is known here") })
	})
	o.take(guestWish(uid, absent, 2))
	o.await("taken up", func(h *v1.HostObserved) bool { return h.Generation == generation })
	if o.state(uid) != domain.Running {
		t.Error("a newer epoch was ended by an older one's order")
	}
}

// libvirt may create a domain after all callers have given up.
func TestADomainThatComesLateIsEnded(t *testing.T) {
	o := newOutside(t)
	o.boot = func(context.Context, domain.Spec) error { return domain.ErrUnavailable }
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
	o.take(guestWish(uid, absent, 1))
	o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && h.Generation == generation })
	o.take()
	o.await("nobody speaks of it", func(*v1.HostObserved) bool { return o.agent.guest(uid) == nil })
	o.becomes(uid, domain.Running)
	o.await("its end", func(*v1.HostObserved) bool { return o.count("destroy "+uid) == 1 })
}

func TestAProcessThatTheHypervisorLostIsEndedOnlyByOrder(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	process := exec.Command("sleep", "60")
	if err := process.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { process.Wait(); close(ended) }()
	t.Cleanup(func() { process.Process.Kill() })
	o.mu.Lock()
	o.pids = func() []int {
		select {
		case <-ended:
			return nil
		default:
			return []int{process.Process.Pid}
		}
	}
	o.mu.Unlock()
	o.becomes(uid, domain.Absent)
	o.await("a problem", func(h *v1.HostObserved) bool {
		return strings.Contains(strings.Join(h.Problems, ";"), fmt.Sprintf("its process %d is there", process.Process.Pid))
	})
	select {
	case <-ended:
		t.Error("a guest that may well run was ended")
	default:
	}
	o.take(guestWish(uid, absent, 1))
	o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && h.Generation == generation })
}

func TestForgottenRecordsGoWhileTheAgentLives(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1), guestWish(secondUID, run, 1))
	o.awaitAllReady(2)
	o.take(guestWish(uid, absent, 1), guestWish(secondUID, absent, 1))
	o.await("nothing of them", func(h *v1.HostObserved) bool { return len(h.Guests) == 0 && h.Generation == generation })
	o.take(guestWish(secondUID, absent, 1))
	kept := func(uid string) bool { r, err := o.agent.records.read(uid); return r != nil && err == nil }
	o.agent.clearRecords()
	if !kept(uid) || !kept(secondUID) {
		t.Error("a record went before its time")
	}
	o.agent.records.Now = func() time.Time { return time.Now().Add(2 * keepForgotten) }
	o.agent.clearRecords()
	if kept(uid) || !kept(secondUID) {
		t.Errorf("kept: the forgotten one %v, the mentioned one %v", kept(uid), kept(secondUID))
	}
}

func TestADamagedRecordIsToldAndItsEpochUsedUp(t *testing.T) {
	o := newOutside(t)
	o.start()()
	path := filepath.Join(o.dir, "state", "guests", uid, "record.json")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.start()
	if h, _ := o.agent.Observed(); !strings.Contains(strings.Join(h.Problems, ";"), "record.json is damaged") {
		t.Errorf("problems %q", h.Problems)
	}
	o.take(guestWish(uid, run, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
	if o.count("boot "+uid) != 0 {
		t.Errorf("started: %v", o.log)
	}
}

func TestAnOlderTermIsRefused(t *testing.T) {
	o := newOutside(t)
	stop := o.start()
	if err := o.agent.Take(&v1.HostWanted{Term: 7, Generation: 1}); err != nil {
		t.Fatal(err)
	}
	stop()
	o.start()
	if err := o.agent.Take(&v1.HostWanted{Term: 6, Generation: 9, Guests: []*v1.GuestWanted{guestWish(uid, run, 1)}}); err == nil {
		t.Error("an older manager's orders were taken")
	}
}

func TestABootThatFailsIsFailed(t *testing.T) {
	o := newOutside(t)
	o.boot = func(context.Context, domain.Spec) error { return errors.New("no such machine") }
	o.start()
	o.take(guestWish(uid, run, 1))
	g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_FAILED)
	if !strings.Contains(g.Message, "no such machine") {
		t.Errorf("message: %q", g.Message)
	}
	o.boot = func(context.Context, domain.Spec) error { return domain.ErrUnavailable }
	o.take(guestWish(uid, run, 2))
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_GONE)
}

func TestAFullDiskRefusesTheStart(t *testing.T) {
	o := newOutside(t)
	o.start()
	write := o.agent.records.Write
	o.agent.records.Write = func(path string, data []byte) error {
		if _, err := os.Stat(o.agent.records.ballast()); err == nil {
			return syscall.ENOSPC
		}
		return write(path, data)
	}
	o.take(guestWish(uid, run, 1))
	g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_FAILED)
	if !strings.Contains(g.Message, "no space left") || o.count("boot "+uid) != 0 {
		t.Errorf("message %q, done %v", g.Message, o.log)
	}
	o.agent.records.Write = write
	o.take(guestWish(uid, run, 2))
	o.awaitReady(2)
}

// The disk accepts no record, not even in the reserved space.
func TestAFailureThatTheDiskRefusesIsReportedFromMemory(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take()
	o.await("taken up", func(h *v1.HostObserved) bool { return h.Generation == generation })
	var full atomic.Bool
	full.Store(true)
	write := o.agent.records.Write
	o.agent.records.Write = func(path string, data []byte) error {
		if full.Load() {
			return syscall.ENOSPC
		}
		return write(path, data)
	}
	o.take(guestWish(uid, run, 1))
	g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_FAILED)
	if !strings.Contains(g.Message, "takes no record of that") {
		t.Errorf("message %q", g.Message)
	}
	full.Store(false)
	o.await("the record", func(*v1.HostObserved) bool {
		r, err := o.agent.records.read(uid)
		return err == nil && r != nil && r.Outcome == machine.OutcomeFailed
	})
	if o.count("boot "+uid) != 0 {
		t.Errorf("done: %v", o.log)
	}
}

func TestAHostThatDoesNotConfineGuestsRefusesTheStart(t *testing.T) {
	for _, test := range []struct {
		name        string
		confinement *v1.Confinement
		role        v1.GuestRole
		reason      string
	}{
		{"as root", &v1.Confinement{User: "root", SecurityModel: "apparmor"}, run, "QEMU runs as root"},
		{"without a security driver", &v1.Confinement{User: "libvirt-qemu"}, run, "no security driver"},
		{"a guest that moves here", &v1.Confinement{User: "libvirt-qemu"}, incoming, "no security driver"},
	} {
		t.Run(test.name, func(t *testing.T) {
			o := newOutside(t)
			o.confinement = test.confinement
			o.start()
			o.take(guestWish(uid, test.role, 1))
			g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_FAILED)
			if !strings.Contains(g.Message, test.reason) || o.count("boot "+uid) != 0 || len(o.expected) > 0 {
				t.Errorf("message %q, done %v, expected %v", g.Message, o.log, o.expected)
			}
			o.agent.config.AllowUnconfined = true
			o.take(guestWish(uid, run, 2))
			o.awaitReady(2)
		})
	}
}

// A guest that has broken out of its QEMU may have altered the image, so it is checked again before each guest that reads it.
func TestTheImageIsCheckedBeforeEachStart(t *testing.T) {
	o := newOutside(t)
	o.start()
	const check, other = "ensure sha256:1", "00000000-0000-4000-8000-000000000002"
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.becomes(uid, domain.Absent)
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
	o.take(guestWish(uid, run, 2))
	o.awaitReady(2)
	o.template = "key" // which is made, and not checked: its guests are
	o.take(forkedWish(uid, 3))
	o.awaitReady(3)
	o.take(forkedWish(uid, 3), guestWish(other, incoming, 1))
	o.awaitCondition(other, 1, v1.GuestCondition_GUEST_CONDITION_RESERVED)
	o.mu.Lock()
	defer o.mu.Unlock()
	var starts []string
	for _, done := range o.log {
		if done == check || strings.HasPrefix(done, "boot ") || strings.HasPrefix(done, "fork ") {
			starts = append(starts, done)
		}
	}
	want := []string{check, "boot " + uid, check, "boot " + uid, check, "boot " + templateUID("key"), "fork " + uid, check}
	if !slices.Equal(starts, want) {
		t.Errorf("done %v, not %v", starts, want)
	}
}

func TestAFullDiskRefusesTheImage(t *testing.T) {
	o := newOutside(t)
	o.ensure = func(context.Context) error { return fmt.Errorf("fetch it: %w", syscall.ENOSPC) }
	o.start()
	o.take(guestWish(uid, incoming, 1))
	g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_FAILED)
	if !strings.Contains(g.Message, "no space left") {
		t.Errorf("message %q", g.Message)
	}
}

func TestVitalRecordsFindSpaceOnAFullDisk(t *testing.T) {
	s := NewRecordStore(t.TempDir())
	if err := s.SetAside(); err != nil {
		t.Fatal(err)
	}
	s.Write = func(path string, data []byte) error {
		if _, err := os.Stat(s.ballast()); err == nil {
			return syscall.ENOSPC
		}
		return writeFile(path, data)
	}
	r := &machine.Record{UID: uid, Epoch: 1, Phase: machine.PhaseStarted}
	if err := s.Save(r, false); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a new start's record: %v", err)
	}
	if err := s.Save(r, true); err != nil {
		t.Errorf("a vital record: %v", err)
	}
}

// A record that cannot be read affects only its own guest, and is no reason to end that guest.
func TestARecordThatCannotBeReadConcernsItsGuestAlone(t *testing.T) {
	o := newOutside(t)
	o.start()()
	store := NewRecordStore(filepath.Join(o.dir, "state", "guests"))
	if err := store.Save(&machine.Record{UID: uid, Name: "md-1", Epoch: 1, Phase: machine.PhaseStarted}, false); err != nil {
		t.Fatal(err)
	}
	aside := filepath.Join(o.dir, "aside")
	if err := errors.Join(os.Rename(store.path(uid), aside), os.Mkdir(store.path(uid), 0o755)); err != nil {
		t.Fatal(err) // for root, too, reading a folder fails
	}
	o.mu.Lock()
	o.domains[uid] = domain.Running
	o.mu.Unlock()
	o.start()
	const other = "00000000-0000-4000-8000-000000000002"
	o.take(guestWish(uid, run, 1), guestWish(other, run, 1))
	h := o.await("the other guest runs", func(h *v1.HostObserved) bool {
		g := find(h, other)
		return g != nil && g.Ready && h.Generation == generation
	})
	if g := find(h, uid); g == nil || g.Epoch != 0 || !strings.Contains(g.Message, "cannot be read now") ||
		!slices.ContainsFunc(h.Problems, func(p string) bool { return strings.Contains(p, "cannot be read now") }) {
		t.Errorf("of the guest whose record cannot be read: %v, %v", g, h.Problems)
	}
	if err := errors.Join(os.Remove(store.path(uid)), os.Rename(aside, store.path(uid))); err != nil {
		t.Fatal(err)
	}
	o.awaitReady(1)
	if n := o.count("boot "+uid) + o.count("destroy "+uid); n != 0 {
		t.Errorf("touched: %v", o.log)
	}
}

func TestASlowGuestDelaysNoOther(t *testing.T) {
	const other = "00000000-0000-4000-8000-000000000002"
	o := newOutside(t)
	release := make(chan struct{})
	o.boot = func(_ context.Context, s domain.Spec) error {
		if s.UID == other {
			<-release
		}
		return nil
	}
	defer close(release)
	o.start()
	slow := guestWish(other, run, 1)
	o.take(slow)
	o.await("booting", func(h *v1.HostObserved) bool { return find(h, other).GetStep() == "booting" })
	o.take(slow, guestWish(uid, run, 1))
	o.awaitReady(1)
}

func TestAFetchThatFailsIsTriedAgain(t *testing.T) {
	o := newOutside(t)
	failing := true
	o.ensure = func(context.Context) error {
		o.mu.Lock()
		defer o.mu.Unlock()
		if failing {
			failing = false
			return errors.New("disk full")
		}
		return nil
	}
	o.start()
	o.take(guestWish(uid, run, 1))
	o.await("its reason", func(h *v1.HostObserved) bool { return strings.Contains(find(h, uid).GetMessage(), "disk full") })
	o.awaitReady(1)
}

func TestAbsentInterruptsAFetch(t *testing.T) {
	o := newOutside(t)
	o.ensure = func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
	o.start()
	o.take(guestWish(uid, run, 1))
	o.await("fetching", func(h *v1.HostObserved) bool { return strings.Contains(find(h, uid).GetStep(), "fetching") })
	o.take(guestWish(uid, absent, 1))
	o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && h.Generation == generation })
	if o.count("boot "+uid) != 0 {
		t.Error("booted")
	}
}

func TestNothingIsConcludedWhileTheHypervisorIsAway(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.mu.Lock()
	o.down = true
	o.mu.Unlock()
	o.events <- domain.Event{Lost: true}
	o.await("a problem", func(h *v1.HostObserved) bool {
		return slices.ContainsFunc(h.Problems, func(p string) bool { return strings.Contains(p, "cannot be reached") })
	})
	if g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_RUNNING); g == nil {
		t.Error("not reported")
	}
	o.take(guestWish(uid, absent, 1))
	if h, _ := o.agent.Observed(); h.Generation == generation {
		t.Error("an order counts as taken up that could not be followed")
	}
	o.mu.Lock()
	o.down = false
	o.mu.Unlock()
	o.events <- domain.Event{}
	o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && h.Generation == generation })
}

func TestAGuestOfWhichOnlyTheRecordIsLeftGoesOnWhenTheHypervisorAnswers(t *testing.T) {
	o := newOutside(t)
	stop := o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	stop()
	o.mu.Lock()
	o.down = true
	delete(o.domains, uid)
	o.mu.Unlock()
	o.start()
	o.take(guestWish(uid, run, 2))
	o.mu.Lock()
	o.down = false
	o.mu.Unlock()
	o.events <- domain.Event{}
	o.awaitReady(2)
}

func TestAnAgentThatStartsWithoutTheHypervisorSaysSoAndGoesOnOnceItAnswers(t *testing.T) {
	const known, unknown = uid, "00000000-0000-4000-8000-000000000002"
	o := newOutside(t)
	o.start()()
	store := NewRecordStore(filepath.Join(o.dir, "state", "guests"))
	if err := store.Save(&machine.Record{UID: known, Name: "md-1", Epoch: 1, Phase: machine.PhaseStarted}, false); err != nil {
		t.Fatal(err)
	}
	template := filepath.Join(o.dir, "state", "templates", "key.save")
	if err := os.MkdirAll(filepath.Dir(template), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(template, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	o.mu.Lock()
	o.down = true
	o.domains[known], o.domains[unknown] = domain.Running, domain.Running
	o.mu.Unlock()
	o.start()
	o.take(guestWish(known, run, 1))
	h := o.await("why", func(h *v1.HostObserved) bool {
		return slices.ContainsFunc(h.Problems, func(p string) bool {
			return strings.Contains(p, "libvirt cannot be reached") && strings.Contains(p, "it is down")
		})
	})
	if g := find(h, known); g.GetCondition() != v1.GuestCondition_GUEST_CONDITION_RUNNING || h.Generation == generation || h.Info.LibvirtVersion != "" {
		t.Errorf("concluded from nothing: %v", h)
	}
	if _, err := os.Stat(template); err != nil {
		t.Errorf("a template was judged by versions that are not known: %v", err)
	}
	o.mu.Lock()
	o.down = false
	o.mu.Unlock()
	o.events <- domain.Event{}
	o.await("all that is here", func(h *v1.HostObserved) bool {
		return find(h, known).GetReady() && find(h, unknown) != nil && h.Generation == generation &&
			h.Info.LibvirtVersion == "9" && h.Info.QemuVersion == "7" && len(h.Problems) == 0
	})
	if o.count("boot "+known)+o.count("destroy "+known)+o.count("destroy "+unknown) != 0 {
		t.Errorf("touched: %v", o.log)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(template); errors.Is(err, os.ErrNotExist) {
			break // the guest has no description
		}
		if time.Now().After(end) {
			t.Fatal("what a crash left of templates is not cleaned up")
		}
	}
}

func TestProblemsOfTheNetworkAreReported(t *testing.T) {
	o := newOutside(t)
	o.networkProblems = []string{"another filter drops packets"}
	o.start()
	if h, _ := o.agent.Observed(); !slices.Contains(h.Problems, "network: another filter drops packets") {
		t.Errorf("problems %q", h.Problems)
	}
}

func TestAFollowedConsoleEndsWhenTheGuestIsGone(t *testing.T) {
	o := newOutside(t)
	o.start()
	path := filepath.Join(o.agent.records.GuestDir(uid), "console.log")
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("booting"), 0o600); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(o.agent.Handler())
	defer server.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	stream, err := watariv1connect.NewAgentServiceClient(server.Client(), server.URL).Console(ctx,
		connect.NewRequest(&v1.ConsoleRequest{GuestUid: uid, Follow: true}))
	if err != nil {
		t.Fatal(err)
	}
	if !stream.Receive() || string(stream.Msg().Data) != "booting" {
		t.Fatal(stream.Msg(), stream.Err())
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if stream.Receive() || stream.Err() != nil {
		t.Fatal(stream.Msg(), stream.Err())
	}
}
