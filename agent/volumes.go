package agent

// volumes.go - the host's volumes, and the sockets at which this host's guests reach theirs, here or on another host.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"

	"watari/agent/volume"
	v1 "watari/api/watariv1"
	"watari/internal/durable"
	"watari/internal/protocol"
)

// VolumeHost is the part of the hypervisor and of the tunnels that volumes need.
type VolumeHost interface {
	// VolumeSocket returns the path of the socket at which QEMU expects a guest's volume. It makes the socket's folder.
	VolumeSocket(guest string) (string, error)
	// QEMUUser returns the user that QEMU runs as; known is false until the hypervisor has answered.
	QEMUUser() (user volume.User, known bool)
	// Carry forwards a connection to a volume of another host, until either end closes it or ctx ends.
	Carry(ctx context.Context, local net.Conn, from *v1.BlobPeer, uid string) error
}

const (
	// volumeCheck is how often the agent checks that volumes are served.
	volumeCheck = time.Second
	// failedAfter is how long tries fail before the manager is told to ask another host, if it can.
	failedAfter = time.Minute
	// syncTime is how long a guest may take to write its home to its volume before the guest ends.
	syncTime = 20 * time.Second
	// ordersFile keeps the orders about volumes. So guests have their volumes after a restart of the agent, even while the
	// manager is away.
	ordersFile = "volume-orders"
)

var (
	// errFetching says why a volume is not put back yet.
	errFetching = errors.New("its checkpoint is being fetched")
	// errLater says why a volume is not put back: the order is from before this host's disk, so the manager works with an older copy of
	// its state. No other host is asked to put the volume back instead.
	errLater = errors.New("this host has a later disk than the manager knows")
)

// tries is how the tries to have a disk as it is ordered have ended.
type tries struct {
	message string    // why the last one has failed; empty: it has not
	failing time.Time // since when all have failed; zero: the last one has not, or has only to wait
	failed  bool      // the last one has, and all for failedAfter
}

// note notes the end of a try.
func (t *tries) note(err error) {
	*t = tries{failing: t.failing}
	if err != nil {
		t.message = err.Error()
	}
	switch {
	case err == nil || errors.Is(err, errFetching) || errors.Is(err, errLater) || errors.Is(err, errGivenUp):
		t.failing = time.Time{}
	case t.failing.IsZero():
		t.failing = time.Now()
	default:
		t.failed = time.Since(t.failing) >= failedAfter
	}
}

// heldVolume is a volume of this host.
type heldVolume struct {
	facts volume.Facts
	ready bool
	tries
	restore string // id of the restore that the tries were about
	working bool
	used    uint64
	sending *sending // the disk is being copied to another host; nil: it is not
}

// guestVolume is the socket of one guest of this host.
type guestVolume struct {
	source   *v1.VolumeSource
	listener net.Listener
	cancel   context.CancelFunc
}

// volumeKeeper carries out the manager's orders about volumes.
type volumeKeeper struct {
	agent   *Agent
	host    VolumeHost
	folder  string // with the disks
	sockets string // with the daemons' sockets
	log     *slog.Logger
	wake    chan struct{}
	able    bool // the host has the programs that volumes need

	mu      sync.Mutex
	orders  *v1.HostWanted // only its part about volumes
	unsaved bool           // orders are not on disk
	held    map[string]*heldVolume
	copies  map[string]*heldCopy           // by volume's uid
	guests  map[string]*guestVolume        // by guest's uid
	ending  map[string]bool                // guests that the manager has ordered to end
	readers map[string]map[string]*allowed // by volume's uid, or copyKey, and host's name
}

// allowed is a host that may use a volume.
type allowed struct {
	uid    string // the host's
	ctx    context.Context
	cancel context.CancelFunc
}

// VolumeFolders returns the folders of an agent's volumes and of the sockets of their daemons.
func VolumeFolders(state, run string) (disks, sockets string) {
	return filepath.Join(state, "volumes"), filepath.Join(run, "volumes")
}

