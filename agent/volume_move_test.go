package agent

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"watari/agent/volume"
	v1 "watari/api/watariv1"
)

const movedUID = "00000000-0000-4000-8000-000000000001"

// pair are the volume keepers of two hosts, a and b, which reach each other.
type pair struct {
	t       *testing.T
	dir     string
	keepers map[string]*volumeKeeper
	stops   map[string]func()
}

// pairHost is what a keeper needs of its host.
type pairHost struct {
	pair *pair
	name string
}

func (h pairHost) VolumeSocket(guest string) (string, error) {
	return filepath.Join(h.pair.dir, h.name, guest), nil
}

func (h pairHost) QEMUUser() (volume.User, bool) { return volume.User{}, true }

func (h pairHost) Carry(ctx context.Context, local net.Conn, from *v1.BlobPeer, key string) error {
	socket, may, err := h.pair.keepers[from.Name].reader(h.name, "uid-"+h.name, key)
	if err != nil {
		return err
	}
	remote, err := net.Dial("unix", socket)
	if err != nil {
		return err
	}
	for _, until := range []context.Context{ctx, may} {
		stop := context.AfterFunc(until, func() { local.Close(); remote.Close() })
		defer stop()
	}
	return carryBoth(local, remote)
}

func newPair(t *testing.T) *pair {
	if os.Getuid() != 0 || volume.Missing() != nil {
		t.Skip("needs root, mkfs.ext4, qemu-img and qemu-storage-daemon")
	}
	dir, err := os.MkdirTemp("", "v") // sockets need short paths
	if err != nil {
		t.Fatal(err)
	}
	p := &pair{t: t, dir: dir, keepers: map[string]*volumeKeeper{}, stops: map[string]func(){}}
	t.Cleanup(func() {
		for name, k := range p.keepers {
			p.stops[name]()
			volume.Open(k.folder, k.sockets, movedUID).Stop()
			volume.OpenCopy(k.folder, k.sockets, movedUID).Stop()
		}
		os.RemoveAll(dir)
	})
	p.start("a")
	p.start("b")
	return p
}

// start starts a host's keeper; an earlier one ends.
func (p *pair) start(name string) {
	if stop := p.stops[name]; stop != nil {
		stop()
	}
	ctx, cancel := context.WithCancel(context.Background())
	a := &Agent{ctx: ctx, log: slog.New(slog.DiscardHandler), changed: make(chan struct{}),
		config: Config{Name: name, StateDir: filepath.Join(p.dir, name), RunDir: filepath.Join(p.dir, name, "r"), Volumes: pairHost{p, name}}}
	if err := os.MkdirAll(a.config.StateDir, 0o700); err != nil {
		p.t.Fatal(err)
	}
	k := newVolumeKeeper(a)
	ended := make(chan struct{})
	go func() { k.run(ctx); close(ended) }()
	p.keepers[name] = k
	p.stops[name] = func() { cancel(); <-ended }
}

func (p *pair) order(host string, w *v1.VolumeWanted) {
	w.Uid, w.Readers = movedUID, []*v1.BlobPeer{{Name: "c", Uid: "uid-c"}}
	if w.Facts == nil && w.Drop == "" {
		w.Facts = &v1.VolumeFacts{Name: "data", SizeBytes: 64 << 20, Seal: []byte("seal for " + host)}
		if host == "b" {
			w.Facts.Generation = 1
		}
	}
	p.keepers[host].want(&v1.HostWanted{Volumes: []*v1.VolumeWanted{w}})
}

// sees waits until a host's report of the volume is as wanted.
func (p *pair) sees(host, what string, is func(o *v1.VolumeObserved) bool) *v1.VolumeObserved {
	p.t.Helper()
	var last *v1.VolumeObserved
	for begun := time.Now(); time.Since(begun) < 30*time.Second; time.Sleep(20 * time.Millisecond) {
		last = nil
		if list := p.keepers[host].report(); len(list) > 0 {
			last = list[0]
		}
		if is(last) {
			return last
		}
	}
	p.t.Fatalf("%s: host %s reports %v", what, host, last)
	return nil
}

