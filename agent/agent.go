package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

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
	// Processes are the pids of the QEMU processes of guests on this host, by guest uid. It fails where the process table
	// could not be read whole: any guest may have a process then.
	Processes func() (map[string][]int, error)
	// AllowUnconfined accepts new guests though QEMU runs as root or without a security driver.
	AllowUnconfined bool

	Hypervisor Hypervisor
	Network    Network
	Images     Images
	Tunnels    Tunnels
	Dial       GuestDialer
}

// Agent reconciles one host.
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
	domains    *domains
	networks   *networkKeeper
	templates  *templates

	mu           sync.Mutex
	info         *v1.HostInfo // replaced as a whole
	guests       map[string]*guest
	taken        mark          // the latest HostWanted
	full         mark          // the latest one that every guest has taken a step for
	wantedImages []*v1.Image   // by that
	heard        chan struct{} // closed when the hypervisor has answered once
	term         uint64
	problems     []string // of the agent's start
	refused      string
	load         *v1.HostLoad
	changed      chan struct{} // closed at each change of what is reported
}

// New makes an agent that has read its records and taken up the guests it found; ctx is its life. Run makes it
// follow what happens.
func New(ctx context.Context, config Config) (*Agent, error) {
	a := &Agent{ctx: ctx, config: config, log: config.Log, hypervisor: config.Hypervisor, network: config.Network,
		images: config.Images, tunnels: config.Tunnels, info: config.Info, guests: map[string]*guest{},
		changed: make(chan struct{}), heard: make(chan struct{})}
	if a.log == nil {
		a.log = slog.Default()
	}
	a.records = NewRecordStore(filepath.Join(config.StateDir, "guests"))
	a.consoles = &consoles{dir: a.records.Dir, now: a.records.Now, log: a.log}
	a.domains = newDomains(config.Hypervisor)
	a.networks = newNetworkKeeper(config.Network, a.localGuests, a.publish, a.log)
	a.templates = newTemplates(a)
	for _, dir := range []string{config.StateDir, a.records.Dir, filepath.Join(config.RunDir, "guests")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("start the agent: %w", err)
		}
	}
	if err := a.records.SetAside(); err != nil {
		a.problems = append(a.problems, err.Error())
	}
	data, err := os.ReadFile(a.termFile())
	if err == nil {
		a.term, err = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		a.problems = append(a.problems, fmt.Sprintf("read the manager's last term: %v", err))
	}
	a.templates.sweep()
	a.takeUp()
	return a, nil
}

// takeUp compares the records with what the hypervisor has.
func (a *Agent) takeUp() {
	a.clearRecords()
	if _, err := a.domains.refresh(a.ctx); err != nil {
		a.log.Warn("the hypervisor does not answer yet; trying on", "error", err)
	}
	records, problems := a.records.Load()
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, problem := range problems {
		a.problems = append(a.problems, problem.Error())
	}
	for uid, record := range records {
		if record.Outcome != OutcomeForgotten {
			a.guests[uid] = a.newGuest(uid, record.Name, record, false, nil)
		}
	}
	a.heardLocked()
}

// clearRecords has records go that were kept for long enough. Under the lock no guest comes to be whose record it sees.
func (a *Agent) clearRecords() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.records.Clear(keepForgotten, func(uid string) bool { return a.guests[uid] != nil })
	a.consoles.clear()
}

// heardLocked takes up what only the hypervisor can tell, once it has answered: what the host can run, which may change
// whenever the hypervisor's daemon is started anew, and domains without a record. It makes such a domain late, of a guest
// that was given up meanwhile.
func (a *Agent) heardLocked() {
	if !a.domains.heard() {
		return
	}
	if hypervisor, qemu, err := a.hypervisor.Versions(); err == nil {
		info := proto.CloneOf(a.info)
		info.LibvirtVersion, info.QemuVersion = hypervisor, qemu
		info.Confinement, info.GuestSupport = a.confinement(), a.hypervisor.Support()
		if !proto.Equal(info, a.info) {
			a.info = info
		}
	}
	select {
	case <-a.heard:
	default:
		close(a.heard)
	}
	for _, info := range a.domains.all() {
		if a.guests[info.UID] == nil && !isTemplate(info.Name) {
			g := a.meet(info.UID, info.Name)
			g.want(nil, a.taken) // it was not mentioned
			poke(g.wake)
			a.guests[info.UID] = g
		}
	}
}