func newVolumeKeeper(a *Agent) *volumeKeeper {
	disks, sockets := VolumeFolders(a.config.StateDir, a.config.RunDir)
	k := &volumeKeeper{agent: a, host: a.config.Volumes, folder: disks, sockets: sockets, log: a.log,
		wake: make(chan struct{}, 1), orders: &v1.HostWanted{}, held: map[string]*heldVolume{}, copies: map[string]*heldCopy{}, guests: map[string]*guestVolume{}, readers: map[string]map[string]*allowed{}}
	if k.host == nil {
		return k
	}
	if err := volume.Missing(); err != nil {
		k.log.Warn("this host takes no new volumes", "error", err)
	} else {
		k.able = true
	}
	found, err := volume.List(k.folder)
	copies, copiesErr := volume.Copies(k.folder)
	if err = errors.Join(err, copiesErr, volume.Sweep(k.folder)); err != nil {
		k.log.Error("volumes", "error", err)
	}
	for uid, facts := range found {
		k.held[uid] = &heldVolume{facts: facts}
	}
	for uid, facts := range copies {
		k.copies[uid] = &heldCopy{facts: facts}
	}
	if text, err := os.ReadFile(filepath.Join(a.config.StateDir, ordersFile)); err == nil {
		before := &v1.HostWanted{}
		if err := proto.Unmarshal(text, before); err != nil {
			k.log.Error("read the orders about volumes", "error", err)
		} else {
			k.apply(before)
		}
	}
	return k
}

