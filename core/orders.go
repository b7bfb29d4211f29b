package core

// orders.go - makes each host's orders.

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/internal/protocol"
	"watari/migration"
)

// orderBook has the last orders of each host, and their parts.
type orderBook struct {
	sent map[string]sentOrders
	base map[string]*v1.HostWanted // orders without what package sharing decides
	// share is the part that package sharing decided, by host; nil: the host's agent cannot share.
	share map[string]*shareOrders
}

// sentOrders is the last orders of a host.
type sentOrders struct {
	wanted *v1.HostWanted
	since  time.Time // of the connection on which it was sent
}

func newOrderBook() orderBook {
	return orderBook{sent: map[string]sentOrders{}, base: map[string]*v1.HostWanted{}, share: map[string]*shareOrders{}}
}

func (b orderBook) clone() orderBook {
	return orderBook{sent: maps.Clone(b.sent), base: map[string]*v1.HostWanted{}, share: map[string]*shareOrders{}}
}

// makeOrders makes the orders of each connected host whose orders may have changed.
func (p *pass) makeOrders() {
	p.orders = map[string]*v1.HostWanted{}
	book := &p.Core.orders
	again := map[string]bool{}
	for _, name := range p.index.hostNames() {
		_, _, connected := p.Observed(name)
		if p.Hosts[name] == nil || !connected {
			delete(book.base, name)
			if p.Hosts[name] == nil {
				delete(book.sent, name)
			}
			continue
		}
		before := book.base[name]
		book.base[name] = p.baseOrders(name)
		if before == nil || !slices.EqualFunc(before.Images, book.base[name].Images, sameImage) {
			p.index.shareAgain = true
		}
		again[name] = true
	}
	if !p.NoSharing {
		for _, name := range p.share() {
			again[name] = true
		}
	}
	for _, name := range sortedKeys(again) {
		if base := book.base[name]; base != nil {
			p.send(name, base)
		}
	}
}

func sameImage(a, b *v1.Image) bool { return a.Digest == b.Digest }

// send assembles a host's orders, and adds them to the decision if they have changed or the host has a new connection.
// A generation grows with every change.
func (p *pass) send(host string, base *v1.HostWanted) {
	book := &p.Core.orders
	last := book.sent[host]
	w := &v1.HostWanted{Term: p.Core.Term, Generation: last.wanted.GetGeneration(), BootId: base.BootId, Protocol: base.Protocol, Guests: base.Guests, Images: base.Images, Checkpoints: base.Checkpoints, Volumes: base.Volumes, Revoked: base.Revoked, AlonePolicy: base.AlonePolicy,
		Stamp: last.wanted.GetStamp()}
	w.Network = &v1.NetworkWanted{Generation: last.wanted.GetNetwork().GetGeneration(), Routes: base.Network.Routes, Peers: base.Network.Peers,
		Clusters: base.Network.Clusters, Mtu: base.Network.Mtu, Relayed: base.Network.Relayed, Probes: base.Network.Probes, Expelled: base.Network.Expelled, GuardedLan: base.Network.GuardedLan}
	if s := book.share[host]; s != nil {
		w.Sharing, w.TrustGroup, w.Blobs, w.Templates = true, s.group, slices.Concat(s.blobs, base.Blobs), s.templates
		slices.SortFunc(w.Blobs, func(a, b *v1.BlobShare) int { return cmp.Compare(a.Digest, b.Digest) })
	}
	_, since, _ := p.Observed(host)
	network := last.wanted != nil && sameNetwork(w.Network, last.wanted.Network)
	if network && sameRest(w, last.wanted) {
		if !since.Equal(last.since) {
			book.sent[host] = sentOrders{last.wanted, since}
			p.orders[host] = last.wanted
		}
		return
	}
	if !network {
		w.Network.Generation++
	}
	w.Generation++
	w.Stamp = nil // the caller signs what is new
	book.sent[host] = sentOrders{w, since}
	p.orders[host] = w
}