// confinement says how new guests are confined here, and whether that is accepted; nil: not known yet.
func (a *Agent) confinement() *v1.Confinement {
	c := a.hypervisor.Confinement()
	if c != nil {
		c.UnconfinedAllowed = a.config.AllowUnconfined
	}
	return c
}

func (a *Agent) termFile() string { return filepath.Join(a.config.StateDir, "term") }

func (a *Agent) guestRunDir(uid string) string { return filepath.Join(a.config.RunDir, "guests", uid) }

func (a *Agent) channelSocket(uid string) string {
	return filepath.Join(a.guestRunDir(uid), "channel.sock")
}

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
	a.mu.Lock()
	guests := a.allLocked()
	a.mu.Unlock()
	for _, g := range guests {
		<-g.stopped
	}
}

// follow takes up the hypervisor's events, and asks again by itself while it cannot be reached.
func (a *Agent) follow(ctx context.Context) {
	check := time.NewTicker(2 * time.Second)
	defer check.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case event, ok := <-a.hypervisor.Events():
			if !ok {
				return
			}
			if event.Lost {
				a.domains.lost()
				a.publish()
				continue
			}
			if g := a.guest(event.UID); g != nil {
				g.noteEvent(event.At)
			}
			a.refresh(ctx)
			if event.UID == "" {
				a.wakeAll()
			}
		case <-check.C:
			if a.domains.problem() != nil {
				a.refresh(ctx)
			}
		}
	}
}

func (a *Agent) refresh(ctx context.Context) {
	trouble := a.domains.problem()
	changed, err := a.domains.refresh(ctx)
	if err != nil && len(changed) > 0 {
		a.log.Error("ask the hypervisor for its domains", "error", err)
	}
	for _, uid := range changed {
		a.mu.Lock()
		g := a.guests[uid]
		a.mu.Unlock()
		if g != nil {
			info, _ := a.domains.get(uid)
			g.log.Debug("state changed", "state", info.State)
			poke(g.wake)
		}
	}
	a.mu.Lock()
	a.heardLocked()
	a.mu.Unlock()
	if err == nil && (len(changed) > 0 || trouble != nil) {
		// Guests without a domain may have waited for the hypervisor, too.
		a.wakeAll()
	}
	a.publish()
}

func (a *Agent) wakeAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, g := range a.guests {
		poke(g.wake)
	}
}

// sampleEvery is how often the load is sampled and, with that, the host reports though nothing else changed.
const sampleEvery = 5 * time.Second

// keepEvery is how many samples lie between two looks at what the disk holds.
const keepEvery = 60

// sample keeps the load fresh, and the guests' CPU times and memory with it.
func (a *Agent) sample(ctx context.Context) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		load := a.config.Load()
		a.consoles.bound()
		a.mu.Lock()
		a.load = load
		idle := len(a.guests) == 0
		a.mu.Unlock()
		if n%6 == 1 && !idle {
			a.refresh(ctx)
		}
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

// errStale is why orders are refused for good.
var errStale = errors.New("they are not meant for this host as it is now")

