package agent

// agent.go - the agent: its configuration, start, end, and periodic work.

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"watari/agent/domain"
	"watari/agent/machine"
	"watari/agent/watchdog"
	v1 "watari/api/watariv1"
)

// keepForgotten is how long the host keeps the record of a forgotten guest.
const keepForgotten = 24 * time.Hour

// Config configures an agent.
type Config struct {
	Name     string // the host's
	StateDir string // /var/lib/watari/agent
	RunDir   string // /run/watari
	Log      *slog.Logger

	// Info is the host's information without the hypervisor's part. The agent adds that part when the hypervisor
	// answers.
	Info *v1.HostInfo
	// Load samples the host's load.
	Load func() *v1.HostLoad
	// Samples returns the latest sample of the host, nil before the first one, and a channel that is closed at the next one.
	Samples func() (*v1.HostSample, <-chan struct{})
	// SampleProblems returns what the samples cannot show, a sentence each; nil: nothing.
	SampleProblems func() []string
	// FreeMemory is the memory that new guests can use, bytes.
	FreeMemory func() uint64
	// Processes returns the pids of this host's QEMU processes by guest uid. It begins to read the process table after
	// the call. It fails if it could not read the whole table in time; any guest may then have a process that it does
	// not return.
	Processes func(context.Context) (map[string][]int, error)
	// Authority is the certificate, PEM, of the authority that signs the stamps of orders.
	Authority []byte
	// AllowUnconfined accepts new guests even if QEMU runs as root or without a security driver.
	AllowUnconfined bool

	Hypervisor Hypervisor
	Network    Network
	Images     Images
	Tunnels    Tunnels
	Limiter    Limiter    // nil: guests are never limited
	Saver      Saver      // nil: guests cannot be saved and restored
	Watchdog   Watchdog   // nil: guests with leases are not taken
	Volumes    VolumeHost // nil: the host keeps no volumes, and its guests have none
	Dial       GuestDialer
}

// Agent carries out the decisions of one host's machine.
type Agent struct {
	config      Config
	instance    string // HostObserved.instance
	log         *slog.Logger
	ctx         context.Context
	hypervisor  Hypervisor
	network     Network
	images      Images
	tunnels     Tunnels
	records     *RecordStore
	consoles    *consoles
	networks    *networkKeeper
	limits      *limitKeeper
	alone       *aloneKeeper
	checkpoints *checkpointKeeper
	volumes     *volumeKeeper
	storage     *storageKeeper
	leases      *leaseKeeper
	templates   *templates
	acting      sync.WaitGroup // the acts under way
	answered    chan struct{}  // closed when a listing has succeeded
	listed      chan struct{}  // closed when the first listing has ended, with or without success

	mu           sync.Mutex
	machine      *machine.Machine
	guests       map[string]*guest // as the machine knows them
	running      map[uint64]context.CancelFunc
	waiting      map[uint64]chan<- error // connections that wait for AnswerAdmission
	connections  uint64
	timer        *time.Timer
	info         *v1.HostInfo    // replaced as a whole
	wantedImages []*v1.Image     // by the latest orders
	touched      map[string]bool // guests that were limited without orders, by uid
	load         *v1.HostLoad
	changed      chan struct{} // closed when the report changes
	logged       []string      // the problems of the last report, which are in the log
}