func (p *pair) refuses(host string) {
	p.t.Helper()
	if _, _, err := p.keepers[host].reader("c", "uid-c", movedUID); err == nil {
		p.t.Errorf("host %s serves the volume", host)
	}
}

// receives makes host b receive a copy, and returns the order to send it.
func (p *pair) receives() *v1.VolumeTransfer {
	p.t.Helper()
	p.order("a", &v1.VolumeWanted{Make: true})
	p.sees("a", "it is made", (*v1.VolumeObserved).GetReady)
	p.order("b", &v1.VolumeWanted{Receive: &v1.VolumeTransfer{Move: "m", Host: &v1.BlobPeer{Name: "a", Uid: "uid-a"}}})
	for begun := time.Now(); ; time.Sleep(20 * time.Millisecond) {
		list := p.keepers["b"].reportCopies()
		if len(list) == 1 && list[0].Ready && list[0].Copy != "" {
			return &v1.VolumeTransfer{Move: "m", Copy: list[0].Copy, Host: &v1.BlobPeer{Name: "b", Uid: "uid-b"}}
		}
		if time.Since(begun) > 30*time.Second {
			p.t.Fatalf("host b reports %v", list)
		}
	}
}

func handOver(w *v1.VolumeTransfer) *v1.VolumeTransfer {
	return &v1.VolumeTransfer{Move: w.Move, Copy: w.Copy, Host: w.Host, HandOver: true}
}

// A volume that was given up is not served any more, even after a restart of the agent with old orders. Only the copy that is
// ordered is taken over.
func TestALaterDiskIsNotDescribedAsAnEarlierOne(t *testing.T) {
	before := volume.Facts{Name: "data", Generation: 3, Seal: []byte("three")}
	for generation, want := range map[uint64]string{1: "three", 3: "new", 4: "new"} {
		facts, changed := reseal(before, &v1.VolumeFacts{Name: "data", Generation: generation, Seal: []byte("new")})
		if string(facts.Seal) != want || facts.Generation != max(generation, 3) || changed != (want == "new") {
			t.Errorf("described as of generation %d: %+v, changed %v", generation, facts, changed)
		}
	}
}

func TestAVolumeIsHandedOver(t *testing.T) {
	p := newPair(t)
	send := p.receives()
	if list := p.keepers["b"].report(); len(list) > 0 {
		t.Errorf("a copy counts as a volume: %v", list)
	}
	if _, _, err := p.keepers["b"].reader("c", "uid-c", movedUID); err == nil {
		t.Error("a guest may use a copy")
	}
	for _, key := range []string{movedUID + "/m/" + send.Copy + "x", movedUID + "/n/" + send.Copy, movedUID + "/m"} {
		if _, _, err := p.keepers["b"].reader("a", "uid-a", key); err == nil {
			t.Errorf("host a may write to %s", key)
		}
	}
	if _, _, err := p.keepers["b"].reader("c", "uid-c", movedUID+"/m/"+send.Copy); err == nil {
		t.Error("another host may write to the copy")
	}
	p.order("a", &v1.VolumeWanted{Send: send})
	ready := func(o *v1.VolumeObserved) bool { return o.GetSending().GetReady() }
	p.sees("a", "it is copied", ready)
	socket, may, err := p.keepers["a"].reader("c", "uid-c", movedUID)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("qemu-io", "-f", "raw", "-c", "write -P 7 32M 1M", "nbd+unix:///volume?socket="+socket).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p.start("b") // it has the same copy
	p.sees("a", "the copy fails with the connection", func(o *v1.VolumeObserved) bool { return o.GetSending().GetMessage() != "" })
	p.start("a")
	p.sees("a", "it is copied again", ready)
	socket, may, err = p.keepers["a"].reader("c", "uid-c", movedUID)
	if err != nil {
		t.Fatal(err, socket)
	}
	p.order("a", &v1.VolumeWanted{Send: handOver(send)})
	o := p.sees("a", "it is given up", func(o *v1.VolumeObserved) bool { return o.GetGivenUp() != nil })
	if g := o.GivenUp; o.Ready || o.Sending != nil || g.Move != "m" || g.Copy != send.Copy || g.Target != "b" || g.TargetUid != "uid-b" {
		t.Errorf("host a reports %v", o)
	}
	if may.Err() == nil {
		t.Error("a guest's connection to a volume that was given up goes on")
	}
	p.start("a")
	for _, w := range []*v1.VolumeWanted{{}, {TakeBack: "n"}, {Send: handOver(send)}} {
		p.order("a", w)
		p.sees("a", "it is not served", func(o *v1.VolumeObserved) bool { return strings.Contains(o.GetMessage(), "given up to host b") })
		p.refuses("a")
	}
	p.order("b", &v1.VolumeWanted{Adopt: &v1.VolumeAdoption{Copy: "another"}})
	o = p.sees("b", "another copy is not there", func(o *v1.VolumeObserved) bool { return strings.Contains(o.GetMessage(), "is missing") })
	if o.Ready || o.Facts.Generation != 0 || len(o.Facts.Seal) > 0 {
		t.Errorf("host b reports %v", o)
	}
	p.order("b", &v1.VolumeWanted{Adopt: &v1.VolumeAdoption{Copy: send.Copy, Restored: []string{"r"}}})
	o = p.sees("b", "it is taken over", (*v1.VolumeObserved).GetReady)
	if o.Facts.Generation != 1 || o.Restored != "r" || len(p.keepers["b"].reportCopies()) > 0 {
		t.Errorf("host b reports %v", o)
	}
	p.start("b")
	p.sees("b", "it is served after a restart", (*v1.VolumeObserved).GetReady)
	socket, _, err = p.keepers["b"].reader("c", "uid-c", movedUID)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("qemu-io", "-f", "raw", "-c", "read -P 7 32M 1M", "nbd+unix:///volume?socket="+socket).CombinedOutput(); err != nil || strings.Contains(string(out), "failed") {
		t.Errorf("%v: %s", err, out)
	}
}

