package controller

// placing.go - hosts as placement sees them, and what follows from its choices: grants, moves, drains.

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/compatibility"
	"watari/manager/store"
	"watari/manager/view"
	"watari/migration"
	"watari/placement"
)

func tunnelAddress(h *v1.Host) string {
	info := h.GetInfo()
	if info == nil {
		return ""
	}
	return net.JoinHostPort(info.LanAddress, strconv.Itoa(int(info.TunnelPort)))
}

// PlacementHosts lists the hosts as placement sees them for a guest of a cluster, by name.
func PlacementHosts(s *store.Snapshot, o view.Observer, cluster, imageDigest string) []placement.Host {
	hosts := make([]placement.Host, 0, len(s.Hosts))
	for _, name := range slices.Sorted(maps.Keys(s.Hosts)) {
		h := s.Hosts[name]
		report, _, connected := o.Observed(name)
		hosts = append(hosts, placement.Host{
			Name: name, Site: h.GetInfo().GetSite(), Connected: connected && h.Info != nil, Draining: h.Draining,
			Cores: h.GetInfo().GetCores(), MemoryBytes: h.GetInfo().GetMemoryBytes(),
			Acceleration: h.GetInfo().GetAcceleration().GetKind(), Confinement: h.GetInfo().GetConfinement(),
			HasImage: slices.Contains(report.GetImages(), imageDigest), Info: h.GetInfo(),
		})
	}
	add := func(host string, g *v1.Guest) {
		at := slices.IndexFunc(hosts, func(h placement.Host) bool { return h.Name == host })
		if at < 0 {
			return
		}
		hosts[at].MemoryUsed += g.Shape.GetMemoryBytes()
		hosts[at].VCPUs += g.Shape.GetVcpus()
		if g.Cluster == cluster {
			hosts[at].ClusterGuests++
		}
	}
	moves := movesByGuest(s)
	for _, g := range s.Guests {
		add(g.Host, g)
		// A move under way has its room at both ends.
		if m := moves[g.Meta.Uid]; m != nil && m.Target != g.Host {
			add(m.Target, g)
		}
	}
	return hosts
}

// ExpectedWithin is how long a host that is not connected is expected back, since it was lost or since the manager began to
// lead: its agent dials again within seconds, and guests wait for it.
const ExpectedWithin = 15 * time.Second

// Expected tells whether a host is connected, or expected back within seconds. led is for how long the manager has led.
func Expected(o view.Observer, host string, led time.Duration) bool {
	_, since, connected := o.Observed(host)
	switch {
	case connected:
		return true
	case since.IsZero():
		return led < ExpectedWithin
	}
	return time.Since(since) < ExpectedWithin
}

// Feasible says whether a new cluster could be placed now, or on hosts that are expected back within seconds; the error names
// each host's reason. It returns what the cluster's guests are to be started in. led is for how long the manager has led.
func Feasible(s *store.Snapshot, o view.Observer, spec *v1.ClusterSpec, imageDigest string, led time.Duration) ([]*v1.Platform, error) {
	cluster := &v1.Cluster{Spec: spec, Platforms: compatibility.Platforms(spec, fleet(s, spec))}
	r := request(cluster)
	r.Shape = spec.Shape
	hosts := PlacementHosts(s, o, "", imageDigest)
	for i, h := range hosts {
		hosts[i].Connected = h.Info != nil && Expected(o, h.Name, led)
	}
	_, err := placement.Plan(r, int(spec.Guests), hosts)
	return cluster.Platforms, err
}

// fleet is the hosts that a cluster's guests may be placed on, by name, whether or not they can be reached now.
func fleet(s *store.Snapshot, spec *v1.ClusterSpec) map[string]*v1.HostInfo {
	hosts := map[string]*v1.HostInfo{}
	for name, h := range s.Hosts {
		if h.Info != nil && h.Meta.GetDeleting() == nil && (len(spec.GetSites()) == 0 || slices.Contains(spec.Sites, h.Info.Site)) {
			hosts[name] = h.Info
		}
	}
	return hosts
}

