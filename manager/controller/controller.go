// Package controller is the leader's loop: it compares what is wanted (the store's objects) with what is
// observed (the agents' reports), asks the pure deciders what to do, writes their decisions down and tells each
// host what is wanted of it. Everything here may be repeated after a crash at any point: what has to be
// remembered is in the store before anybody acts on it.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/internal/printable"
	"watari/manager/lifecycle"
	"watari/manager/store"
	"watari/manager/view"
)

// Sessions are the agents that are connected.
type Sessions interface {
	view.Observer
	// Send hands a host what is wanted of it; a later one replaces one that has not left yet.
	Send(host string, wanted *v1.HostWanted)
	// HTTPClient calls what the host's agent serves.
	HTTPClient(host string) (connect.HTTPClient, error)
}

// Deps is what the controller works with.
type Deps struct {
	Store    *store.Store
	Sessions Sessions
	// SessionChanges holds a token when an agent reported, connected or disconnected.
	SessionChanges <-chan struct{}
	// RunsDir is where runs' output is kept: <RunsDir>/<run uid>/{stdout,stderr}.
	RunsDir string
	// NoSharing has each host fetch images from the manager, and make templates itself.
	NoSharing bool
	Term      uint64
	TermID    string // empty only in tests, as the next two
	Stamps    *view.Stamps
	Authority *ca.Authority // signs the stamps of orders
	Log       *slog.Logger
}

// Controller holds what the loop remembers between passes; all of it can be lost.
type Controller struct {
	Deps
	sent       map[string]sent
	shared     shareMemory
	inState    map[string]stateSince
	avoid      map[string][]string // hosts that could not start a guest, by guest uid
	identities map[identityKey]*v1.Identity
	runs       map[string]*runner
	driving    sync.WaitGroup
	done       chan string // runs whose runner has ended
	started    time.Time
	pinned     *pinned  // Deps.Sessions, as long as the loop runs
	live       Sessions // the sessions as they are now, for runs
}

// sent is what a host was told last.
type sent struct {
	wanted *v1.HostWanted
	since  time.Time // of the connection it was sent on
}

type stateSince struct {
	state v1.MigrationState
	since time.Time
}

// idlePass bounds how long the loop sleeps when nothing happens, so that waits that are bounded in time end.
const idlePass = 2 * time.Second

// Run works until ctx ends, leadership is lost, an object cannot be read, or a new term is needed (*LeadAgainError).
func Run(ctx context.Context, d Deps) error {
	c := &Controller{Deps: d, sent: map[string]sent{}, inState: map[string]stateSince{}, avoid: map[string][]string{},
		identities: map[identityKey]*v1.Identity{}, runs: map[string]*runner{}, done: make(chan string), started: time.Now()}
	if c.Log == nil {
		c.Log = slog.Default()
	}
	c.pinned, c.live = &pinned{Sessions: d.Sessions}, d.Sessions
	c.Sessions = c.pinned
	ctx, stop := context.WithCancel(ctx)
	// Should this process lead again, no run may have two runners, which would write its output twice.
	defer c.driving.Wait()
	defer stop()
	changes := d.Store.Subscribe(ctx)
	timer := time.NewTimer(0)
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changes:
		case <-d.SessionChanges:
		case <-timer.C:
		case uid := <-c.done:
			delete(c.runs, uid)
		}
		wait := idlePass
		again, err := c.pass(ctx)
		var unreadable *store.UnreadableError
		var leadAgain *LeadAgainError
		switch {
		case errors.Is(err, store.ErrNotLeader), errors.As(err, &unreadable), errors.As(err, &leadAgain):
			return err
		case err != nil && ctx.Err() == nil:
			c.Log.Error("a decision could not be written down; trying again", "error", err)
			wait = 200 * time.Millisecond
		case again:
			wait = 0
		}
		timer.Reset(wait)
	}
}

// pass tells every host what is wanted, then decides once about everything. again: something was decided.
func (c *Controller) pass(ctx context.Context) (again bool, err error) {
	s := c.Store.Snapshot()
	c.pinned.pin(s)
	return c.decide(ctx, s)
}

// decide is a pass over a snapshot. It decides nothing while an object of it cannot be read.
func (c *Controller) decide(ctx context.Context, s *store.Snapshot) (again bool, err error) {
	if err := s.Readable(); err != nil {
		return false, err
	}
	if held, err := c.held(ctx, s); held || err != nil {
		return false, err
	}
	steps := []func(context.Context, *store.Snapshot) (bool, error){c.hosts, c.migrations, c.guests, c.clusters, c.drain, c.prune}
	c.tell(s)
	for _, step := range steps {
		changed, err := step(ctx, s)
		if err != nil && !errors.Is(err, store.ErrConflict) {
			return false, err
		}
		if changed || err != nil {
			return true, nil // the rest is decided on the new snapshot
		}
	}
	c.startRunners(ctx, s)
	return false, nil
}

