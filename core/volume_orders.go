package core

// volume_orders.go - the orders that hosts get about volumes, and the guests that use them.

import (
	"cmp"
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// volumeOf returns the volume that a guest has; nil: none.
func volumeOf(s *Objects, g *v1.Guest) *v1.Volume {
	cluster := s.Clusters[g.Cluster]
	if g.Index != 0 || cluster.GetSpec().GetVolume() == "" {
		return nil
	}
	if v := s.Volumes[cluster.Spec.Volume]; v != nil && v.Cluster == g.Cluster && v.ClusterUid == cluster.Meta.Uid {
		return v
	}
	return nil
}

// diskAway says that the host of a guest's volume is out of reach; empty: it is connected, or the guest has no volume. QEMU
// on another host could not open the disk, so the guest cannot move.
func diskAway(s *Objects, r Reports, g *v1.Guest) string {
	v := volumeOf(s, g)
	if v == nil {
		return ""
	}
	if _, _, connected := r.Observed(v.Host); connected {
		return ""
	}
	return fmt.Sprintf("host %s, which has its volume %s, is out of reach", v.Host, v.Meta.Name)
}

// volumesOn returns the names of the volumes that a host has, or that move to it.
func volumesOn(s *Objects, host string) (names []string) {
	for _, name := range sortedKeys(s.Volumes) {
		if slices.Contains(volumeHosts(s.Volumes[name]), host) {
			names = append(names, name)
		}
	}
	return names
}

// lacksVolume says why a guest cannot be started yet; empty: it can, as far as its volume is concerned.
func (p *pass) lacksVolume(g *v1.Guest) string {
	name := p.Clusters[g.Cluster].GetSpec().GetVolume()
	if g.Index != 0 || name == "" {
		return ""
	}
	v := volumeOf(p.Objects, g)
	switch {
	case v == nil:
		return fmt.Sprintf("volume %s, which has the shared home, no longer exists", name)
	case p.outdated(v) != "":
		return fmt.Sprintf("volume %s waits: %s", name, p.outdated(v))
	case v.State != v1.VolumeState_VOLUME_STATE_READY:
		return fmt.Sprintf("volume %s is not ready: %s", name, cmp.Or(v.Message, "host "+v.Host+" makes it"))
	}
	report, _, connected := p.Observed(v.Host)
	if !connected {
		return fmt.Sprintf("host %s, which has volume %s, is out of reach", v.Host, name)
	}
	if seen := volumeOn(report, v.Meta.Uid); !seen.GetReady() {
		return fmt.Sprintf("host %s does not serve volume %s: %s", v.Host, name, cmp.Or(seen.GetMessage(), "not yet"))
	}
	if from := p.volumeRestoredFrom(v); from != nil && volumeOn(report, v.Meta.Uid).GetRestored() != p.volumeRestores(v).GetRestore().Id {
		return fmt.Sprintf("host %s puts volume %s back to checkpoint %s", v.Host, name, from.Meta.Name)
	}
	return ""
}

// useVolume gives the volume of a guest that is about to be started the next generation. From then on the guest's disk is the latest:
// a host with a disk from before, which the store does not know because an older copy of it was put back, does not take the volume
// from the guest when it returns.
func (p *pass) useVolume(c *Change, g *v1.Guest) {
	v := volumeOf(p.Objects, g)
	if v == nil || unadopted(v) {
		return
	}
	used := proto.CloneOf(v)
	used.Generation = NextGeneration(v.Generation, p.Now)
	used.UsedGeneration = used.Generation
	c.write(Update, used)
}

// volumeSource says where a guest's volume is served; nil: it has none.
func (p *pass) volumeSource(g *v1.Guest) *v1.VolumeSource {
	v := volumeOf(p.Objects, g)
	if v == nil || p.Hosts[v.Host] == nil {
		return nil
	}
	return &v1.VolumeSource{Uid: v.Meta.Uid, Host: blobPeers(p.Objects, []string{v.Host})[0]}
}

// volumeOrders returns a host's orders about its volumes.
func (p *pass) volumeOrders(host string) (list []*v1.VolumeWanted) {
	for v := range p.index.volumesAt[host] {
		if p.laterElsewhere(v) {
			continue
		}
		outdated := p.outdated(v) != ""
		if v.Host != host {
			if w := p.receiveOrder(v); w != nil {
				list = append(list, w)
			}
			continue
		}
		w := &v1.VolumeWanted{Uid: v.Meta.Uid, Discard: v.Meta.Deleting != nil && !outdated,
			// If an older copy of the store was put back, the volume may have moved since it was made here.
			Make:  unmade(v) && p.complete() && p.diskElsewhere(v) == nil && !outdated,
			Facts: &v1.VolumeFacts{Name: v.Meta.Name, Owner: v.Meta.Owner, OwnerUid: v.Meta.OwnerUid, SizeBytes: v.SizeBytes, Generation: v.Generation}}
		if p.Seal != nil {
			w.Facts.Seal = p.Seal(host, w.Uid, w.Facts)
		}
		if !outdated { // otherwise this host has the latest disk, and only serves it
			if from := p.volumeRestoredFrom(v); from != nil {
				w.Restore = p.orderToRestore(p.volumeRestores(v), from, from.Volume)
			} else if p.abandoned(v) && !w.Discard {
				continue // the host would serve a disk that is out of date
			}
			p.moveOrders(w, v)
		}
		for g := range p.index.ofCluster[v.Cluster] {
			if volumeOf(p.Objects, g) != v || g.Host == "" {
				continue
			}
			readers := []string{g.Host}
			if m := p.index.moves[g.Meta.Uid]; m != nil {
				readers = append(readers, m.Source, m.Target)
			}
			slices.Sort(readers)
			readers = slices.DeleteFunc(slices.Compact(readers), func(host string) bool { return cutOff(p.Hosts[host]) != nil })
			w.Readers = blobPeers(p.Objects, readers)
		}
		list = append(list, w)
	}
	list = p.dropCopies(host, append(list, p.staleVolumes(host)...))
	slices.SortFunc(list, func(a, b *v1.VolumeWanted) int { return cmp.Compare(a.Uid, b.Uid) })
	return list
}

// unmade reports whether no host has served a disk of a volume yet, so far as the store knows.
func unmade(v *v1.Volume) bool {
	return v.State == v1.VolumeState_VOLUME_STATE_PENDING && v.Generation == 0
}