// Take takes up what the manager wants. It refuses the word of an older term, and orders for another boot of the host. An
// older word of the same term is left unheard.
func (a *Agent) Take(w *v1.HostWanted) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := mark{w.Term, w.Generation}
	if w.BootId != "" && w.BootId != a.info.GetBootId() {
		return fmt.Errorf("%w: orders for boot %s of the host were refused, which is in boot %s", errStale, w.BootId, a.info.GetBootId())
	}
	if w.Term < a.term {
		a.refused = fmt.Sprintf("a manager of term %d gave orders, but term %d has begun; they were refused", w.Term, a.term)
		return fmt.Errorf("%w: %s", errStale, a.refused)
	}
	if at.before(a.taken) {
		return nil
	}
	if w.Term > a.term {
		if err := writeFile(a.termFile(), []byte(strconv.FormatUint(w.Term, 10)+"\n")); err != nil {
			a.refused = fmt.Sprintf("orders of the manager were refused, for its term could not be written: %v", err)
			return errors.New(a.refused)
		}
		a.term = w.Term
	}
	a.taken, a.refused = at, ""
	a.images.Share(w.Sharing, w.Blobs) // before any guest acts on what is wanted
	a.templates.share(w)
	mentioned := map[string]bool{}
	for _, wanted := range w.Guests {
		if !validUID(wanted.Uid) {
			a.refused = fmt.Sprintf("guest %q: the manager sent a malformed uid", wanted.Name)
			continue
		}
		mentioned[wanted.Uid] = true
		g := a.guests[wanted.Uid]
		if g == nil {
			g = a.meet(wanted.Uid, wanted.Name)
			a.guests[wanted.Uid] = g
		}
		g.want(wanted, at)
	}
	for uid, g := range a.guests {
		if mentioned[uid] {
			continue
		}
		g.want(nil, at)
		if g.idle() {
			g.stop()
			delete(a.guests, uid)
		}
	}
	if w.Network != nil {
		a.networks.want(w.Network)
	}
	for _, g := range a.guests {
		poke(g.wake)
	}
	a.wantedImages = w.Images
	go a.keepImages()
	a.publishLocked()
	return nil
}

// Evict ends all guests: the host was removed, and they may have been started elsewhere. It may be repeated.
func (a *Agent) Evict() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.log.Warn("this host was removed; its guests are ended", "guests", len(a.guests))
	for uid, g := range a.guests {
		g.want(&v1.GuestWanted{Uid: uid, Name: g.name, Role: v1.GuestRole_GUEST_ROLE_ABSENT, Epoch: math.MaxUint64}, a.taken)
		poke(g.wake)
	}
}

// meet makes a guest that was not known until now, and reads the record that it may have, a forgotten one's for instance.
// Where the record is there and cannot be read now, nothing is done about this guest until it can; the others go on.
func (a *Agent) meet(uid, name string) *guest {
	r, err := a.records.LoadOne(uid)
	if errors.Is(err, ErrUnreadable) {
		return a.newGuest(uid, name, nil, false, err)
	}
	if err != nil {
		a.problems = append(a.problems, err.Error())
	}
	return a.newGuest(uid, name, r, a.records.Damaged(uid), nil)
}

// keepImages has images, and templates of them, go that have not been wanted for a while.
func (a *Agent) keepImages() {
	used := map[string]bool{}
	a.mu.Lock()
	guests, wanted, told := a.allLocked(), a.wantedImages, a.taken != mark{}
	a.mu.Unlock()
	if !told {
		return
	}
	for _, g := range guests {
		g.mu.Lock()
		if g.record != nil && g.record.Phase != PhaseEnded {
			used[g.record.Image] = true
		}
		if g.wanted.GetImage() != nil {
			used[g.wanted.Image.Digest] = true
		}
		g.mu.Unlock()
	}
	for _, image := range wanted {
		used[image.Digest] = true
	}
	a.images.Keep(wanted, func(digest string) bool { return used[digest] })
	a.templates.keep(a.images.Held())
	a.publish()
}

// allLocked are the guests, by uid.
func (a *Agent) allLocked() []*guest {
	guests := make([]*guest, 0, len(a.guests))
	for _, g := range a.guests {
		guests = append(guests, g)
	}
	slices.SortFunc(guests, func(x, y *guest) int { return strings.Compare(x.uid, y.uid) })
	return guests
}

// ReapplyNetwork puts the network back as it is wanted, after something of it was found missing.
func (a *Agent) ReapplyNetwork() { poke(a.networks.wake) }

// guest finds a guest by uid.
func (a *Agent) guest(uid string) *guest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.guests[uid]
}

// validUID keeps uids from being anything else in a path: hex digits and dashes.
func validUID(uid string) bool {
	return len(uid) >= 8 && len(uid) <= 64 && strings.Trim(uid, "0123456789abcdef-") == ""
}
