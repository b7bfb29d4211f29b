package core

// placing.go - describes hosts to package placement, and makes grants and moves from its choices.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/compatibility"
	"watari/placement"
	"watari/policy"
)

// ExpectedWithin is how long guests wait for a disconnected host, after the connection was lost or after the manager
// began to lead. Its agent reconnects within seconds.
const ExpectedWithin = 15 * time.Second

// room is the hosts' resources that guests use: guests with a grant, arriving guests, and guests that this decision
// places.
type room struct {
	hosts []placement.Host // by name; without ClusterGuests and HasImage
	at    map[string]int   // a host's index in hosts
	open  []int            // hosts that take guests, by index; nil: not known yet
	// The fields below are of the last cluster.
	cluster string
	image   string
	view    []placement.Host
	refused string // why its guests fit nowhere; empty: they fit, or this is not known yet
	request *placement.Request
	asked   *v1.Cluster // by request
	fleet   map[string]*v1.HostInfo
}

// newRoom counts the used resources. Resources that this decision frees count only once the change is written.
func newRoom(s *Objects, r Reports, moves Moves) *room {
	room := &room{at: map[string]int{}}
	for _, name := range sortedKeys(s.Hosts) {
		h := s.Hosts[name]
		_, _, connected := r.Observed(name)
		room.at[name] = len(room.hosts)
		room.hosts = append(room.hosts, placement.Host{
			Name: name, Site: h.GetInfo().GetSite(), Connected: connected && h.Info != nil, Draining: h.Draining, Spare: h.Spare, Withdrawn: cmp.Or(whyFenced(h), policy.Why(h)),
			Cores: h.GetInfo().GetCores(), MemoryBytes: h.GetInfo().GetMemoryBytes(),
			Capacity:     speedOf(h.GetInfo()) * coresOf(h.GetInfo()),
			Acceleration: h.GetInfo().GetAcceleration().GetKind(), Confinement: h.GetInfo().GetConfinement(), Info: h.GetInfo(),
		})
	}
	for _, g := range s.Guests {
		room.take(g.Host, g.Shape)
		// A moving guest uses resources at both ends.
		if m := moves[g.Meta.Uid]; m != nil && m.Target != g.Host {
			room.take(m.Target, g.Shape)
		}
	}
	return room
}

// takers returns the indexes of the hosts that take guests at all.
func (r *room) takers() []int {
	if r.open == nil {
		r.open = []int{}
		for i, h := range r.hosts {
			if h.Connected && !h.Draining && !h.Spare && h.Withdrawn == "" && placement.Unconfined(h.Confinement) == "" {
				r.open = append(r.open, i)
			}
		}
	}
	return r.open
}

func (r *room) take(host string, shape *v1.GuestShape) {
	if i, is := r.at[host]; is {
		r.hosts[i].MemoryUsed += shape.GetMemoryBytes()
		r.hosts[i].VCPUs += shape.GetVcpus()
	}
}

// forCluster returns the hosts as a guest of a cluster sees them. guests are the cluster's guests. The caller may
// change the result.
func (r *room) forCluster(reports Reports, moves Moves, guests []*v1.Guest, image string) []placement.Host {
	hosts := slices.Clone(r.hosts)
	for i := range hosts {
		report, _, _ := reports.Observed(hosts[i].Name)
		hosts[i].HasImage = slices.Contains(report.GetImages(), image)
	}
	count := func(host string) {
		if i, is := r.at[host]; is {
			hosts[i].ClusterGuests++
		}
	}
	for _, g := range guests {
		count(g.Host)
		if m := moves[g.Meta.Uid]; m != nil && m.Target != g.Host {
			count(m.Target)
		}
	}
	return hosts
}

// fleet returns the hosts on which a cluster's guests may be placed, by name. It includes hosts that are not connected.
func fleet(s *Objects, spec *v1.ClusterSpec) map[string]*v1.HostInfo {
	hosts := map[string]*v1.HostInfo{}
	for name, h := range s.Hosts {
		if h.Info != nil && h.Meta.GetDeleting() == nil && (len(spec.GetSites()) == 0 || slices.Contains(spec.Sites, h.Info.Site)) {
			hosts[name] = h.Info
		}
	}
	return hosts
}