// want takes the manager's orders. It does not wait.
func (k *volumeKeeper) want(w *v1.HostWanted) {
	if k.host == nil {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	part := &v1.HostWanted{Volumes: w.Volumes}
	k.ending = map[string]bool{}
	for _, g := range w.Guests {
		before := slices.IndexFunc(k.orders.Guests, func(before *v1.GuestWanted) bool { return before.Uid == g.Uid })
		switch {
		case g.Volume != nil:
			part.Guests = append(part.Guests, &v1.GuestWanted{Uid: g.Uid, Name: g.Name, Volume: g.Volume})
		case g.Role == v1.GuestRole_GUEST_ROLE_ABSENT && before >= 0: // the guest has its volume until it has ended
			part.Guests = append(part.Guests, k.orders.Guests[before])
			k.ending[g.Uid] = true
		}
	}
	if proto.Equal(part, k.orders) {
		return
	}
	k.save(part)
	k.apply(part)
}

// save keeps orders for the next agent; mu is held. If that fails, step tries again: the next agent would follow older orders.
func (k *volumeKeeper) save(orders *v1.HostWanted) {
	text, err := proto.Marshal(orders)
	if err == nil {
		err = durable.WriteFile(filepath.Join(k.agent.config.StateDir, ordersFile), text, 0o600)
	}
	if err != nil && !k.unsaved {
		k.log.Error("keep the orders about volumes", "error", err)
	}
	k.unsaved = err != nil
}

// apply puts orders in force; mu is held, or no other goroutine knows the keeper yet.
func (k *volumeKeeper) apply(w *v1.HostWanted) {
	k.orders = w
	may := map[string]map[string]bool{}
	admit := func(key string, hosts ...*v1.BlobPeer) {
		may[key] = map[string]bool{}
		for _, r := range hosts {
			may[key][r.Name] = true
			if before := k.readers[key][r.Name]; before != nil && before.uid == r.Uid {
				continue
			} else if before != nil {
				before.cancel()
			}
			if k.readers[key] == nil {
				k.readers[key] = map[string]*allowed{}
			}
			ctx, cancel := context.WithCancel(k.agent.ctx)
			k.readers[key][r.Name] = &allowed{r.Uid, ctx, cancel}
		}
	}
	for _, v := range w.Volumes {
		if !validUID(v.Uid) {
			continue
		}
		if held := k.held[v.Uid]; held != nil && held.restore != v.Restore.GetId() {
			held.tries, held.restore = tries{}, v.Restore.GetId()
		}
		admit(v.Uid, v.Readers...)
		if v.Receive != nil {
			admit(copyKey(v.Uid, v.Receive.Move), v.Receive.Host)
		}
	}
	for uid, hosts := range k.readers {
		for name, host := range hosts {
			if !may[uid][name] {
				host.cancel()
				delete(hosts, name)
			}
		}
	}
	poke(k.wake)
}

// run carries out the orders until ctx ends.
func (k *volumeKeeper) run(ctx context.Context) {
	if k.host == nil {
		return
	}
	tick := time.NewTicker(volumeCheck)
	defer tick.Stop()
	for {
		k.step(ctx)
		select {
		case <-ctx.Done():
			return
		case <-k.wake:
		case <-tick.C:
		}
	}
}

func (k *volumeKeeper) step(ctx context.Context) {
	user, known := k.host.QEMUUser()
	if !known {
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.unsaved {
		k.save(k.orders)
	}
	for _, w := range k.orders.Volumes {
		v := k.held[w.Uid]
		onlyCopy := w.Receive != nil || w.Facts == nil
		if !validUID(w.Uid) || onlyCopy || v != nil && v.working || w.Discard && v == nil {
			continue
		}
		if v == nil {
			v = &heldVolume{facts: volumeFacts(w.Facts), tries: tries{message: "its disk is being made"}, restore: w.Restore.GetId()}
			v.facts.Generation, v.facts.Seal = 0, nil // until there is a disk, this host does not have the volume
			k.held[w.Uid] = v
		}
		v.working = true
		go k.work(ctx, w, v, user)
	}
	k.followCopies(ctx, user)
	wanted := map[string]*v1.VolumeSource{}
	for _, g := range k.orders.Guests {
		wanted[g.Uid] = g.Volume
	}
	for uid, g := range k.guests {
		if !proto.Equal(wanted[uid], g.source) {
			g.close()
			delete(k.guests, uid)
		}
	}
	for _, g := range k.orders.Guests {
		if k.guests[g.Uid] != nil {
			continue
		}
		opened, err := k.open(g)
		if err != nil {
			k.log.Error("a guest's volume", "guest", g.Name, "error", err)
			continue
		}
		k.guests[g.Uid] = opened
	}
}

// work makes, serves or deletes a volume.
func (k *volumeKeeper) work(ctx context.Context, w *v1.VolumeWanted, v *heldVolume, user volume.User) {
	disk := volume.Open(k.folder, k.sockets, w.Uid)
	var err error
	if w.Discard {
		err = discard(w, v, disk)
	} else {
		err = k.follow(ctx, w, v, disk, user)
	}
	if ctx.Err() != nil {
		return
	}
	used := (disk.UsedBytes() + protocol.VolumeStep - 1) / protocol.VolumeStep * protocol.VolumeStep
	k.mu.Lock()
	before := *v
	v.working, v.ready, v.used = false, err == nil && !w.Discard, used
	v.note(err)
	if err == nil && w.Discard {
		delete(k.held, w.Uid)
	}
	changed := before.ready != v.ready || before.message != v.message || before.failed != v.failed || before.used != v.used || k.held[w.Uid] == nil
	k.mu.Unlock()
	if changed {
		k.agent.publish()
	}
}

// discard deletes a volume's disk.
func discard(w *v1.VolumeWanted, v *heldVolume, disk *volume.Disk) error {
	if v.facts.Generation > w.Facts.GetGeneration() {
		return errLater // the order is about an earlier disk; it may be one that an earlier agent has kept
	}
	if v.sending != nil {
		v.sending.stop()
	}
	return disk.Delete()
}

// follow makes a volume's disk as it is ordered to be, and serves it.
func (k *volumeKeeper) follow(ctx context.Context, w *v1.VolumeWanted, v *heldVolume, disk *volume.Disk, user volume.User) error {
	if err := errors.Join(os.MkdirAll(k.folder, 0o711), os.MkdirAll(k.sockets, 0o711)); err != nil {
		return err
	}
	if err := k.find(v, disk); err != nil {
		return err
	}
	if err := k.adopt(w, v); err != nil {
		return err
	}
	if err := k.keepDisk(w, v, disk); err != nil {
		return err
	}
	if w.Restore != nil {
		if err := k.restore(ctx, w, v, user); err != nil {
			return err
		}
	} else if w.Make {
		if err := volume.Create(ctx, k.folder, w.Uid, volumeFacts(w.Facts), user); err != nil {
			return err
		}
		if err := k.find(v, disk); err != nil {
			return err
		}
	}
	if err := disk.Serve(ctx, user); err != nil {
		return err
	}
	if facts, changed := reseal(v.facts, w.Facts); changed {
		if err := volume.Describe(k.folder, w.Uid, facts); err != nil {
			k.log.Warn("what the manager says of a volume is not on disk", "volume", facts.Name, "error", err)
		} else {
			k.mu.Lock()
			v.facts = facts
			k.mu.Unlock()
			k.agent.publish()
		}
	}
	return k.send(ctx, w, v, disk)
}

// find learns of a disk that was made, or that has been there all along, on a file system that was mounted late.
func (k *volumeKeeper) find(v *heldVolume, disk *volume.Disk) error {
	if v.facts.Seal != nil {
		return nil
	}
	facts, err := disk.Facts()
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the description of its disk: %w", err)
	}
	k.mu.Lock()
	v.facts = facts
	k.mu.Unlock()
	return nil
}

// restore puts a volume's disk back to a checkpoint, once for each restore. No guest uses the disk meanwhile: the manager
// names no reader before the host has reported the restore.
func (k *volumeKeeper) restore(ctx context.Context, w *v1.VolumeWanted, v *heldVolume, user volume.User) error {
	switch i := slices.Index(v.facts.Restored, w.Restore.Id); {
	case i >= 0 && i == len(v.facts.Restored)-1:
		return nil
	case w.Facts.GetGeneration() < v.facts.Generation:
		return errLater
	case i >= 0:
		return fmt.Errorf("%w: it was put back to another checkpoint since; restore it again (`watari checkpoint restore`, `watari volume restore`)", errLater)
	}
	k.mu.Lock()
	v.ready = false
	k.mu.Unlock()
	if !k.agent.checkpoints.has(w.Restore, w.Uid) {
		return cmp.Or(k.agent.checkpoints.lacks(w.Restore, w.Uid), errFetching)
	}
	read := func(to string) error { return k.agent.checkpoints.read(ctx, w.Restore, w.Uid, to) }
	wanted := func() error { // reading may have taken minutes
		k.mu.Lock()
		defer k.mu.Unlock()
		if !slices.ContainsFunc(k.orders.Volumes, func(now *v1.VolumeWanted) bool { return now.Uid == w.Uid && now.Restore.GetId() == w.Restore.Id }) {
			return errors.New("it is not to be put back any more")
		}
		return nil
	}
	facts, err := volume.Restore(k.folder, k.sockets, w.Uid, w.Restore.Id, volumeFacts(w.Facts), user, read, wanted)
	if err != nil {
		return err
	}
	k.mu.Lock()
	v.facts = facts
	k.mu.Unlock()
	return nil
}

func volumeFacts(f *v1.VolumeFacts) volume.Facts {
	return volume.Facts{Name: f.GetName(), Owner: f.GetOwner(), OwnerUID: f.GetOwnerUid(), SizeBytes: f.GetSizeBytes(), Generation: f.GetGeneration(),
		Seal: f.GetSeal()}
}

// open listens at the socket of a guest's volume.
func (k *volumeKeeper) open(w *v1.GuestWanted) (*guestVolume, error) {
	path, err := k.host.VolumeSocket(w.Name)
	if err != nil {
		return nil, err
	}
	user, _ := k.host.QEMUUser()
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	listener.(*net.UnixListener).SetUnlinkOnClose(false) // a later guest of the name may have the path then
	if err := errors.Join(os.Chmod(path, 0o600), os.Chown(path, user.UID, user.GID)); err != nil {
		listener.Close()
		return nil, err
	}
	ctx, cancel := context.WithCancel(k.agent.ctx)
	g := &guestVolume{source: w.Volume, listener: listener, cancel: cancel}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go k.carry(ctx, conn, w)
		}
	}()
	return g, nil
}