// tell sends each connected host what is wanted of it, where that changed.
func (c *Controller) tell(s *store.Snapshot) {
	wanted, connectedSince := map[string]*v1.HostWanted{}, map[string]time.Time{}
	strangers := view.Strangers(s, c.Sessions)
	for name := range s.Hosts {
		if _, since, connected := c.Sessions.Observed(name); connected {
			wanted[name], connectedSince[name] = hostWanted(s, c.Sessions, strangers, c.identity, name), since
		}
	}
	if !c.NoSharing {
		c.share(s, wanted, time.Now())
	}
	for name, w := range wanted {
		since, last := connectedSince[name], c.sent[name].wanted
		w.Term, w.Generation = c.Term, last.GetGeneration()
		w.Network.Generation, w.Stamp = last.GetNetwork().GetGeneration(), last.GetStamp()
		if last != nil && proto.Equal(w, last) {
			if !since.Equal(c.sent[name].since) {
				c.sent[name] = sent{last, since}
				c.Sessions.Send(name, last)
			}
			continue
		}
		if last == nil || !proto.Equal(w.Network, last.Network) {
			w.Network.Generation++
		}
		w.Generation++
		stamp, err := c.stamp(s)
		if err != nil {
			c.Log.Error("orders could not be signed, and are not sent", "host", name, "error", err)
			continue
		}
		w.Stamp = stamp
		c.sent[name] = sent{w, since}
		c.Sessions.Send(name, w)
	}
}

// current: what the host reports was observed after it took up the present orders.
func (c *Controller) current(host string) bool {
	report, _, connected := c.Sessions.Observed(host)
	told := c.sent[host].wanted
	return connected && told != nil && report.GetTerm() == c.Term && report.GetGeneration() >= told.Generation
}

// routesSet: every connected host that has a part in the cluster's network has the present routes in force.
func (c *Controller) routesSet(cluster string) bool {
	for host, told := range c.sent {
		hasPart := slices.ContainsFunc(told.wanted.Network.Clusters, func(n *v1.ClusterNetwork) bool { return n.Name == cluster })
		report, _, connected := c.Sessions.Observed(host)
		if hasPart && connected && (report.GetTerm() != c.Term || report.GetNetworkGeneration() < told.wanted.Network.Generation) {
			return false
		}
	}
	return true
}

// hosts keeps what agents say of their hosts.
func (c *Controller) hosts(ctx context.Context, s *store.Snapshot) (bool, error) {
	for name, h := range s.Hosts {
		report, _, connected := c.Sessions.Observed(name)
		if !connected || report.GetInfo() == nil {
			continue
		}
		info := keepFacts(report.Info, h.Info)
		if proto.Equal(info, h.Info) {
			continue
		}
		update := proto.CloneOf(h)
		update.Info = info
		if err := c.Store.Txn(ctx, store.Update(update)); err != nil {
			return false, fmt.Errorf("keep what host %s says of itself: %w", name, err)
		}
		switch {
		case h.GetInfo() == nil:
			c.event(ctx, v1.Severity_SEVERITY_INFO, "host", name, "joined at site %s: %s, %s", report.Info.Site, english.Plural(int(report.Info.Cores), "core", ""), report.Info.GetAcceleration().GetReason())
		case h.Info.BootId != report.Info.BootId:
			c.event(ctx, v1.Severity_SEVERITY_WARNING, "host", name, "was started anew; its guests of before have ended")
		}
		return true, nil
	}
	return false, nil
}

// keepFacts completes what an agent says of its host with what libvirt has told an earlier one, until libvirt answers
// this one: a host whose agent was started anew can be chosen as before.
func keepFacts(now, before *v1.HostInfo) *v1.HostInfo {
	if now.LibvirtVersion != "" || before.GetLibvirtVersion() == "" {
		return now
	}
	now = proto.CloneOf(now)
	now.LibvirtVersion, now.QemuVersion = before.LibvirtVersion, before.QemuVersion
	now.Confinement, now.GuestSupport = before.Confinement, before.GuestSupport
	return now
}

// guests carries out what lifecycle decides.
func (c *Controller) guests(ctx context.Context, s *store.Snapshot) (bool, error) {
	strangers := view.Strangers(s, c.Sessions)
	for _, name := range slices.Sorted(maps.Keys(s.Guests)) {
		g := s.Guests[name]
		if _, is := strangers[g.Meta.Uid]; is {
			continue
		}
		if m := view.Migrating(s, g.Meta.Uid); m != nil && m.State != v1.MigrationState_MIGRATION_STATE_PENDING {
			continue // the move decides
		}
		cluster := s.Clusters[g.Cluster]
		deleting := cluster == nil || cluster.Meta.Deleting != nil
		if g.BootId != "" && g.BootId != view.BootID(s, c.Sessions, g.Host) && livesInAnotherBoot(c.Sessions, g) && granted(s, c.Sessions, g, g.Host) {
			return true, c.rebind(ctx, s, g)
		}
		changed, err := c.guest(ctx, s, g, lifecycle.Step(g, c.lifecycleHost(s, g), deleting))
		if err != nil {
			return false, fmt.Errorf("guest %s: %w", name, err)
		}
		if changed {
			return true, nil
		}
	}
	return false, nil
}