// request returns a request for a host on which a guest of the cluster can start. The caller fills in the shape.
func request(cluster *v1.Cluster) *placement.Request {
	answers := map[*v1.HostInfo]string{} // a cluster of many guests asks each host many times
	return &placement.Request{
		Sites: cluster.GetSpec().GetSites(), Spread: cluster.GetSpec().GetSpread(),
		Compatible: func(h *v1.HostInfo) string {
			answer, known := answers[h]
			if !known {
				answer = compatibility.RefuseStart(cluster, h)
				answers[h] = answer
			}
			return answer
		},
	}
}

// place chooses a host for a guest and gives the host the grant, with an epoch that was never used.
func (p *pass) place(key string, g *v1.Guest) {
	for _, host := range sortedKeys(p.index.reporting[g.Meta.Uid]) {
		if Alive(p, host, g.Meta.Uid) {
			p.refuse(key, g, fmt.Sprintf("host %s still has a process of it, which has to end first", host))
			return
		}
	}
	room := p.roomFor(g)
	cluster := p.working.Clusters[g.Cluster]
	if room.request == nil || room.asked != cluster {
		room.request, room.asked = request(cluster), cluster
	}
	r := room.request
	from := memberOf(p.restoredFrom(g), g)
	if from != nil {
		if !p.inReach(p.restoredFrom(g), from) {
			p.refuse(key, g, "waits for a host that has the files of its checkpoint")
			return
		}
		r = p.restoreRequest(g, cluster, from)
	}
	avoid := p.avoided(g)
	r.Shape, r.Exclude = g.Shape, slices.Concat(avoid.failed, avoid.refused)
	r.Standby = p.standby(cluster, g)
	if room.refused != "" && len(r.Exclude) == 0 && from == nil && !r.Standby {
		p.refuse(key, g, room.refused)
		return
	}
	chosen := -1
	if apportioned(cluster) {
		chosen = p.divide(cluster, room.view).neediest(r, room.view)
	}
	if chosen < 0 && len(avoid.refused) > 0 { // perhaps the others cannot fetch the files
		near := *r
		near.Exclude = slices.Concat(r.Exclude, p.lacking(p.restoredFrom(g), from))
		chosen = placement.Pick(&near, room.view)
	}
	if chosen < 0 {
		chosen = placement.Pick(r, room.view)
	}
	if chosen < 0 && len(avoid.failed) > 0 { // all other hosts were refused, so those that failed before may try again
		avoid.failed = nil
		p.avoid[g.Meta.Uid] = avoid
		r.Exclude = avoid.refused
		chosen = placement.Pick(r, room.view)
	}
	if chosen < 0 && len(avoid.refused) > 0 {
		p.restoreLater(cluster, g)
		return
	}
	if chosen < 0 {
		_, verdicts := placement.Choose(r, room.view)
		refused := (&placement.NoHostError{Guests: 1, Verdicts: verdicts}).Error()
		if from == nil && !r.Standby {
			room.refused = refused
		}
		if from != nil && p.lacksRoom(cluster, g, refused) {
			return
		}
		p.refuse(key, g, refused)
		return
	}
	if !avoid.lacking.IsZero() {
		avoid.lacking = time.Time{}
		p.avoid[g.Meta.Uid] = avoid
	}
	p.grant(key, g, cluster, room.view[chosen].Name, from)
	room.view[chosen].Place(g.Shape)
	room.take(room.view[chosen].Name, g.Shape)
}

// lostElsewhere reports whether a guest is placed because it was lost: alone, or with its cluster, which goes back to a checkpoint.
func lostElsewhere(cluster *v1.Cluster, g *v1.Guest) bool {
	return g.Restarts > 0 || restoring(cluster) && cluster.Restore.Losses > 0
}

// standby reports whether a guest may be placed on a spare host.
func (p *pass) standby(cluster *v1.Cluster, g *v1.Guest) bool {
	avoid := p.avoided(g)
	return lostElsewhere(cluster, g) || len(avoid.refused) > 0 || avoid.rounds > 0
}

// openRoom returns the room that is left in this decision.
func (p *pass) openRoom() *room {
	if p.room == nil {
		p.room = newRoom(p.Objects, p, p.index.moves)
	}
	return p.room
}