// New makes an agent. It reads the host's records and takes over the guests that it finds. The agent acts until ctx
// ends. Call Run to follow the hypervisor's events.
func New(ctx context.Context, config Config) (*Agent, error) {
	a := &Agent{ctx: ctx, config: config, instance: rand.Text(), log: config.Log, hypervisor: config.Hypervisor, network: config.Network,
		images: config.Images, tunnels: config.Tunnels, info: config.Info, guests: map[string]*guest{}, touched: map[string]bool{},
		running: map[uint64]context.CancelFunc{}, waiting: map[uint64]chan<- error{},
		changed: make(chan struct{}), answered: make(chan struct{}), listed: make(chan struct{})}
	if a.log == nil {
		a.log = slog.Default()
	}
	a.records = NewRecordStore(filepath.Join(config.StateDir, "guests"))
	a.consoles = &consoles{dir: a.records.Dir, now: a.records.Now, log: a.log}
	a.networks = newNetworkKeeper(config.Network, a.localGuests, a.publish, a.log)
	a.limits = newLimitKeeper(a)
	a.alone = newAloneKeeper(a)
	a.checkpoints = newCheckpointKeeper(a)
	a.volumes = newVolumeKeeper(a)
	a.storage = newStorageKeeper(a)
	a.leases = &leaseKeeper{agent: a, watchdog: config.Watchdog, clock: watchdog.Clock, renewed: make(chan struct{}, 1), told: true}
	a.templates = newTemplates(a)
	for _, dir := range []string{config.StateDir, a.records.Dir, filepath.Join(config.RunDir, "guests")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("start the agent: %w", err)
		}
	}
	a.templates.sweep()
	a.clearRecords()
	a.alone.load()
	loaded, err := a.loadState()
	if err != nil { // otherwise a guest that this agent does not know would count as ended
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	if config.Watchdog != nil {
		loaded.Leases = a.kept(ctx, config.Watchdog)
	}
	a.machine = machine.New(time.Now(), machine.Config{Host: config.Name, BootID: config.Info.GetBootId(),
		LateCreate: lateCreate, SendEndWait: sendEndWait}, loaded)
	a.timer = time.AfterFunc(time.Hour, func() { a.feed((*machine.Machine).Tick) })
	a.feed(func(*machine.Machine, time.Time) {})
	select {
	case <-a.listed: // then the first report shows the host's guests, if the hypervisor answers
	case <-ctx.Done():
	}
	a.unplugUnknown(ctx)
	return a, nil
}

// unplugUnknown removes taps that an earlier agent left. It was killed after it had made a guest's tap and before it wrote the guest's first
// record, so no act would ever remove the tap. No orders have come yet, so nobody makes a tap meanwhile.
func (a *Agent) unplugUnknown(ctx context.Context) {
	unknown := slices.DeleteFunc(a.network.Plugged(), func(uid string) bool { return a.guest(uid) != nil || a.templates.unfinished(uid) })
	if len(unknown) == 0 {
		return
	}
	domains, err := a.hypervisor.List(ctx)
	if err != nil {
		return // the next agent does it
	}
	for _, uid := range unknown {
		if slices.ContainsFunc(domains, func(d domain.Info) bool { return d.UID == uid }) {
			continue
		}
		err := a.network.UnplugGuest(ctx, uid)
		a.log.Warn("an earlier agent left a tap of a guest that is not here: removing it", "guest", uid, "error", err)
	}
}

// Tests set these durations; 0: the machine's default.
var lateCreate, sendEndWait time.Duration

// loadState reads the state that an earlier agent left on disk.
func (a *Agent) loadState() (machine.Loaded, error) {
	var loaded machine.Loaded
	if err := a.records.SetAside(); err != nil {
		loaded.Problems = append(loaded.Problems, err.Error())
	}
	loaded.Term, loaded.Stamp, loaded.TermUnread = a.readTerm()
	records, unread, problems, err := a.records.Load()
	loaded.Records, loaded.Unread = records, unread
	for _, problem := range problems {
		loaded.Problems = append(loaded.Problems, problem.Error())
	}
	return loaded, err
}

// clearRecords deletes expired records and consoles. The lock keeps the machine from taking over a guest whose record is
// being deleted.
func (a *Agent) clearRecords() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records.Clear(keepForgotten, func(uid string) bool { return a.guests[uid] != nil })
	a.consoles.clear()
}

// confinement returns how the hypervisor confines new guests, and whether unconfined guests are allowed; nil: not known yet.
func (a *Agent) confinement() *v1.Confinement {
	c := a.hypervisor.Confinement()
	if c != nil {
		c.UnconfinedAllowed = a.config.AllowUnconfined
	}
	return c
}

func (a *Agent) guestRunDir(uid string) string { return filepath.Join(a.config.RunDir, "guests", uid) }

func (a *Agent) channelSocket(uid string) string {
	return filepath.Join(a.guestRunDir(uid), "channel.sock")
}

// shutdownWait is how long the agent waits at its end for interrupted acts. An interrupted transfer needs this time for a
// clean cancellation.
const shutdownWait = 3 * time.Second