// request asks for a host on which a guest of the cluster can be started. Its shape is still to be filled in.
func request(cluster *v1.Cluster) *placement.Request {
	return &placement.Request{
		Sites: cluster.GetSpec().GetSites(), Spread: cluster.GetSpec().GetSpread(),
		Compatible: func(h *v1.HostInfo) string { return compatibility.RefuseStart(cluster, h) },
	}
}

// place chooses a host for a guest and gives it the grant, under an epoch that was never used.
func (c *Controller) place(ctx context.Context, s *store.Snapshot, g *v1.Guest) (bool, error) {
	cluster := s.Clusters[g.Cluster]
	r := request(cluster)
	r.Shape, r.Exclude = g.Shape, c.avoid[g.Meta.Uid]
	hosts := PlacementHosts(s, c.Sessions, g.Cluster, g.ImageDigest)
	chosen, verdicts := placement.Choose(r, hosts)
	if chosen == "" && len(r.Exclude) > 0 {
		// Every host that is left was refused: let those that failed before try again.
		delete(c.avoid, g.Meta.Uid)
		r.Exclude = nil
		chosen, verdicts = placement.Choose(r, hosts)
	}
	update := proto.CloneOf(g)
	if chosen == "" {
		update.Message = (&placement.NoHostError{Guests: 1, Verdicts: verdicts}).Error()
		if update.Message == g.Message {
			return false, nil
		}
		return true, c.Store.Txn(ctx, store.Update(update))
	}
	update.LastEpoch++
	update.Epoch, update.StartedEpoch, update.Host, update.Message = update.LastEpoch, update.LastEpoch, chosen, ""
	update.Started = timestamppb.Now()
	update.BootId = s.Hosts[chosen].GetInfo().GetBootId()
	var added *v1.Platform
	update.Platform, added = compatibility.Start(cluster, s.Hosts[chosen].GetInfo(), fleet(s, cluster.GetSpec()))
	// A host that is being removed meanwhile would never hear of it.
	ops := []store.Op{store.Update(update), store.Expect(s.Hosts[chosen])}
	if added != nil {
		extended := proto.CloneOf(cluster)
		extended.Platforms = append(extended.Platforms, added)
		ops = append(ops, store.Update(extended))
	}
	if err := c.Store.Txn(ctx, ops...); err != nil {
		return false, err
	}
	c.event(ctx, v1.Severity_SEVERITY_INFO, "guest", g.Meta.Name, "is started on %s, epoch %d", chosen, update.Epoch)
	return true, nil
}

// PlanMigration chooses where a guest moves to and makes the record, which is not stored yet. The explanation
// has a line for each host. Errors say why the guest cannot be moved there.
func PlanMigration(s *store.Snapshot, o view.Observer, g *v1.Guest, toHost, toSite string, exclude ...string) (*v1.Migration, []string, error) {
	if g.Host == "" {
		return nil, nil, fmt.Errorf("guest %s does not run", g.Meta.Name)
	}
	if toHost == g.Host {
		return nil, nil, fmt.Errorf("guest %s is on host %s already", g.Meta.Name, toHost)
	}
	if toHost != "" && s.Hosts[toHost] == nil {
		return nil, nil, fmt.Errorf("there is no host %s; there are %s", toHost, strings.Join(slices.Sorted(maps.Keys(s.Hosts)), ", "))
	}
	cluster := s.Clusters[g.Cluster]
	source := s.Hosts[g.Host].GetInfo()
	r := &placement.Request{
		Shape: g.Shape, Spread: cluster.GetSpec().GetSpread(), Exclude: append([]string{g.Host}, exclude...),
		Compatible: func(target *v1.HostInfo) string { return compatibility.RefuseMove(g, source, target) },
	}
	if toSite != "" {
		r.Sites = []string{toSite}
	} else if toHost == "" {
		r.Sites = cluster.GetSpec().GetSites()
	}
	hosts := PlacementHosts(s, o, g.Cluster, g.ImageDigest)
	hosts = withoutSelf(hosts, g)
	if toHost != "" {
		hosts = slices.DeleteFunc(hosts, func(h placement.Host) bool { return h.Name != toHost })
	}
	chosen, verdicts := placement.Choose(r, hosts)
	var explanation []string
	for _, v := range verdicts {
		explanation = append(explanation, v.String())
	}
	if chosen == "" {
		return nil, explanation, fmt.Errorf("guest %s cannot be moved: %s", g.Meta.Name, strings.Join(explanation, "; "))
	}
	return &v1.Migration{
		Meta:  &v1.Meta{Name: freeMoveName(s, g), Owner: g.Meta.Owner, OwnerUid: g.Meta.OwnerUid},
		Guest: g.Meta.Name, GuestUid: g.Meta.Uid, Source: g.Host, Target: chosen,
		SourceBootId: g.BootId, TargetBootId: s.Hosts[chosen].GetInfo().GetBootId(),
		SourceEpoch: g.Epoch, State: v1.MigrationState_MIGRATION_STATE_PENDING,
	}, explanation, nil
}