func (g *guestVolume) close() {
	g.cancel()
	g.listener.Close()
}

// carry forwards QEMU's connection to the volume, on this host or another. QEMU connects again when the connection ends.
func (k *volumeKeeper) carry(ctx context.Context, conn net.Conn, w *v1.GuestWanted) {
	defer conn.Close()
	err := k.carryTo(ctx, conn, w.Volume)
	if ctx.Err() == nil {
		k.log.Info("a guest's connection to its volume has ended", "guest", w.Name, "host", w.Volume.GetHost().GetName(), "error", err)
	}
}

func (k *volumeKeeper) carryTo(ctx context.Context, conn net.Conn, source *v1.VolumeSource) error {
	if source.Host.GetName() != k.agent.config.Name {
		return k.host.Carry(ctx, conn, source.Host, source.Uid)
	}
	socket, may, err := k.reader(k.agent.config.Name, source.Host.GetUid(), source.Uid)
	if err != nil {
		return err
	}
	local, err := new(net.Dialer).DialContext(ctx, "unix", socket)
	if err != nil {
		return err
	}
	defer local.Close()
	for _, until := range []context.Context{ctx, may} {
		stop := context.AfterFunc(until, func() { conn.Close(); local.Close() })
		defer stop()
	}
	return carryBoth(conn, local)
}

