// Package orders makes and applies changes of a host's orders, so that a session carries only the changes. The manager's
// core makes complete orders, and the agent's machine takes complete orders; only the code between them handles changes.
package orders

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "watari/api/watariv1"
	"watari/internal/protocol"
)

// Change returns now as a change to before, the previous orders of the same session; before may be nil. If an agent of this
// protocol version cannot apply now as a change to before, Change returns now itself.
func Change(before, now *v1.HostWanted, version uint32) *v1.HostWanted {
	if before == nil || version < protocol.Changes || before.Term != now.Term || before.Generation == 0 || before.Generation >= now.Generation {
		return now
	}
	// Scalar fields are those of now, except the policy, and so is the list of revoked certificates, which is short.
	c := &v1.HostWanted{Term: now.Term, Generation: now.Generation, BootId: now.BootId, Protocol: now.Protocol, Stamp: now.Stamp,
		Sharing: now.Sharing, TrustGroup: now.TrustGroup, Revoked: now.Revoked, BaseGeneration: before.Generation, Dropped: &v1.Dropped{},
		Network: &v1.NetworkWanted{Generation: now.Network.GetGeneration(), Mtu: now.Network.GetMtu(),
			// These lists are short and change seldom, so they are sent completely.
			Relayed: now.Network.GetRelayed(), Probes: now.Network.GetProbes(), Expelled: now.Network.GetExpelled(), GuardedLan: now.Network.GetGuardedLan()}}
	d, was, is := c.Dropped, before.Network, now.Network
	if now.AlonePolicy != before.AlonePolicy {
		c.AlonePolicy, d.AlonePolicy = now.AlonePolicy, now.AlonePolicy == ""
	}
	c.Guests, d.Guests = change(before.Guests, now.Guests, (*v1.GuestWanted).GetUid)
	c.Images, d.Images = change(before.Images, now.Images, (*v1.Image).GetDigest)
	c.Blobs, d.Blobs = change(before.Blobs, now.Blobs, (*v1.BlobShare).GetDigest)
	c.Checkpoints, d.Checkpoints = change(before.Checkpoints, now.Checkpoints, checkpointKey)
	c.Volumes, d.Volumes = change(before.Volumes, now.Volumes, (*v1.VolumeWanted).GetUid)
	c.Templates, d.Templates = change(before.Templates, now.Templates, (*v1.TemplateShare).GetKey)
	c.Network.Routes, d.Routes = change(was.GetRoutes(), is.GetRoutes(), (*v1.GuestRoute).GetAddress)
	c.Network.Peers, d.Peers = change(was.GetPeers(), is.GetPeers(), (*v1.PeerHost).GetName)
	c.Network.Clusters, d.Clusters = change(was.GetClusters(), is.GetClusters(), (*v1.ClusterNetwork).GetName)
	return c
}