// roomFor returns the room for the guest's cluster.
func (p *pass) roomFor(g *v1.Guest) *room {
	r := p.openRoom()
	if r.cluster != g.Cluster || r.image != g.ImageDigest {
		var guests []*v1.Guest
		for _, other := range p.index.guestsOf(g.Cluster) {
			if now := p.working.Guests[other.Meta.Name]; now != nil {
				guests = append(guests, now)
			}
		}
		r.cluster, r.image, r.refused = g.Cluster, g.ImageDigest, ""
		r.view = r.forCluster(p, p.index.moves, guests, g.ImageDigest)
		r.fleet = fleet(p.Objects, p.Clusters[g.Cluster].GetSpec())
	}
	return r
}

// refuse stores why a guest has no host.
func (p *pass) refuse(key string, g *v1.Guest, why string) {
	if why == g.Message {
		return
	}
	update := proto.CloneOf(g)
	update.Message = why
	var c Change
	c.write(Update, update)
	p.propose(key, c)
}

// grant gives a host the grant for a guest. from is what the guest is restored from; nil: it is started.
func (p *pass) grant(key string, g *v1.Guest, cluster *v1.Cluster, host string, from *v1.CheckpointMember) {
	h := p.Hosts[host]
	update := proto.CloneOf(g)
	update.LastEpoch++
	update.Epoch, update.StartedEpoch, update.Host, update.Message = update.LastEpoch, update.LastEpoch, host, ""
	update.Started = timestamppb.New(p.Now)
	update.BootId = h.GetInfo().GetBootId()
	var added *v1.Platform
	if from == nil {
		update.Platform, added = compatibility.Start(cluster, h.GetInfo(), p.room.fleet)
	} else { // the saved copy goes on
		update.Platform, update.StartedEpoch = from.Platform, from.StartedEpoch
	}
	var c Change
	c.write(Update, update)
	// Write no grant if the host is being removed meanwhile: it would never get the order.
	c.write(Expect, h)
	if added != nil {
		extended := proto.CloneOf(cluster)
		extended.Platforms = append(extended.Platforms, added)
		c.write(Update, extended)
	}
	p.useVolume(&c, g)
	if from == nil {
		c.event(v1.Severity_SEVERITY_INFO, "guest", g.Meta.Name, "is started on %s, epoch %d", host, update.Epoch)
	} else {
		c.event(v1.Severity_SEVERITY_INFO, "guest", g.Meta.Name, "is restored on %s from checkpoint %s, epoch %d", host, cluster.GetRestore().GetCheckpoint(), update.Epoch)
	}
	p.propose(key, c)
}

// complete reports whether every expected host has connected since the manager began to lead. New grants, and the
// removal of guests without a grant, wait for that: only the hosts can show that an older copy of the store was restored.
func (p *pass) complete() bool {
	until := p.Began.Add(ExpectedWithin)
	if !p.Now.Before(until) {
		return true
	}
	for name, h := range p.Hosts {
		if seen := p.Reports[name]; h.Info != nil && h.Meta.GetDeleting() == nil && !seen.Connected && seen.Since.IsZero() {
			p.again = earlier(p.again, until)
			return false
		}
	}
	return true
}

// Expected reports whether a host is connected, or expected to reconnect within seconds.
func Expected(r Reports, host string, now, began time.Time) bool {
	_, since, connected := r.Observed(host)
	switch {
	case connected:
		return true
	case since.IsZero():
		return now.Sub(began) < ExpectedWithin
	}
	return now.Sub(since) < ExpectedWithin
}

// Feasible checks whether a new cluster could be placed now, on hosts that are connected or expected to reconnect
// within seconds. The error has each host's reason. It returns the platforms of the cluster's guests. began is when the
// manager began to lead.
func Feasible(s *Objects, r Reports, spec *v1.ClusterSpec, imageDigest string, now, began time.Time) ([]*v1.Platform, error) {
	cluster := &v1.Cluster{Spec: spec, Platforms: compatibility.Platforms(spec, fleet(s, spec))}
	req := request(cluster)
	req.Shape = spec.Shape
	moves := ActiveMoves(s)
	hosts := newRoom(s, r, moves).forCluster(r, moves, nil, imageDigest)
	for i, h := range hosts {
		hosts[i].Connected = h.Info != nil && Expected(r, h.Name, now, began)
	}
	_, err := placement.Plan(req, int(spec.Guests), hosts)
	return cluster.Platforms, err
}

