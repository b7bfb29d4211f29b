package core

// recover_clusters.go - makes clusters that the state does not know again, from the facts that hosts keep of their
// guests.

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// GuestUID derives the uid of a cluster's guest. So a guest without any copy gets its old uid when its cluster is made
// again. Guests of earlier versions have random uids.
func GuestUID(cluster string, index uint32) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "watari guest %s %d", cluster, index))
	b := sum[:16]
	b[6] = b[6]&0x0f | 0x80 // version 8 of RFC 9562: derived by our own rule
	b[8] = b[8]&0x3f | 0x80
	h := hex.EncodeToString(b)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// recoveredPrefix reads the prefix of a cluster with a number of guests. ok: a manager makes such prefixes. The prefix of a
// cluster that was made with more guests and resized is larger.
func recoveredPrefix(text string, guests uint32, resized bool) (prefix netip.Prefix, ok bool) {
	prefix, err := netip.ParsePrefix(text)
	if err != nil || !prefix.Addr().Is4() || prefix.Masked() != prefix {
		return prefix, false
	}
	least, most := prefixBits(int(guests)), prefixBits(int(guests))
	if resized {
		least = prefixBits(maxGuests)
	}
	return prefix, prefix.Bits() >= least && prefix.Bits() <= most
}

// recoveredAddress returns the address of a cluster's guest. Addresses are in the order of the indices, and like is another
// guest of the cluster.
func recoveredAddress(prefix netip.Prefix, index uint32, like *v1.Guest) netip.Addr {
	if other, err := netip.ParseAddr(like.Address); err == nil && prefix.Contains(other) {
		return addressOf(number(other) - uint64(like.Index) + uint64(index))
	}
	return guestAddress(prefix, int(index))
}

// fits tells whether a guest with this index may have the address: the addresses of the cluster's other guests are in
// the prefix, too.
func fits(prefix netip.Prefix, address netip.Addr, index, guests uint32) bool {
	if !prefix.Contains(address) {
		return false
	}
	first, n := number(prefix.Addr()), number(address)
	return n >= first+uint64(index) && n-uint64(index)+uint64(guests) <= first+1<<(32-prefix.Bits())
}

// clusters plans the clusters to make again: unknown clusters with a copy that may run, and known clusters that have grown
// since the state was written. Copies disagree about the number of guests if a host was away during a resize: the last
// resize counts.
func (r *recovery) clusters() {
	facts := map[string]*v1.GuestFacts{} // one of each unknown cluster, by its uid
	for _, uid := range slices.Sorted(maps.Keys(r.copies)) {
		for _, c := range r.copies[uid] {
			f := c.seen.GetFacts()
			cluster := f.GetCluster().GetUid()
			switch {
			case cluster == "" || !mayRun(c.seen) && c.seen.Condition != v1.GuestCondition_GUEST_CONDITION_RECEIVED:
			case facts[cluster] == nil:
				facts[cluster], r.made[cluster] = f, r.refused(f)
			case !sameCluster(facts[cluster], f):
				r.made[cluster] = "hosts do not agree about its cluster"
			case f.Cluster.Resizes > facts[cluster].Cluster.Resizes && r.made[cluster] == "":
				facts[cluster], r.made[cluster] = f, r.refused(f)
			}
		}
	}
	for _, uid := range slices.Sorted(maps.Keys(facts)) {
		if c := r.clusterByUID(uid); c != nil {
			delete(r.made, uid)
			r.grown(c, facts[uid])
			continue
		}
		if r.made[uid] == "" {
			r.made[uid] = r.taken(facts[uid])
		}
		if r.made[uid] == "" {
			r.makeAgain(facts[uid])
		}
	}
}

func (r *recovery) clusterByUID(uid string) *v1.Cluster {
	for _, c := range r.objects.Clusters {
		if c.Meta.GetUid() == uid {
			return c
		}
	}
	return nil
}

func sameCluster(a, b *v1.GuestFacts) bool {
	x, y := proto.CloneOf(a.Cluster), proto.CloneOf(b.Cluster)
	if x.Resizes != y.Resizes && x.Spec != nil && y.Spec != nil {
		x.Spec.Guests, x.Resizes = y.Spec.Guests, y.Resizes
	}
	return proto.Equal(x, y) && a.ImageDigest == b.ImageDigest
}