// sameNetwork reports whether two orders have the same network. Most elements of the lists are the same objects.
func sameNetwork(a, b *v1.NetworkWanted) bool {
	return a.Generation == b.Generation && a.Mtu == b.Mtu && a.GuardedLan == b.GuardedLan && sameList(a.Routes, b.Routes) && sameList(a.Peers, b.Peers) &&
		sameList(a.Relayed, b.Relayed) && sameList(a.Probes, b.Probes) && slices.Equal(a.Expelled, b.Expelled) &&
		slices.EqualFunc(a.Clusters, b.Clusters, func(a, b *v1.ClusterNetwork) bool {
			return a.Name == b.Name && a.Prefix == b.Prefix && a.HomeServer == b.HomeServer && sameList(a.Peers, b.Peers)
		})
}

// sameRest reports whether two orders of one term and generation are the same but for the network and the stamp.
func sameRest(a, b *v1.HostWanted) bool {
	return a.BootId == b.BootId && a.Protocol == b.Protocol && a.Sharing == b.Sharing && a.TrustGroup == b.TrustGroup && a.AlonePolicy == b.AlonePolicy &&
		slices.EqualFunc(a.Guests, b.Guests, sameGuest) && sameList(a.Checkpoints, b.Checkpoints) && sameList(a.Volumes, b.Volumes) && sameList(a.Revoked, b.Revoked) && sameList(a.Images, b.Images) && sameList(a.Blobs, b.Blobs) && sameList(a.Templates, b.Templates)
}

func sameList[T interface {
	comparable
	proto.Message
}](a, b []T) bool {
	return slices.EqualFunc(a, b, same)
}

func same[T interface {
	comparable
	proto.Message
}](a, b T) bool {
	return a == b || proto.Equal(a, b)
}

// sameGuest reports whether two orders about a guest are the same. Most of their parts are the same objects.
func sameGuest(a, b *v1.GuestWanted) bool {
	return a.Uid == b.Uid && a.Name == b.Name && a.Cluster == b.Cluster && a.Role == b.Role && a.Epoch == b.Epoch && a.NoFork == b.NoFork &&
		a.LeaseMs == b.LeaseMs && same(a.Shape, b.Shape) && same(a.Image, b.Image) && same(a.Identity, b.Identity) && same(a.Migration, b.Migration) &&
		same(a.Platform, b.Platform) && same(a.Facts, b.Facts) && same(a.Limits, b.Limits) && same(a.Restore, b.Restore) && same(a.Volume, b.Volume)
}

// baseOrders returns a host's orders without term, generations and the part that package sharing decides.
func (p *pass) baseOrders(host string) *v1.HostWanted {
	w := &v1.HostWanted{BootId: BootID(p.Objects, p, host), Protocol: protocol.Version}
	guests := map[string]*v1.Guest{}
	for g := range p.index.onHost[host] {
		guests[g.Meta.Uid] = g
	}
	for m := range p.index.movesAt[host] {
		if g := p.Guests[m.Guest]; g != nil && g.Meta.Uid == m.GuestUid {
			guests[g.Meta.Uid] = g
		}
	}
	for uid, g := range guests {
		if _, is := p.index.strangers[uid]; is {
			continue // a stranger: the store's object of this guest may be wrong
		}
		if wanted := p.guestOrder(g, host); wanted != nil {
			w.Guests = append(w.Guests, wanted)
		}
	}
	w.Guests = append(w.Guests, p.leftovers(host, w.Guests)...)
	slices.SortFunc(w.Guests, func(a, b *v1.GuestWanted) int { return cmp.Compare(a.Uid, b.Uid) })
	w.Network = p.networkOrder(host, guests)
	w.Checkpoints, w.Blobs = p.checkpointOrders(host)
	w.Volumes, w.Revoked = p.volumeOrders(host), p.revoked()
	w.Images = imagesOf(w.Guests)
	if h := p.Hosts[host]; h != nil {
		w.AlonePolicy = p.match(h).alone
	}
	return w
}

