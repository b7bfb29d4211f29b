package controller

// wanted.go - what is wanted of one host, computed from the objects and the hosts' reports. Pure, but for the
// identities, which an Identify function makes.

import (
	"cmp"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/internal/protocol"
	"watari/manager/store"
	"watari/manager/view"
	"watari/migration"
)

// IdentifyFunc makes the identity of a guest for an epoch; the same call has the same answer.
type IdentifyFunc func(s *store.Snapshot, g *v1.Guest, epoch uint64) *v1.Identity

// unwanted: nothing of the guest is to run.
func unwanted(s *store.Snapshot, g *v1.Guest) bool {
	c := s.Clusters[g.Cluster]
	return g.Stopped || c == nil || c.Meta.Deleting != nil
}

// hostWanted is all that is wanted of a host, without term and generations.
func hostWanted(s *store.Snapshot, o view.Observer, strangers map[string]view.Stranger, identify IdentifyFunc, host string) *v1.HostWanted {
	w := &v1.HostWanted{BootId: view.BootID(s, o, host), Protocol: protocol.Version}
	moves := movesByGuest(s)
	for _, g := range s.Guests {
		if _, is := strangers[g.Meta.Uid]; is {
			continue // nothing that the store says of it can be relied on
		}
		if wanted := guestWanted(s, o, moves[g.Meta.Uid], identify, g, host); wanted != nil {
			w.Guests = append(w.Guests, wanted)
		}
	}
	report, _, _ := o.Observed(host)
	w.Guests = append(w.Guests, leftovers(w.Guests, report, strangers)...)
	slices.SortFunc(w.Guests, func(a, b *v1.GuestWanted) int { return cmp.Compare(a.Uid, b.Uid) })
	w.Network = networkWanted(s, moves, host)
	w.Images = imagesWanted(s, w.Guests)
	return w
}

func movesByGuest(s *store.Snapshot) map[string]*v1.Migration {
	moves := map[string]*v1.Migration{}
	for _, m := range s.Migrations {
		if !migration.Ended(m.State) {
			moves[m.GuestUid] = m
		}
	}
	return moves
}

// leftovers are the guests a host reports though nothing of them is wanted there: copies of an older epoch,
// guests of deleted clusters, remains of a move. They are ended at the epoch they are reported with. Strangers are left
// alone.
func leftovers(wanted []*v1.GuestWanted, report *v1.HostObserved, strangers map[string]view.Stranger) []*v1.GuestWanted {
	var list []*v1.GuestWanted
	for _, seen := range report.GetGuests() {
		if _, is := strangers[seen.Uid]; is {
			continue
		}
		if !slices.ContainsFunc(wanted, func(w *v1.GuestWanted) bool { return w.Uid == seen.Uid }) {
			list = append(list, &v1.GuestWanted{Uid: seen.Uid, Name: seen.Name, Role: v1.GuestRole_GUEST_ROLE_ABSENT, Epoch: seen.Epoch})
		}
	}
	return list
}

// granted tells whether a host holds a guest's grant in its present boot. A copy that lives under the grant's epoch is
// evidence of that, too.
func granted(s *store.Snapshot, o view.Observer, g *v1.Guest, host string) bool {
	switch {
	case g.Host != host || s.Hosts[host] == nil || s.Hosts[host].FencedBootId != "" && s.Hosts[host].FencedBootId == g.BootId:
		return false
	case g.BootId == "" || view.BootID(s, o, host) == g.BootId:
		return true
	}
	return livesInAnotherBoot(o, g)
}

// livesInAnotherBoot tells whether the copy under a guest's grant lives though its host reports another boot than the grant's.
func livesInAnotherBoot(o view.Observer, g *v1.Guest) bool {
	report, _, _ := o.Observed(g.Host)
	return view.Alive(o, g.Host, g.Meta.Uid) && view.GuestOn(report, g.Meta.Uid).Epoch == g.Epoch
}

func guestWanted(s *store.Snapshot, o view.Observer, m *v1.Migration, identify IdentifyFunc, g *v1.Guest, host string) *v1.GuestWanted {
	role, epoch := v1.GuestRole_GUEST_ROLE_UNSPECIFIED, g.Epoch
	granted := granted(s, o, g, host)
	switch {
	case granted && unwanted(s, g):
		return &v1.GuestWanted{Uid: g.Meta.Uid, Name: g.Meta.Name, Role: v1.GuestRole_GUEST_ROLE_ABSENT, Epoch: g.Epoch}
	case unwanted(s, g):
		return nil
	case granted:
		role = v1.GuestRole_GUEST_ROLE_RUN
	}
	// While a move has not passed the grant on, both hosts are told their part; afterwards the grant tells.
	if m != nil && m.State != v1.MigrationState_MIGRATION_STATE_RESUMING {
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
		Shape: g.Shape, NoFork: g.NoFork, Image: imageByDigest(s, g.ImageDigest), Identity: identify(s, g, epoch), Platform: g.Platform,
		Facts: guestFacts(s, g)}
	if role == v1.GuestRole_GUEST_ROLE_INCOMING || role == v1.GuestRole_GUEST_ROLE_OUTGOING {
		w.Migration = order(s, m)
	}
	return w
}