// grown plans the guests that a known cluster got after the state was written. Guests that it lost since are kept: a user
// can remove them again.
func (r *recovery) grown(c *v1.Cluster, f *v1.GuestFacts) {
	if f.Cluster.Resizes <= c.Resizes || c.Meta.Deleting != nil || r.refused(f) != "" || f.Cluster.Spec.Guests <= c.Spec.GetGuests() ||
		f.Cluster.Name != c.Meta.Name || f.Cluster.Prefix != c.Prefix || f.ImageDigest != c.ImageDigest {
		return
	}
	object := proto.CloneOf(c)
	object.Spec.Guests, object.Resizes = f.Cluster.Spec.Guests, f.Cluster.Resizes
	row := &v1.ClusterRecovery{Cluster: c.Meta.Name, Uid: c.Meta.Uid, Owner: c.Meta.Owner, Guests: object.Spec.Guests,
		Notes: []string{fmt.Sprintf("it had %d guests when the copy of the state was made, and has grown since", c.Spec.Guests)}}
	r.plan.Clusters = append(r.plan.Clusters, RecoveredCluster{row, object})
}

// refused returns what is wrong with a cluster's facts; empty: nothing. It checks all values, because no host is
// trusted.
func (r *recovery) refused(f *v1.GuestFacts) string {
	c := f.GetCluster()
	_, made := recoveredPrefix(c.GetPrefix(), c.GetSpec().GetGuests(), c.GetResizes() > 0)
	switch {
	case !nameRule.MatchString(c.GetName()):
		return "its host keeps facts of a cluster with a name that no cluster has"
	case c.GetSpec().GetGuests() < 1 || c.GetSpec().GetGuests() > maxGuests:
		return "its host keeps facts of a cluster with a number of guests that no cluster has"
	case !made:
		return "its host keeps facts of a cluster with a prefix that no cluster has"
	}
	return ""
}

// taken returns why a cluster conflicts with existing clusters; empty: it does not.
func (r *recovery) taken(f *v1.GuestFacts) string {
	if r.objects.Clusters[f.Cluster.Name] != nil {
		return fmt.Sprintf("there is another cluster %s; delete that one to recover this", f.Cluster.Name)
	}
	for _, name := range slices.Sorted(maps.Keys(r.objects.Clusters)) {
		if c := r.objects.Clusters[name]; overlap(c.Prefix, f.Cluster.Prefix) {
			return fmt.Sprintf("cluster %s has its addresses (%s); delete that one to recover this", name, c.Prefix)
		}
	}
	for _, made := range r.plan.Clusters {
		if made.Cluster == f.Cluster.Name || overlap(made.Object.Prefix, f.Cluster.Prefix) {
			return fmt.Sprintf("hosts also run guests of another cluster, %s, of the same name or addresses", made.Cluster)
		}
	}
	return ""
}

// overlap tells whether two prefixes have an address in common.
func overlap(a, b string) bool {
	p, err := netip.ParsePrefix(a)
	q, err2 := netip.ParsePrefix(b)
	return err == nil && err2 == nil && p.Overlaps(q)
}

func (r *recovery) makeAgain(f *v1.GuestFacts) {
	c := f.Cluster
	row := &v1.ClusterRecovery{Cluster: c.Name, Uid: c.Uid, Owner: c.Owner, Guests: c.Spec.Guests}
	if !r.imageKnown(f.ImageDigest) {
		row.Notes = append(row.Notes, fmt.Sprintf("image %s (%s) is not known; its guests run on, and can be started again only when it was built again",
			c.Spec.Image, f.ImageDigest))
	}
	switch owner := r.objects.Users[c.Owner]; {
	case owner == nil:
		row.Notes = append(row.Notes, fmt.Sprintf("its owner, user %s, is not known; administrators can use it", c.Owner))
	case c.OwnerUid != "" && owner.Meta.GetUid() != c.OwnerUid:
		row.Notes = append(row.Notes, fmt.Sprintf("its owner was another user %s than the present one; administrators can use it", c.Owner))
	}
	r.plan.Clusters = append(r.plan.Clusters, RecoveredCluster{row, &v1.Cluster{
		Meta: &v1.Meta{Name: c.Name, Uid: c.Uid, Owner: c.Owner, OwnerUid: c.OwnerUid},
		Spec: proto.CloneOf(c.Spec), ImageDigest: f.ImageDigest, Prefix: c.Prefix, Mtu: c.Mtu, Resizes: c.Resizes,
	}})
}