// leftovers returns orders to end the guests that a host reports and should not have: copies of an older epoch, guests of
// deleted clusters, remains of a move. Each order has the reported epoch. There is no order for strangers, nor for guests
// whose record the agent has not read yet. A host that has ended its granted copy keeps the record until the store has
// another grant: the next manager may need the record.
func (p *pass) leftovers(host string, wanted []*v1.GuestWanted) []*v1.GuestWanted {
	mentioned := map[string]bool{}
	for _, w := range wanted {
		mentioned[w.Uid] = true
	}
	var list []*v1.GuestWanted
	report, _, _ := p.Observed(host)
	for _, seen := range report.GetGuests() {
		unread := seen.Epoch == 0 && seen.Condition == v1.GuestCondition_GUEST_CONDITION_UNSPECIFIED
		g := p.index.byUID[seen.Uid]
		decided := g == nil || g.Host != host || g.Epoch != seen.Epoch || seen.Condition != v1.GuestCondition_GUEST_CONDITION_GONE
		if _, is := p.index.strangers[seen.Uid]; !is && !mentioned[seen.Uid] && !unread && decided {
			list = append(list, &v1.GuestWanted{Uid: seen.Uid, Name: seen.Name, Role: v1.GuestRole_GUEST_ROLE_ABSENT, Epoch: seen.Epoch})
		}
	}
	return list
}

// guestOrder returns the order about a guest on a host; nil: none.
func (p *pass) guestOrder(g *v1.Guest, host string) *v1.GuestWanted {
	m := p.index.moves[g.Meta.Uid]
	role, epoch := v1.GuestRole_GUEST_ROLE_UNSPECIFIED, g.Epoch
	granted := granted(p.Objects, p, g, host)
	switch {
	case granted && unwanted(p.Objects, g):
		return &v1.GuestWanted{Uid: g.Meta.Uid, Name: g.Meta.Name, Role: v1.GuestRole_GUEST_ROLE_ABSENT, Epoch: g.Epoch}
	case unwanted(p.Objects, g):
		return nil
	case granted && restoring(p.Clusters[g.Cluster]):
		role = v1.GuestRole_GUEST_ROLE_INCOMING
	case granted:
		role = v1.GuestRole_GUEST_ROLE_RUN
	}
	// Until a move has passed on the grant, its state gives both hosts their roles. Afterwards the grant does.
	if m != nil && m.State != v1.MigrationState_MIGRATION_STATE_RESUMING && !restoring(p.Clusters[g.Cluster]) {
		source, target := migration.Roles(m.State)
		switch host {
		case m.Source:
			if granted {
				role = source
			}
		case m.Target:
			if target == v1.GuestRole_GUEST_ROLE_INCOMING {
				role, epoch = target, m.TargetEpoch
			}
		}
	}
	if role == v1.GuestRole_GUEST_ROLE_UNSPECIFIED {
		return nil
	}
	w := &v1.GuestWanted{Uid: g.Meta.Uid, Name: g.Meta.Name, Cluster: g.Cluster, Role: role, Epoch: epoch,
		Shape: g.Shape, NoFork: g.NoFork, Image: p.image(g.ImageDigest), Identity: p.identity(g, host, epoch), Platform: g.Platform,
		Facts: p.facts(g), LeaseMs: g.LeaseMs, Volume: p.volumeSource(g)}
	if role == v1.GuestRole_GUEST_ROLE_RUN || role == v1.GuestRole_GUEST_ROLE_OUTGOING {
		w.Limits = p.limits(host)
	}
	if granted && role == v1.GuestRole_GUEST_ROLE_INCOMING {
		w.Restore = p.restoreOrder(g)
	} else if role == v1.GuestRole_GUEST_ROLE_INCOMING || role == v1.GuestRole_GUEST_ROLE_OUTGOING {
		w.Migration = moveOrder(p.Objects, m)
	}
	return w
}