// rebind has a grant name the boot in which its copy lives.
func (c *Controller) rebind(ctx context.Context, s *store.Snapshot, g *v1.Guest) error {
	update := proto.CloneOf(g)
	update.BootId = view.BootID(s, c.Sessions, g.Host)
	if err := c.Store.Txn(ctx, store.Update(update)); err != nil {
		return fmt.Errorf("guest %s: keep that it lives in boot %s: %w", g.Meta.Name, update.BootId, err)
	}
	c.event(ctx, v1.Severity_SEVERITY_WARNING, "guest", g.Meta.Name, "goes on on %s, which reports another boot though the guest's process is there", g.Host)
	return nil
}

func (c *Controller) lifecycleHost(s *store.Snapshot, g *v1.Guest) lifecycle.Host {
	h := s.Hosts[g.Host]
	report, _, connected := c.Sessions.Observed(g.Host)
	return lifecycle.Host{Exists: h != nil, Connected: connected, Dead: view.Dead(s, c.Sessions, g.Host, g.BootId, g.Meta.Uid),
		Fenced:  h != nil && h.FencedBootId != "" && h.FencedBootId == g.BootId,
		Alive:   view.Alive(c.Sessions, g.Host, g.Meta.Uid),
		Current: c.current(g.Host), Lived: lived(g), Guest: view.GuestOn(report, g.Meta.Uid)}
}

// lived is how long ago a guest's present copy was first granted; 0: that is not known.
func lived(g *v1.Guest) time.Duration {
	if g.Started == nil {
		return 0
	}
	return time.Since(g.Started.AsTime())
}

func (c *Controller) guest(ctx context.Context, s *store.Snapshot, g *v1.Guest, d lifecycle.Decision) (bool, error) {
	switch d.Act {
	case lifecycle.Remove:
		delete(c.avoid, g.Meta.Uid)
		maps.DeleteFunc(c.identities, func(key identityKey, _ *v1.Identity) bool { return key.uid == g.Meta.Uid })
		return true, c.Store.Txn(ctx, store.Delete(proto.CloneOf(g)))
	case lifecycle.Place:
		return c.place(ctx, s, g)
	case lifecycle.Release, lifecycle.Fail:
		update := proto.CloneOf(g)
		update.Host, update.BootId, update.Message, update.Platform = "", "", d.Message, nil
		severity := v1.Severity_SEVERITY_INFO
		if d.Restarts > 0 {
			update.Restarts = d.Restarts
			severity = v1.Severity_SEVERITY_WARNING
		}
		if d.Act == lifecycle.Fail {
			update.Failure = d.Message
			severity = v1.Severity_SEVERITY_ERROR
		}
		if d.Avoid {
			c.avoid[g.Meta.Uid] = append(c.avoid[g.Meta.Uid], g.Host)
		}
		if err := c.Store.Txn(ctx, store.Update(update)); err != nil {
			return false, err
		}
		c.event(ctx, severity, "guest", g.Meta.Name, "ended on %s: %s%s", g.Host, d.Message, c.lastLines(g, d))
		return true, nil
	}
	return false, nil
}

// quotedCharacters bounds each line that is quoted of a console.
const quotedCharacters = 200

// lastLines quotes the console of a guest that ended though it was wanted.
func (c *Controller) lastLines(g *v1.Guest, d lifecycle.Decision) string {
	report, _, _ := c.Sessions.Observed(g.Host)
	seen := view.GuestOn(report, g.Meta.Uid)
	if d.Restarts == 0 && d.Act != lifecycle.Fail || seen.GetEpoch() != g.Epoch || seen.GetLastLines() == "" {
		return ""
	}
	return "; its console ended with:\n" + printable.Lines(seen.LastLines, quotedCharacters)
}

// clusters removes a cluster of which nothing is left.
func (c *Controller) clusters(ctx context.Context, s *store.Snapshot) (bool, error) {
	for name, cluster := range s.Clusters {
		if cluster.Meta.Deleting == nil || hasGuests(s, name) {
			continue
		}
		if err := c.Store.Txn(ctx, store.Delete(proto.CloneOf(cluster))); err != nil {
			return false, fmt.Errorf("remove cluster %s: %w", name, err)
		}
		c.event(ctx, v1.Severity_SEVERITY_INFO, "cluster", name, "deleted")
		return true, nil
	}
	return false, nil
}

func hasGuests(s *store.Snapshot, cluster string) bool {
	for _, g := range s.Guests {
		if g.Cluster == cluster {
			return true
		}
	}
	return false
}

// event adds to the history; that it could not be written must not stop the work it tells of.
func (c *Controller) event(ctx context.Context, severity v1.Severity, kind, name, format string, a ...any) {
	e := &v1.Event{Severity: severity, Kind: kind, Name: name, Actor: "manager", Message: fmt.Sprintf(format, a...)}
	if err := c.Store.AddEvent(ctx, e); err != nil && ctx.Err() == nil {
		c.Log.Error("an event could not be written", "event", e.Message, "error", err)
	}
}