// Run follows the hypervisor's events until the agent's context ends. Guests and network stay as they are.
func (a *Agent) Run() {
	ctx := a.ctx
	go a.networks.run(ctx)
	go a.limits.run(ctx)
	go a.alone.run(ctx)
	go a.volumes.run(ctx)
	go a.storage.run(ctx)
	go a.leases.run(ctx)
	go a.sample(ctx)
	go func() {
		select {
		case <-a.answered: // both need the hypervisor
			a.checkpoints.recover(ctx)
			a.templates.clean(ctx)
		case <-ctx.Done():
		}
	}()
	a.follow(ctx)
	a.mu.Lock() // no act begins after this
	a.timer.Stop()
	a.mu.Unlock()
	ended := make(chan struct{})
	go func() {
		a.acting.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(shutdownWait):
	}
}

// follow passes the hypervisor's events to the machine.
func (a *Agent) follow(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-a.hypervisor.Events():
			if !ok {
				<-ctx.Done()
				return
			}
			a.feed(func(m *machine.Machine, now time.Time) {
				if event.Lost {
					m.HypervisorLost(now)
				} else {
					m.DomainEvent(now, event.UID, event.At)
				}
			})
		}
	}
}

// sampleEvery is how often the agent samples the load. The host reports after each sample, even if nothing else
// changed.
const sampleEvery = 5 * time.Second

// keepEvery is the number of samples between two deletions of expired files.
const keepEvery = 60

// sample samples the load and deletes expired files, until ctx ends.
func (a *Agent) sample(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		load := a.config.Load()
		a.consoles.bound()
		a.mu.Lock()
		a.load = load
		a.mu.Unlock()
		if n%keepEvery == keepEvery-1 {
			a.pruneImages()
			a.clearRecords()
			if err := a.records.SetAside(); err != nil {
				a.log.Warn("after a full disk", "error", err)
			}
		}
		a.publish()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// Take takes the manager's orders. It fails with machine.ErrStale if it refuses the orders for good.
func (a *Agent) Take(w *v1.HostWanted) (err error) {
	if forged := a.genuine(w); forged != nil {
		a.feed(func(m *machine.Machine, now time.Time) { m.Refuse(now, forged.Error()) })
		a.publish()
		return fmt.Errorf("%w: %w", machine.ErrStale, forged)
	}
	a.feed(func(m *machine.Machine, now time.Time) { err = m.Take(now, w) })
	return err
}

// Evict ends all guests: the host was removed, so the manager may have started its guests on other hosts. It may be
// repeated.
func (a *Agent) Evict() {
	a.log.Warn("this host was removed; its guests are ended")
	a.feed((*machine.Machine).Evict)
}

// applyOrders carries out the orders that are not about guests: certificates, images, templates, network, files. a.mu is held.
func (a *Agent) applyOrders(w *v1.HostWanted) {
	least := map[string]uint32{}
	for _, r := range w.Revoked {
		least[r.Uid] = r.Generation
	}
	a.tunnels.Revoke(least)
	a.images.Share(w.Sharing, w.Blobs)
	a.templates.share(w)
	if w.Network != nil {
		a.networks.want(w.Network)
	}
	a.checkpoints.want(w.Checkpoints)
	a.volumes.want(w)
	a.storage.want(w)
	a.alone.want(w)
	poke(a.limits.wake)
	a.wantedImages = w.Images
	go a.pruneImages()
}

// pruneImages removes images that no order and no guest has needed for a while, and the templates of these images.
func (a *Agent) pruneImages() {
	used := map[string]bool{}
	a.mu.Lock()
	guests, wanted, ordered := a.machine.Guests(), a.wantedImages, a.machine.Ordered()
	a.mu.Unlock()
	if !ordered {
		return
	}
	for _, g := range guests {
		if g.Record != nil && g.Record.Phase != machine.PhaseEnded {
			used[g.Record.Image] = true
		}
		if g.Wanted.GetImage() != nil {
			used[g.Wanted.Image.Digest] = true
		}
	}
	for _, image := range wanted {
		used[image.Digest] = true
	}
	a.images.Prune(func(digest string) bool { return used[digest] })
	a.templates.prune(a.images.Held())
	a.publish()
}

// ReapplyNetwork applies the wanted network again. The caller has found a part of it missing.
func (a *Agent) ReapplyNetwork() { poke(a.networks.wake) }

// guest finds a guest by uid.
func (a *Agent) guest(uid string) *guest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.guests[uid]
}