// feasibleMore checks whether more guests of a cluster could be placed now, as Feasible does for a new cluster.
func feasibleMore(s *Objects, r Reports, c *v1.Cluster, guests []*v1.Guest, more uint32, now, began time.Time) error {
	req := request(c)
	req.Shape = c.Spec.Shape
	moves := ActiveMoves(s)
	hosts := newRoom(s, r, moves).forCluster(r, moves, guests, c.ImageDigest)
	for i, h := range hosts {
		hosts[i].Connected = h.Info != nil && Expected(r, h.Name, now, began)
	}
	_, err := placement.Plan(req, int(more), hosts)
	return err
}

// PlanMove chooses the target of a guest's move and makes the move's record, which it does not store. The explanation
// has a line for each host. The error says why the guest cannot be moved.
func PlanMove(s *Objects, r Reports, g *v1.Guest, toHost, toSite string) (*v1.Migration, []string, error) {
	if g.Host == "" {
		return nil, nil, fmt.Errorf("guest %s does not run", g.Meta.Name)
	}
	if toHost == g.Host {
		return nil, nil, fmt.Errorf("guest %s is on host %s already", g.Meta.Name, toHost)
	}
	if toHost != "" && s.Hosts[toHost] == nil {
		return nil, nil, fmt.Errorf("there is no host %s; there are %s", toHost, strings.Join(sortedKeys(s.Hosts), ", "))
	}
	req := moveRequest(s, g)
	if toSite != "" {
		req.Sites = []string{toSite}
	} else if toHost != "" {
		req.Sites = nil
	}
	moves := ActiveMoves(s)
	room := newRoom(s, r, moves)
	hosts := room.forCluster(r, moves, GuestsOf(s, g.Cluster), g.ImageDigest)
	// Leave the guest out of its host's count, so that scores describe the cluster after the move.
	if i, is := room.at[g.Host]; is && hosts[i].ClusterGuests > 0 {
		hosts[i].ClusterGuests--
	}
	if toHost != "" {
		hosts = slices.DeleteFunc(hosts, func(h placement.Host) bool { return h.Name != toHost })
	}
	var explanation []string
	chosen, verdicts := placement.Choose(req, hosts)
	for _, v := range verdicts {
		explanation = append(explanation, v.String())
	}
	if chosen == "" {
		return nil, explanation, fmt.Errorf("guest %s cannot be moved: %s", g.Meta.Name, strings.Join(explanation, "; "))
	}
	return newMove(s, g, chosen), explanation, nil
}

// moveRequest returns the request for a host to which a guest moves.
func moveRequest(s *Objects, g *v1.Guest) *placement.Request {
	spec, source := s.Clusters[g.Cluster].GetSpec(), s.Hosts[g.Host].GetInfo()
	return &placement.Request{
		Shape: g.Shape, Spread: spec.GetSpread(), Sites: spec.GetSites(), Exclude: []string{g.Host},
		Compatible: func(target *v1.HostInfo) string { return compatibility.RefuseMove(g, source, target) },
	}
}

// newMove returns the record of a move that has not begun.
func newMove(s *Objects, g *v1.Guest, target string) *v1.Migration {
	return &v1.Migration{
		Meta:  &v1.Meta{Name: freeMoveName(s, g), Owner: g.Meta.Owner, OwnerUid: g.Meta.OwnerUid},
		Guest: g.Meta.Name, GuestUid: g.Meta.Uid, Source: g.Host, Target: target,
		SourceBootId: g.BootId, TargetBootId: s.Hosts[target].GetInfo().GetBootId(),
		SourceEpoch: g.Epoch, State: v1.MigrationState_MIGRATION_STATE_PENDING,
	}
}

// freeMoveName returns <guest>-m<n>. n is the epoch that the move would have. It is higher if a move that never left
// pending has that name.
func freeMoveName(s *Objects, g *v1.Guest) string {
	for n := g.LastEpoch + 1; ; n++ {
		name := fmt.Sprintf("%s-m%d", g.Meta.Name, n)
		if s.Migrations[name] == nil {
			return name
		}
	}
}