// planned returns a cluster that is made again; nil: it is not made again.
func (r *recovery) planned(uid string) *RecoveredCluster {
	at := slices.IndexFunc(r.plan.Clusters, func(c RecoveredCluster) bool { return c.Uid == uid })
	if at < 0 {
		return nil
	}
	return &r.plan.Clusters[at]
}

// unknown decides about a guest that the state does not know.
func (r *recovery) unknown(uid string, copies []guestCopy) {
	// Ignore a record that its host cannot read, if the guest has no process there. The guest may have ended long ago.
	copies = slices.DeleteFunc(slices.Clone(copies), func(c guestCopy) bool { return c.seen.Epoch == 0 && !c.seen.Process })
	if len(copies) == 0 {
		return
	}
	row := &v1.GuestRecovery{Guest: copies[0].seen.GetName(), Uid: uid}
	var kept *v1.GuestFacts
	for _, c := range copies {
		if f := c.seen.GetFacts(); f.GetCluster().GetUid() != "" && (kept == nil || mayRun(c.seen)) {
			kept = f
		}
	}
	row.Cluster = kept.GetCluster().GetName()
	at, settled := r.choose(row, copies)
	if settled {
		r.add(row, nil)
		return
	}
	if at == nil {
		return // the guest has ended, and its host has no facts of it
	}
	row.Host, row.Epoch = at.host, at.seen.Epoch
	cluster := kept.GetCluster().GetUid()
	made := r.planned(cluster)
	reason := r.made[cluster]
	switch {
	case cluster == "":
		reason = "its host keeps too few facts of it: an earlier version started it"
	case made == nil && reason == "":
		reason = "its cluster is known, and has no such guest"
	case made != nil:
		reason = r.member(made, row, at, kept)
	}
	if reason != "" {
		reason = fmt.Sprintf("%s; it is left alone; to end it on its host: virsh -c qemu:///system destroy watari-%s", reason, cmp.Or(row.Guest, row.Uid))
		row.Act, row.Reason = v1.RecoveryAct_RECOVERY_ACT_LEAVE, reason
		for _, other := range r.plan.Guests {
			if other.Uid == uid && other.Act == v1.RecoveryAct_RECOVERY_ACT_END { // nobody ends copies of a guest that stays unknown
				other.Act, other.Reason = row.Act, reason
			}
		}
		r.add(row, nil)
	}
}

// member adds a guest to a cluster that is made again. It returns why it could not.
func (r *recovery) member(made *RecoveredCluster, row *v1.GuestRecovery, at *guestCopy, f *v1.GuestFacts) string {
	c := made.Object
	prefix, _ := netip.ParsePrefix(c.Prefix)
	address, err := netip.ParseAddr(f.Address)
	switch {
	case row.Guest != fmt.Sprintf("%s-%d", c.Meta.Name, f.Index) || f.Index >= c.Spec.Guests:
		return "its name is not one of its cluster's"
	case err != nil || !fits(prefix, address, f.Index, c.Spec.Guests):
		return "its address is not one of its cluster's"
	case r.objects.Guests[row.Guest] != nil:
		return "there is another guest of that name"
	case f.Shape.GetVcpus() == 0 || f.Shape.GetMemoryBytes() == 0:
		return "its host does not know its size"
	case slices.ContainsFunc(r.plan.Guests, func(g RecoveredGuest) bool {
		return g.Object != nil && g.Object.Cluster == c.Meta.Name && (g.Guest == row.Guest || g.Object.Address == f.Address)
	}):
		return "hosts run another guest of its name or address"
	}
	g := &v1.Guest{Meta: &v1.Meta{Name: row.Guest, Uid: row.Uid, Owner: c.Meta.Owner, OwnerUid: c.Meta.OwnerUid}, Cluster: c.Meta.Name,
		Index: f.Index, Shape: proto.CloneOf(f.Shape), ImageDigest: c.ImageDigest, Address: f.Address, NoFork: f.NoFork, LeaseMs: c.Spec.GetLeaseMs()}
	r.adopt(g, at)
	g.LastEpoch = r.lastEpoch(g)
	addPlatform(c, g.Platform)
	row.Act, row.Reason = v1.RecoveryAct_RECOVERY_ACT_ADOPT, strings.Trim(made.why()+"; "+row.Reason, "; ")
	r.add(row, g)
	return ""
}

