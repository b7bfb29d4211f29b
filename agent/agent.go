package agent

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"time"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// keepForgotten is how long records of guests that are not wanted any more are kept.
const keepForgotten = 24 * time.Hour

// Config says where an agent lives and what it works with.
type Config struct {
	Name     string // the host's
	StateDir string // /var/lib/watari/agent
	RunDir   string // /run/watari
	Log      *slog.Logger

	// Info is completed by what the hypervisor says of itself, once it answers.
	Info *v1.HostInfo
	// Load samples the host's load.
	Load func() *v1.HostLoad
	// FreeMemory is what guests may still take, bytes.
	FreeMemory func() uint64
	// Processes are the pids of the QEMU processes of guests on this host, by guest uid, found by a look at the process table
	// that began after the call. It fails where the table could not be read whole in time: any guest may have a process
	// then, beside those that it returns.
	Processes func(context.Context) (map[string][]int, error)
	// Authority is the certificate, PEM, of the authority that signs the stamps of orders.
	Authority []byte
	// AllowUnconfined accepts new guests though QEMU runs as root or without a security driver.
	AllowUnconfined bool

	Hypervisor Hypervisor
	Network    Network
	Images     Images
	Tunnels    Tunnels
	Dial       GuestDialer
}

// Agent carries out for one host what its machine decides.
type Agent struct {
	config     Config
	log        *slog.Logger
	ctx        context.Context
	hypervisor Hypervisor
	network    Network
	images     Images
	tunnels    Tunnels
	records    *RecordStore
	consoles   *consoles
	networks   *networkKeeper
	templates  *templates
	acting     sync.WaitGroup // the acts under way
	heard      chan struct{}  // closed when the hypervisor has answered once
	asked      chan struct{}  // closed when it was asked once, whether it answered or not

	mu           sync.Mutex
	machine      *machine.Machine
	guests       map[string]*guest // as the machine knows them
	running      map[uint64]context.CancelFunc
	waiting      map[uint64]chan<- error // connections that ask to be let in
	connections  uint64
	timer        *time.Timer
	info         *v1.HostInfo // replaced as a whole
	wantedImages []*v1.Image  // by the latest orders
	load         *v1.HostLoad
	changed      chan struct{} // closed at each change of what is reported
	told         []string      // the problems that were logged last
}

// New makes an agent that has read its records and taken up the guests it found; ctx is its life. Run makes it
// follow what happens.
func New(ctx context.Context, config Config) (*Agent, error) {
	a := &Agent{ctx: ctx, config: config, log: config.Log, hypervisor: config.Hypervisor, network: config.Network,
		images: config.Images, tunnels: config.Tunnels, info: config.Info, guests: map[string]*guest{},
		running: map[uint64]context.CancelFunc{}, waiting: map[uint64]chan<- error{},
		changed: make(chan struct{}), heard: make(chan struct{}), asked: make(chan struct{})}
	if a.log == nil {
		a.log = slog.Default()
	}
	a.records = NewRecordStore(filepath.Join(config.StateDir, "guests"))
	a.consoles = &consoles{dir: a.records.Dir, now: a.records.Now, log: a.log}
	a.networks = newNetworkKeeper(config.Network, a.localGuests, a.publish, a.log)
	a.templates = newTemplates(a)
	for _, dir := range []string{config.StateDir, a.records.Dir, filepath.Join(config.RunDir, "guests")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("start the agent: %w", err)
		}
	}
	a.templates.sweep()
	a.clearRecords()
	loaded := a.loadState()
	a.machine = machine.New(time.Now(), machine.Config{Host: config.Name, BootID: config.Info.GetBootId(),
		LateCreate: lateCreate, SendEndWait: sendEndWait}, loaded)
	a.timer = time.AfterFunc(time.Hour, func() { a.feed((*machine.Machine).Tick) })
	a.feed(func(*machine.Machine, time.Time) {})
	select {
	case <-a.asked: // the first report tells what is here, if the hypervisor does
	case <-ctx.Done():
	}
	return a, nil
}

// Tests shorten these; 0: as the machine has it.
var lateCreate, sendEndWait time.Duration

// loadState reads what an earlier agent left.
func (a *Agent) loadState() machine.Loaded {
	var loaded machine.Loaded
	if err := a.records.SetAside(); err != nil {
		loaded.Problems = append(loaded.Problems, err.Error())
	}
	loaded.Term, loaded.Stamp, loaded.TermUnread = a.readTerm()
	records, problems := a.records.Load()
	loaded.Records = records
	for _, problem := range problems {
		loaded.Problems = append(loaded.Problems, problem.Error())
	}
	return loaded
}

// clearRecords removes records that were kept for long enough. The lock keeps guests from becoming known meanwhile whose
// records are removed.
func (a *Agent) clearRecords() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records.Clear(keepForgotten, func(uid string) bool { return a.guests[uid] != nil })
	a.consoles.clear()
}

// confinement says how new guests are confined here, and whether that is accepted; nil: not known yet.
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

// shutdownWait is how long acts that were interrupted by the agent's end may take: a transfer that is given up is broken
// off properly.
const shutdownWait = 3 * time.Second

// Run follows what happens until the agent's life ends, and then leaves everything as it is.
func (a *Agent) Run() {
	ctx := a.ctx
	go a.networks.run(ctx)
	go a.sample(ctx)
	go func() {
		select {
		case <-a.heard: // until then it cannot be told which templates are of use
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

// follow hands the hypervisor's events on.
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

// sampleEvery is how often the load is sampled and, with that, the host reports though nothing else changed.
const sampleEvery = 5 * time.Second

// keepEvery is how many samples lie between two looks at what the disk holds.
const keepEvery = 60

// sample keeps the load fresh.
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
			a.keepImages()
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

// Take takes up what the manager wants. It fails with machine.ErrStale where the orders are refused for good.
func (a *Agent) Take(w *v1.HostWanted) (err error) {
	if forged := a.genuine(w); forged != nil {
		a.feed(func(m *machine.Machine, now time.Time) { m.Refuse(now, forged.Error()) })
		a.publish()
		return fmt.Errorf("%w: %w", machine.ErrStale, forged)
	}
	a.feed(func(m *machine.Machine, now time.Time) { err = m.Take(now, w) })
	return err
}

// Evict ends all guests: the host was removed, and they may have been started elsewhere. It may be repeated.
func (a *Agent) Evict() {
	a.log.Warn("this host was removed; its guests are ended")
	a.feed((*machine.Machine).Evict)
}

// obey hands on the part of the orders that concerns no guest. a.mu is held.
func (a *Agent) obey(w *v1.HostWanted) {
	a.images.Share(w.Sharing, w.Blobs)
	a.templates.share(w)
	if w.Network != nil {
		a.networks.want(w.Network)
	}
	a.wantedImages = w.Images
	go a.keepImages()
}

// keepImages removes images, and templates of them, that have not been wanted for a while.
func (a *Agent) keepImages() {
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
	a.images.Keep(wanted, func(digest string) bool { return used[digest] })
	a.templates.keep(a.images.Held())
	a.publish()
}

// ReapplyNetwork puts the network back as it is wanted, after something of it was found missing.
func (a *Agent) ReapplyNetwork() { poke(a.networks.wake) }

// guest finds a guest by uid.
func (a *Agent) guest(uid string) *guest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.guests[uid]
}