// freeMoveName is <guest>-m<n>, n being the epoch the move would have, or above where a move that never left
// pending has that name.
func freeMoveName(s *store.Snapshot, g *v1.Guest) string {
	for n := g.LastEpoch + 1; ; n++ {
		name := fmt.Sprintf("%s-m%d", g.Meta.Name, n)
		if s.Migrations[name] == nil {
			return name
		}
	}
}

// withoutSelf takes the guest out of its host's count, so that scores are of the cluster after the move.
func withoutSelf(hosts []placement.Host, g *v1.Guest) []placement.Host {
	for i := range hosts {
		if hosts[i].Name == g.Host && hosts[i].ClusterGuests > 0 {
			hosts[i].ClusterGuests--
		}
	}
	return hosts
}

// drain moves the guests of draining hosts away, as far as there is room for them.
func (c *Controller) drain(ctx context.Context, s *store.Snapshot) (bool, error) {
	moves := movesByGuest(s)
	for _, name := range slices.Sorted(maps.Keys(s.Guests)) {
		g := s.Guests[name]
		h := s.Hosts[g.Host]
		if h == nil || !h.Draining || unwanted(s, g) || moves[g.Meta.Uid] != nil || !c.runsHere(g) {
			continue
		}
		m, _, err := PlanMigration(s, c.Sessions, g, "", "")
		if err != nil || c.failedLately(s, g) {
			continue // tried again when something changes; the guest's host says that it is draining
		}
		m.Reason = "host " + g.Host + " is drained"
		if err := c.Store.Txn(ctx, store.Create(m), store.Expect(s.Hosts[m.Target])); err != nil {
			return false, fmt.Errorf("move guest %s away from %s: %w", name, g.Host, err)
		}
		return true, nil
	}
	return false, nil
}

// runsHere: the guest's host reports it running under the present grant.
func (c *Controller) runsHere(g *v1.Guest) bool {
	report, _, connected := c.Sessions.Observed(g.Host)
	seen := view.GuestOn(report, g.Meta.Uid)
	return connected && seen.GetEpoch() == g.Epoch && seen.GetCondition() == v1.GuestCondition_GUEST_CONDITION_RUNNING
}

const (
	// keepMoves is how many ended moves of a guest are kept for `watari migrate list`.
	keepMoves = 10
	// keepGoneMoves is how many are kept of all guests together that exist no more.
	keepGoneMoves = 100
)

// prune forgets the oldest ended moves.
func (c *Controller) prune(ctx context.Context, s *store.Snapshot) (bool, error) {
	if m := tooOld(s); m != nil {
		return true, c.Store.Txn(ctx, store.Delete(proto.CloneOf(m)))
	}
	return false, nil
}

// tooOld is an ended move beyond those that are kept; nil: there is none.
func tooOld(s *store.Snapshot) *v1.Migration {
	ended := map[string][]*v1.Migration{} // by guest; "": those that exist no more
	for _, m := range s.Migrations {
		if !migration.Ended(m.State) {
			continue
		}
		uid := m.GuestUid
		if s.Guests[m.Guest].GetMeta().GetUid() != uid {
			uid = ""
		}
		ended[uid] = append(ended[uid], m)
	}
	for uid, list := range ended {
		if len(list) > keepGoneMoves || uid != "" && len(list) > keepMoves {
			return slices.MinFunc(list, func(a, b *v1.Migration) int { return a.Meta.Created.AsTime().Compare(b.Meta.Created.AsTime()) })
		}
	}
	return nil
}