// guestFacts are what hosts keep of a guest, so that its objects can be made again if they are lost.
func guestFacts(s *store.Snapshot, g *v1.Guest) *v1.GuestFacts {
	c := s.Clusters[g.Cluster]
	return &v1.GuestFacts{
		Cluster: &v1.ClusterFacts{Name: g.Cluster, Uid: c.GetMeta().GetUid(), Owner: c.GetMeta().GetOwner(), OwnerUid: c.GetMeta().GetOwnerUid(),
			Prefix: c.GetPrefix(), Mtu: c.GetMtu(), Spec: c.GetSpec()},
		Owner: g.Meta.Owner, OwnerUid: g.Meta.OwnerUid, Index: g.Index, Shape: g.Shape, ImageDigest: g.ImageDigest, Address: g.Address,
		NoFork: g.NoFork, Platform: g.Platform, StartedEpoch: g.StartedEpoch,
	}
}

func order(s *store.Snapshot, m *v1.Migration) *v1.MigrationOrder {
	return &v1.MigrationOrder{
		Id: m.Meta.Uid, SourceHost: m.Source, TargetHost: m.Target, BandwidthBytes: m.BandwidthBytes, Cancel: m.Cancel,
		TargetAddress: tunnelAddress(s.Hosts[m.Target]),
		SourceUid:     s.Hosts[m.Source].GetMeta().GetUid(), TargetUid: s.Hosts[m.Target].GetMeta().GetUid(),
	}
}

func imageByDigest(s *store.Snapshot, digest string) *v1.Image {
	for _, image := range s.Images {
		if image.Digest == digest {
			i := proto.CloneOf(image)
			i.Meta = nil // the host needs the content alone, and a renamed image is the same one
			return i
		}
	}
	return nil
}

func imagesWanted(s *store.Snapshot, guests []*v1.GuestWanted) []*v1.Image {
	seen := map[string]*v1.Image{}
	for _, g := range guests {
		if g.Image != nil {
			seen[g.Image.Digest] = g.Image
		}
	}
	var images []*v1.Image
	for _, image := range seen {
		images = append(images, image)
	}
	slices.SortFunc(images, func(a, b *v1.Image) int { return cmp.Compare(a.Digest, b.Digest) })
	return images
}

// whereabouts is the host that a guest's messages are sent to; empty: none.
func whereabouts(g *v1.Guest, m *v1.Migration) string {
	if m != nil && migration.RoutedToTarget(m.State) {
		return m.Target
	}
	return g.Host
}

// networkWanted holds the routes of all guests of all clusters that have, or are about to have, a guest on the
// host, and the other hosts among them.
func networkWanted(s *store.Snapshot, moves map[string]*v1.Migration, host string) *v1.NetworkWanted {
	n := &v1.NetworkWanted{}
	here := map[string]bool{}
	for _, g := range s.Guests {
		m := moves[g.Meta.Uid]
		if g.Host == host || whereabouts(g, m) == host || m != nil && m.Target == host {
			here[g.Cluster] = true
		}
	}
	peers := map[string]bool{}
	for _, g := range s.Guests {
		if at := whereabouts(g, moves[g.Meta.Uid]); here[g.Cluster] && at != "" {
			n.Routes = append(n.Routes, &v1.GuestRoute{Address: g.Address, Host: at})
			if at != host {
				peers[at] = true
			}
		}
		// A source whose guest has just left is still a peer: what is under way to it is passed on.
		if m := moves[g.Meta.Uid]; here[g.Cluster] && m != nil {
			for _, end := range []string{m.Source, m.Target} {
				if end != host {
					peers[end] = true
				}
			}
		}
	}
	for cluster := range here {
		if c := s.Clusters[cluster]; c != nil {
			n.Clusters = append(n.Clusters, &v1.ClusterNetwork{Name: cluster, Prefix: c.Prefix})
			if n.Mtu == 0 || c.Mtu < n.Mtu {
				n.Mtu = c.Mtu
			}
		}
	}
	for name := range peers {
		if peer := peerHost(s, name, host); peer != nil {
			n.Peers = append(n.Peers, peer)
		}
	}
	slices.SortFunc(n.Routes, func(a, b *v1.GuestRoute) int { return cmp.Compare(a.Address, b.Address) })
	slices.SortFunc(n.Peers, func(a, b *v1.PeerHost) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(n.Clusters, func(a, b *v1.ClusterNetwork) int { return cmp.Compare(a.Name, b.Name) })
	return n
}

func peerHost(s *store.Snapshot, name, host string) *v1.PeerHost {
	info := s.Hosts[name].GetInfo()
	if info == nil {
		return nil
	}
	return &v1.PeerHost{Name: name, Site: info.Site, LanAddress: info.LanAddress, SameSite: info.Site == s.Hosts[host].GetInfo().GetSite(),
		WireguardPublicKey: info.WireguardPublicKey, WireguardPort: info.WireguardPort}
}