// identity returns the identity of a guest on a host for an epoch; nil: it could not be made.
func (p *pass) identity(g *v1.Guest, host string, epoch uint64) *v1.Identity {
	identity, renew := p.Identify(p.Clusters[g.Cluster], g, epoch, p.Revocations[revocationsName].GetGuests())
	p.orderAgain(host, renew)
	if mounts := p.mounts(p.Clusters[g.Cluster]); identity != nil && len(mounts) > 0 {
		identity = proto.CloneOf(identity)
		identity.Mounts = mounts
	}
	return identity
}

// facts returns the facts of a guest that its host keeps. From them a recovery makes lost objects again.
func (p *pass) facts(g *v1.Guest) *v1.GuestFacts {
	c := p.Clusters[g.Cluster]
	known, is := p.index.facts[g]
	if !is || known.cluster != c {
		known = knownFacts{c, &v1.GuestFacts{
			Cluster: &v1.ClusterFacts{Name: g.Cluster, Uid: c.GetMeta().GetUid(), Owner: c.GetMeta().GetOwner(), OwnerUid: c.GetMeta().GetOwnerUid(),
				Prefix: c.GetPrefix(), Mtu: c.GetMtu(), Spec: c.GetSpec(), Resizes: c.GetResizes()},
			Owner: g.Meta.Owner, OwnerUid: g.Meta.OwnerUid, Index: g.Index, Shape: g.Shape, ImageDigest: g.ImageDigest, Address: g.Address,
			NoFork: g.NoFork, Platform: g.Platform, StartedEpoch: g.StartedEpoch,
		}}
		p.index.facts[g] = known
	}
	return known.facts
}

// knownFacts are a guest's facts, and the cluster from which they were made.
type knownFacts struct {
	cluster *v1.Cluster
	facts   *v1.GuestFacts
}

func moveOrder(s *Objects, m *v1.Migration) *v1.MigrationOrder {
	return &v1.MigrationOrder{
		Id: m.Meta.Uid, SourceHost: m.Source, TargetHost: m.Target, BandwidthBytes: m.BandwidthBytes, Cancel: m.Cancel,
		TargetAddress: tunnelAddress(s.Hosts[m.Target]),
		SourceUid:     s.Hosts[m.Source].GetMeta().GetUid(), TargetUid: s.Hosts[m.Target].GetMeta().GetUid(),
	}
}

// tunnelAddress returns the address of a host's tunnel, host:port; empty: not known.
func tunnelAddress(h *v1.Host) string { return portAddress(h, h.GetInfo().GetTunnelPort()) }

// portAddress returns the address of a host's port, host:port; empty: not known.
func portAddress(h *v1.Host, port uint32) string {
	address, err := netip.ParseAddr(h.GetInfo().GetLanAddress())
	if err != nil {
		return ""
	}
	return netip.AddrPortFrom(address, uint16(port)).String()
}

// image returns the image with this digest, without its name. A host needs only the content, and a new name must not
// change its orders.
func (p *pass) image(digest string) *v1.Image {
	x := p.index
	if x.imageDigest == nil {
		x.imageDigest = map[string]*v1.Image{}
		for _, name := range sortedKeys(p.Images) {
			i := proto.CloneOf(p.Images[name])
			i.Meta = nil
			if other := x.imageDigest[i.Digest]; other != nil {
				i.Private = i.Private && other.Private // what is published under one name is no secret
			}
			x.imageDigest[i.Digest] = i
		}
	}
	return x.imageDigest[digest]
}

func imagesOf(guests []*v1.GuestWanted) []*v1.Image {
	seen := map[string]*v1.Image{}
	for _, g := range guests {
		if g.Image != nil {
			seen[g.Image.Digest] = g.Image
		}
	}
	var images []*v1.Image
	for _, digest := range sortedKeys(seen) {
		images = append(images, seen[digest])
	}
	return images
}