// carryBoth copies between two connections in both directions until either ends, and closes both.
func carryBoth(a, b net.Conn) error {
	done := make(chan error, 2)
	for _, way := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, err := io.Copy(way[0], way[1])
			a.Close()
			b.Close()
			done <- err
		}()
	}
	return errors.Join(<-done, <-done)
}

// Reader returns the socket of a volume for a host that may use it, and a context that ends when the host may no longer use
// it.
func (a *Agent) Reader(host, hostUID, uid string) (socket string, may context.Context, err error) {
	return a.volumes.reader(host, hostUID, uid)
}

func (k *volumeKeeper) reader(host, hostUID, uid string) (string, context.Context, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if i := strings.LastIndex(uid, "/"); i >= 0 {
		return k.copyReader(k.readers[uid[:i]][host], host, hostUID, uid)
	}
	r := k.readers[uid][host]
	switch {
	case r == nil || r.uid != hostUID:
		return "", nil, fmt.Errorf("host %s may not use volume %s", host, uid)
	case k.held[uid] == nil || !k.held[uid].ready:
		return "", nil, fmt.Errorf("volume %s is not served yet", uid)
	}
	return volume.Open(k.folder, k.sockets, uid).Socket(), r.ctx, nil
}

// socket returns the path at which a guest's volume is served; empty: the guest has none.
func (k *volumeKeeper) socket(w *v1.GuestWanted) (string, error) {
	if w.Volume == nil {
		return "", nil
	}
	if k.host == nil {
		return "", fmt.Errorf("this host's agent can give no guest a volume")
	}
	return k.host.VolumeSocket(w.Name)
}

// await waits until a guest can reach its volume.
func (k *volumeKeeper) await(ctx context.Context, w *v1.GuestWanted) error {
	for w.Volume != nil {
		k.mu.Lock()
		there := k.guests[w.Uid] != nil
		k.mu.Unlock()
		if there {
			return nil
		}
		poke(k.wake)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
	return nil
}

// sync makes a guest write its home to its volume, if the manager has ordered the guest to end. It waits for syncTime at
// most, because the guest may hang. A guest that ends for another reason, such as its lease, is not synced.
func (k *volumeKeeper) sync(ctx context.Context, g *guest) {
	k.mu.Lock()
	has := k.guests[g.uid] != nil && k.ending[g.uid]
	k.mu.Unlock()
	if !has || !g.identity.answers() {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, syncTime)
	defer cancel()
	g.setStep("writing its home to its volume")
	defer g.setStep("")
	if _, err := g.identity.client.Sync(ctx, connect.NewRequest(&v1.SyncRequest{})); err != nil {
		k.log.Warn("a guest ends without having written its home to its volume", "guest", g.name, "error", err)
	}
}

// report returns the host's volumes.
func (k *volumeKeeper) report() (list []*v1.VolumeObserved) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for uid, v := range k.held {
		o := &v1.VolumeObserved{Uid: uid, Ready: v.ready, UsedBytes: v.used, Message: v.message, Failed: v.failed,
			Facts: &v1.VolumeFacts{Name: v.facts.Name, Owner: v.facts.Owner, OwnerUid: v.facts.OwnerUID, SizeBytes: v.facts.SizeBytes, Generation: v.facts.Generation,
				Seal: v.facts.Seal}}
		if n := len(v.facts.Restored); n > 0 {
			o.Restored = v.facts.Restored[n-1]
		}
		if v.sending != nil {
			o.Sending = v.sending.seen
		}
		if g := v.facts.GivenUp; g != nil {
			o.GivenUp = &v1.VolumeGivenUp{Move: g.Move, Copy: g.Copy, Target: g.Target, TargetUid: g.TargetUID, Restored: v.facts.Restored}
		}
		list = append(list, o)
	}
	slices.SortFunc(list, func(a, b *v1.VolumeObserved) int { return cmp.Compare(a.Uid, b.Uid) })
	return list
}