// Apply returns the complete orders after w. before has the complete previous orders of the same session; nil: there were
// none. Apply changes neither.
func Apply(before, w *v1.HostWanted) (*v1.HostWanted, error) {
	if w.BaseGeneration == 0 {
		return w, nil
	}
	if before == nil || before.Term != w.Term || before.Generation != w.BaseGeneration {
		return nil, fmt.Errorf("orders change those of generation %d of term %d, but the last were of generation %d of term %d",
			w.BaseGeneration, w.Term, before.GetGeneration(), before.GetTerm())
	}
	d, was, is := w.Dropped, before.Network, w.Network
	alone := w.AlonePolicy
	if alone == "" && !d.GetAlonePolicy() {
		alone = before.AlonePolicy
	}
	return &v1.HostWanted{Term: w.Term, Generation: w.Generation, BootId: w.BootId, Protocol: w.Protocol, Stamp: w.Stamp,
		Sharing: w.Sharing, TrustGroup: w.TrustGroup, Revoked: w.Revoked, AlonePolicy: alone,
		Guests:      apply(before.Guests, w.Guests, d.GetGuests(), (*v1.GuestWanted).GetUid),
		Images:      apply(before.Images, w.Images, d.GetImages(), (*v1.Image).GetDigest),
		Blobs:       apply(before.Blobs, w.Blobs, d.GetBlobs(), (*v1.BlobShare).GetDigest),
		Checkpoints: apply(before.Checkpoints, w.Checkpoints, d.GetCheckpoints(), checkpointKey),
		Volumes:     apply(before.Volumes, w.Volumes, d.GetVolumes(), (*v1.VolumeWanted).GetUid),
		Templates:   apply(before.Templates, w.Templates, d.GetTemplates(), (*v1.TemplateShare).GetKey),
		Network: &v1.NetworkWanted{Generation: is.GetGeneration(), Mtu: is.GetMtu(), Relayed: is.GetRelayed(), Probes: is.GetProbes(), Expelled: is.GetExpelled(), GuardedLan: is.GetGuardedLan(),
			Routes:   apply(was.GetRoutes(), is.GetRoutes(), d.GetRoutes(), (*v1.GuestRoute).GetAddress),
			Peers:    apply(was.GetPeers(), is.GetPeers(), d.GetPeers(), (*v1.PeerHost).GetName),
			Clusters: apply(was.GetClusters(), is.GetClusters(), d.GetClusters(), (*v1.ClusterNetwork).GetName)},
	}, nil
}

func checkpointKey(c *v1.CheckpointWanted) string { return c.GetCheckpointId() + "/" + c.GetGuestUid() }

// change returns the elements of now that are missing or different in before, and the keys of elements that are missing in
// now.
func change[T proto.Message](before, now []T, key func(T) string) (changed []T, dropped []string) {
	had := make(map[string]T, len(before))
	for _, e := range before {
		had[key(e)] = e
	}
	for _, e := range now {
		if old, found := had[key(e)]; !found || !proto.Equal(old, e) {
			changed = append(changed, e)
		}
		delete(had, key(e))
	}
	for _, e := range before {
		if _, gone := had[key(e)]; gone {
			dropped = append(dropped, key(e))
		}
	}
	return changed, dropped
}

// apply is the inverse of change. The elements are ordered by their keys.
func apply[T proto.Message](before, changed []T, dropped []string, key func(T) string) []T {
	list := slices.Clone(changed)
	replaced := make(map[string]bool, len(changed)+len(dropped))
	for _, e := range changed {
		replaced[key(e)] = true
	}
	for _, k := range dropped {
		replaced[k] = true
	}
	for _, e := range before {
		if !replaced[key(e)] {
			list = append(list, e)
		}
	}
	slices.SortFunc(list, func(a, b T) int { return cmp.Compare(key(a), key(b)) })
	return list
}

// WithPeers returns orders in which guests' identities name the guests of their cluster, because guests need them and agents
// of protocol versions before Changes expect them. It does not change w.
func WithPeers(w *v1.HostWanted) *v1.HostWanted {
	clusters := map[string]*v1.ClusterNetwork{}
	for _, c := range w.Network.GetClusters() {
		clusters[c.Name] = c
	}
	full := shallow(w)
	full.Guests = nil
	for _, g := range w.Guests {
		if c := clusters[g.Cluster]; g.Identity != nil && len(g.Identity.Peers) == 0 && c != nil {
			g = with(g, c)
		}
		full.Guests = append(full.Guests, g)
	}
	return full
}

// with returns a guest's orders with the peers of its cluster.
func with(g *v1.GuestWanted, c *v1.ClusterNetwork) *v1.GuestWanted {
	g = shallow(g)
	g.Identity = proto.CloneOf(g.Identity)
	g.Identity.Peers, g.Identity.HomeServer = c.Peers, c.HomeServer
	return g
}

// shallow returns a copy of a message that shares its parts. It copies all fields, even those that a later version adds.
func shallow[M proto.Message](m M) M {
	made := m.ProtoReflect().New()
	m.ProtoReflect().Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		made.Set(field, value)
		return true
	})
	return made.Interface().(M)
}