// A volume is served again after a hand-over that could not be recorded, and after one that was in vain. Its copy is deleted.
func TestAVolumeIsTakenBack(t *testing.T) {
	p := newPair(t)
	send := p.receives()
	record := filepath.Join(p.keepers["a"].folder, movedUID, "volume.json")
	if err := errors.Join(os.Remove(record), os.Mkdir(record, 0o700)); err != nil { // it cannot be written
		t.Fatal(err)
	}
	p.order("a", &v1.VolumeWanted{Send: handOver(send)})
	o := p.sees("a", "it is not served", func(o *v1.VolumeObserved) bool { return strings.Contains(o.GetMessage(), "record that the volume was") })
	if o.Ready || o.GivenUp != nil || !o.Sending.GetHandsOver() {
		t.Errorf("host a reports %v", o)
	}
	p.refuses("a")
	p.order("a", &v1.VolumeWanted{Send: send})
	if err := os.Remove(record); err != nil {
		t.Fatal(err)
	}
	p.sees("a", "it is served again", func(o *v1.VolumeObserved) bool { return o.GetReady() && !o.Sending.GetHandsOver() })
	p.sees("a", "it is copied again", func(o *v1.VolumeObserved) bool { return o.GetReady() && o.Sending.GetReady() })
	p.order("a", &v1.VolumeWanted{Send: handOver(send)})
	p.sees("a", "it is given up", func(o *v1.VolumeObserved) bool { return o.GetGivenUp() != nil })
	p.order("b", &v1.VolumeWanted{Drop: "another"})
	p.order("b", &v1.VolumeWanted{Drop: send.Copy})
	for begun := time.Now(); len(p.keepers["b"].reportCopies()) > 0; time.Sleep(20 * time.Millisecond) {
		if time.Since(begun) > 30*time.Second {
			t.Fatal("the copy is not deleted")
		}
	}
	if left, err := os.ReadDir(p.keepers["b"].folder); err != nil || len(left) > 0 {
		t.Errorf("left are %v, %v", left, err)
	}
	p.order("a", &v1.VolumeWanted{TakeBack: "m"})
	p.sees("a", "it is taken back", (*v1.VolumeObserved).GetReady)
	p.start("a")
	p.sees("a", "it stays taken back", (*v1.VolumeObserved).GetReady)
}