// addPlatform adds the platform of a running guest to its cluster, so that guests which are started later get the same.
func addPlatform(c *v1.Cluster, p *v1.Platform) {
	if p == nil || slices.ContainsFunc(c.Platforms, func(q *v1.Platform) bool {
		return q.Acceleration == p.Acceleration && q.GetCpu().GetVendor() == p.GetCpu().GetVendor()
	}) {
		return
	}
	p = proto.CloneOf(p)
	p.QemuVersion, p.Explanation = "", "as its guests that ran at a recovery"
	c.Platforms = append(c.Platforms, p)
}

// missing adds to the clusters that are made again the guests that no host runs.
func (r *recovery) missing(byUID map[string]*v1.Guest) {
	for _, made := range r.plan.Clusters {
		var members []*v1.Guest
		taken, derived := map[uint32]bool{}, true
		for _, g := range r.plan.Guests {
			if g.Object == nil || byUID[g.Uid] != nil && !made.Known() || g.Object.Cluster != made.Cluster {
				continue
			}
			members = append(members, g.Object)
			taken[g.Object.Index] = true
			derived = derived && g.Uid == GuestUID(made.Uid, g.Object.Index)
		}
		if len(members) == 0 { // the members' copies wait for an operation's end, or for a person
			r.made[made.Uid] = "none of its guests can be taken up"
			continue
		}
		for i := range made.Object.Spec.Guests {
			name := fmt.Sprintf("%s-%d", made.Cluster, i)
			if !taken[i] && r.objects.Guests[name] == nil {
				r.absentMember(made, name, i, derived, members[0])
			}
		}
	}
	r.plan.Clusters = slices.DeleteFunc(r.plan.Clusters, func(c RecoveredCluster) bool { return r.made[c.Uid] != "" })
}

// absentMember adds one guest that no host runs. It gets its old uid if the uid can be derived.
func (r *recovery) absentMember(made RecoveredCluster, name string, index uint32, derived bool, like *v1.Guest) {
	uid := ""
	if derived {
		uid = GuestUID(made.Uid, index)
	}
	if slices.ContainsFunc(r.plan.Guests, func(g RecoveredGuest) bool {
		return (g.Guest == name || derived && g.Uid == uid) && g.Act != v1.RecoveryAct_RECOVERY_ACT_END
	}) {
		return // a row says what prevents it
	}
	if host := r.doubtedMember(uid); host != "" {
		r.obstacle("guest %s on %s: %s", name, host, doubted(host))
		r.add(&v1.GuestRecovery{Guest: name, Uid: uid, Cluster: made.Cluster, Host: host, Act: v1.RecoveryAct_RECOVERY_ACT_WAIT,
			Reason: "the host's report of it is not one that an agent makes"}, nil)
		return
	}
	prefix, _ := netip.ParsePrefix(made.Object.Prefix)
	address := recoveredAddress(prefix, index, like)
	g := &v1.Guest{Meta: &v1.Meta{Name: name, Uid: uid, Owner: like.Meta.Owner, OwnerUid: like.Meta.OwnerUid}, Cluster: made.Cluster, Index: index,
		Shape: proto.CloneOf(made.Object.Spec.GetShape()), ImageDigest: made.Object.ImageDigest, Address: address.String(), NoFork: like.NoFork, LeaseMs: like.LeaseMs}
	g.LastEpoch = r.lastEpoch(g)
	row := &v1.GuestRecovery{Guest: name, Uid: g.Meta.Uid, Cluster: made.Cluster}
	if len(r.absent) > 0 {
		r.holdBack(row, g)
	} else {
		r.restart(row, g, made.why()+", and no host runs it")
	}
	r.add(row, g)
}

// doubtedMember returns a host with a report that is not believed and may be of the guest; empty: there is none. Without a
// uid, the report of any unknown guest may be of it.
func (r *recovery) doubtedMember(uid string) string {
	for _, other := range slices.Sorted(maps.Keys(r.doubtful)) {
		if _, known := r.stored[other]; other == uid || uid == "" && !known {
			return r.doubtful[other][0]
		}
	}
	return ""
}
