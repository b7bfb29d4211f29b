package core

// admission_resize.go - changing the number of a cluster's guests.

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// ResizeRequest asks for a number of guests of a cluster.
type ResizeRequest struct {
	Name   string
	Guests uint32
	// UID is the value from which the uids of added guests are derived. It is new with each request, so a guest gets another
	// uid than an earlier guest of its name.
	UID string
	// MaxOps is how many operations a change may hold, its event among them; 0: any number.
	MaxOps int
}

// Resized is the answer to a request for a number of guests.
type Resized struct {
	Change
	// Runs use guests that would be removed. While there are some, the change has no operations.
	Runs []string
}

// ResizeCluster adds guests, or marks guests of the highest indices for removal. If the cluster has the size already, or is
// being resized to it, the change has no operations.
func (a *Admission) ResizeCluster(r ResizeRequest) (resized Resized, err error) {
	c, err := Find(a.Caller, "cluster", r.Name, a.Clusters)
	if err != nil {
		return resized, err
	}
	if err := beingDeleted(a.Objects, r.Name); err != nil {
		return resized, err
	}
	if restoring(c) {
		return resized, precondition("cluster %s is being restored from checkpoint %s; resize it afterwards", r.Name, c.Restore.Checkpoint)
	}
	if r.Guests < 1 || r.Guests > maxGuests {
		return resized, invalid("%d guests: a cluster has 1 to %d; `watari cluster delete %s` removes all", r.Guests, maxGuests, r.Name)
	}
	before := c.Spec.Guests
	if r.Guests > before {
		if err := storable(r.Guests, r.MaxOps); err != nil {
			return Resized{}, err
		}
	}
	c = proto.CloneOf(c)
	c.Spec.Guests = r.Guests
	c.Resizes++
	resized.write(Update, c)
	switch {
	case r.Guests == before:
		return Resized{}, nil
	case r.Guests > before:
		err = a.grow(&resized.Change, c, before, r.UID)
	default:
		resized.Runs = a.shrink(&resized.Change, c)
	}
	if err != nil || len(resized.Runs) > 0 {
		return Resized{Runs: resized.Runs}, err
	}
	if ops := len(resized.Ops) + 1; r.MaxOps > 0 && ops > r.MaxOps {
		return Resized{}, precondition("resizing cluster %s takes %d operations at once, and the manager's etcd allows %d; remove its guests in several steps, or "+
			"start etcd with --max-txn-ops=2048", r.Name, ops, r.MaxOps)
	}
	a.audited(&resized.Change, "cluster", r.Name, "resized from %d to %s", before, english.Plural(int(r.Guests), "guest", ""))
	return resized, nil
}

// grow adds the guests from index from on.
func (a *Admission) grow(change *Change, c *v1.Cluster, from uint32, uid string) error {
	name := c.Meta.Name
	guests := GuestsOf(a.Objects, name)
	if i := slices.IndexFunc(guests, removing); i >= 0 {
		return precondition("guest %s is still being removed from cluster %s; resize the cluster when it is gone (`watari guest list %s` shows what it waits for)",
			guests[i].Meta.Name, name, name)
	}
	prefix, err := netip.ParsePrefix(c.Prefix)
	if err != nil || len(guests) == 0 {
		return precondition("cluster %s has no guest or prefix that others could be added to", name)
	}
	last := c.Spec.Guests - 1
	if address := recoveredAddress(prefix, last, guests[0]); !prefix.Contains(address) || number(address) >= lastOf(prefix) {
		return refuse(Exhausted, "the prefix %s of cluster %s has no room for %d guests; ask for fewer, or make a new cluster of that size", c.Prefix, name, c.Spec.Guests)
	}
	added := proto.CloneOf(c.Spec)
	added.Guests -= from
	if a.Users[c.Meta.Owner] != nil || !a.Caller.Admin { // an administrator may use a cluster whose owner was removed
		if err := checkQuota(a.Objects, c.Meta.Owner, added); err != nil {
			return err
		}
	}
	if err := feasibleMore(a.Objects, a.Reports, c, guests, added.Guests, a.Now, a.Began); err != nil {
		return refuse(Exhausted, "%v", err)
	}
	for i := from; i < c.Spec.Guests; i++ {
		change.write(Create, &v1.Guest{
			Meta: &v1.Meta{Name: fmt.Sprintf("%s-%d", name, i), Uid: GuestUID(uid, i), Owner: c.Meta.Owner, OwnerUid: c.Meta.OwnerUid}, Cluster: name, Index: i,
			Shape: proto.CloneOf(c.Spec.Shape), ImageDigest: c.ImageDigest, Address: recoveredAddress(prefix, i, guests[0]).String(), NoFork: c.Spec.NoFork, LeaseMs: c.Spec.LeaseMs,
		})
	}
	return nil
}

// shrink marks for removal the guests that the cluster no longer has. It returns the runs that use such guests.
func (a *Admission) shrink(change *Change, c *v1.Cluster) (using []string) {
	var leaving []*v1.Guest
	for _, g := range GuestsOf(a.Objects, c.Meta.Name) {
		if g.Index >= c.Spec.Guests && !removing(g) {
			leaving = append(leaving, g)
		}
	}
	for _, name := range sortedKeys(a.Runs) {
		run := a.Runs[name]
		switch {
		case run.Spec.GetCluster() != c.Meta.Name || !IsRunOf(run, c) || RunEnded(run.State):
		case slices.ContainsFunc(leaving, func(g *v1.Guest) bool { return uses(run, g) }):
			using = append(using, name)
		default:
			change.write(Expect, run) // it must not begin meanwhile
		}
	}
	for _, g := range leaving {
		g = proto.CloneOf(g)
		g.Meta.Deleting = timestamppb.New(a.Now)
		change.write(Update, g)
	}
	return using
}

// uses reports whether a run that has begun uses a guest of its cluster.
func uses(run *v1.Run, g *v1.Guest) bool {
	switch run.State {
	case v1.RunState_RUN_STATE_STARTING, v1.RunState_RUN_STATE_RUNNING:
		_, is := run.StartedEpochs[g.Meta.Name]
		return is || len(run.StartedEpochs) == 0 // an earlier version did not note the guests
	}
	return false
}
