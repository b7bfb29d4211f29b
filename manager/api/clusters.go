package api

// clusters.go - creating, listing and deleting clusters.

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"watari/core"
	"watari/manager/store"
	"watari/manager/view"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// overlayMTU is the MTU of guests where hosts' LANs have the usual 1500; encapsulation between sites takes the
// rest. Since a guest may move to any site, it has the smallest that works everywhere.
const (
	overlayMTU      = 1420
	overlayOverhead = 80
)

// CreateCluster makes a cluster and its guests; hosts are assigned afterwards by the controller.
func (s *Server) CreateCluster(ctx context.Context, r *connect.Request[v1.CreateClusterRequest]) (*connect.Response[v1.CreateClusterResponse], error) {
	name, spec := r.Msg.Name, r.Msg.Spec
	if err := checkName("cluster", name); err != nil {
		return nil, err
	}
	if err := checkSpec(spec); err != nil {
		return nil, err
	}
	if most := s.Store.MaxOps() - 2; int(spec.Guests) > most { // the cluster and its event are the other two
		return nil, fail(connect.CodeFailedPrecondition, "%d guests: the manager's etcd lets a cluster have %d; start etcd with --max-txn-ops=2048 for more", spec.Guests, most)
	}
	existed := false
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		var err error
		if existed, err = equalCluster(callerOf(ctx), snap, name, spec); existed || err != nil {
			return nil, err
		}
		image, platforms, err := s.admissible(ctx, snap, spec)
		if err != nil {
			return nil, err
		}
		cluster, guests, err := s.newCluster(snap, name, callerOf(ctx), spec, image)
		if err != nil {
			return nil, err
		}
		cluster.Platforms = platforms
		ops := []store.Op{store.Create(cluster), audit(ctx, "cluster", name, "created: %s of %s and %s, image %s",
			english.Plural(int(spec.Guests), "guest", ""), english.Plural(int(spec.Shape.Vcpus), "vCPU", ""),
			humanize.IBytes(spec.Shape.MemoryBytes), spec.Image)}
		for _, g := range guests {
			ops = append(ops, store.Create(g))
		}
		return ops, nil
	})
	if err != nil {
		return nil, err
	}
	cluster := view.Cluster(s.Store.Snapshot(), s.Sessions, name)
	if cluster == nil {
		return nil, fail(connect.CodeAborted, "cluster %s was deleted at once", name)
	}
	return connect.NewResponse(&v1.CreateClusterResponse{Cluster: cluster, Existed: existed}), nil
}

// equalCluster says whether an equal cluster is there; one that differs is an error.
func equalCluster(c caller, snap *store.Snapshot, name string, spec *v1.ClusterSpec) (bool, error) {
	have := snap.Clusters[name]
	switch {
	case have == nil:
		return false, nil
	case !c.owns(have.Meta):
		return false, fail(connect.CodeAlreadyExists, "the name %s is taken", name)
	case have.Meta.Deleting != nil:
		return false, fail(connect.CodeFailedPrecondition, "cluster %s is being deleted; create it again when it is gone", name)
	}
	if d := differences(have.Spec, spec); d != "" {
		return false, fail(connect.CodeAlreadyExists, "there is a cluster %s, and it differs: %s", name, d)
	}
	return true, nil
}

// admissible checks that a cluster may be made now: image, sites, the owner's quota, room. It returns the image, and
// what the guests are to be started in.
func (s *Server) admissible(ctx context.Context, snap *store.Snapshot, spec *v1.ClusterSpec) (*v1.Image, []*v1.Platform, error) {
	image := snap.Images[spec.Image]
	if image == nil {
		return nil, nil, missing("image", spec.Image, snap.Images)
	}
	known := sites(snap)
	for _, site := range spec.Sites {
		if !known[site] {
			return nil, nil, missing("site", site, known)
		}
	}
	if err := checkQuota(snap, callerOf(ctx).name, spec); err != nil {
		return nil, nil, err
	}
	platforms, err := s.Feasible(snap, spec, image.Digest)
	if err != nil {
		return nil, nil, connect.NewError(connect.CodeResourceExhausted, err)
	}
	return image, platforms, nil
}

// checkQuota checks that the owner's clusters and this one together are within the quota.
func checkQuota(snap *store.Snapshot, owner string, spec *v1.ClusterSpec) error {
	user := snap.Users[owner]
	if user == nil { // since the call began
		return fail(connect.CodeUnauthenticated, "user %s was removed", owner)
	}
	quota := user.Quota
	if quota.GetVcpus() == 0 && quota.GetMemoryBytes() == 0 {
		return nil
	}
	vcpus := uint64(spec.Guests) * uint64(spec.Shape.Vcpus)
	memory := uint64(spec.Guests) * spec.Shape.MemoryBytes
	var usedVCPUs, usedMemory uint64
	for _, g := range snap.Guests {
		if g.Meta.Owner == owner {
			usedVCPUs += uint64(g.Shape.GetVcpus())
			usedMemory += g.Shape.GetMemoryBytes()
		}
	}
	if limit := uint64(quota.GetVcpus()); limit > 0 && usedVCPUs+vcpus > limit {
		return overQuota(owner, english.Plural(int(limit), "vCPU", ""), fmt.Sprint(usedVCPUs), fmt.Sprint(vcpus), "--vcpus")
	}
	if limit := quota.GetMemoryBytes(); limit > 0 && usedMemory+memory > limit {
		return overQuota(owner, humanize.IBytes(limit)+" of memory", humanize.IBytes(usedMemory), humanize.IBytes(memory), "--memory")
	}
	return nil
}

// overQuota names the quota, what is used, what is asked for and who can help.
func overQuota(owner, limit, used, more, flag string) error {
	return fail(connect.CodeResourceExhausted, "the quota of user %s is %s, with %s in use and %s more asked for; ask for less, "+
		"delete a cluster, or have an administrator raise it (`watari quota set %s %s ...`)", owner, limit, used, more, owner, flag)
}

// newCluster makes the objects of a cluster.
func (s *Server) newCluster(snap *store.Snapshot, name string, owner caller, spec *v1.ClusterSpec, image *v1.Image) (*v1.Cluster, []*v1.Guest, error) {
	prefix, err := freePrefix(s.Prefix, snap, int(spec.Guests))
	if err != nil {
		return nil, nil, err
	}
	uid := store.NewUID()
	authority, err := s.Authority.ClusterAuthority(name, uid)
	if err != nil {
		return nil, nil, err
	}
	cluster := &v1.Cluster{
		Meta: &v1.Meta{Name: name, Uid: uid, Owner: owner.name, OwnerUid: owner.uid}, Spec: proto.CloneOf(spec), ImageDigest: image.Digest, Prefix: prefix.String(),
		Mtu: clusterMTU(snap), CaCertificate: authority.CertificatePEM(), CaKey: authority.KeyPEM(),
	}
	guests := make([]*v1.Guest, spec.Guests)
	for i := range guests {
		guests[i] = &v1.Guest{
			Meta: &v1.Meta{Name: fmt.Sprintf("%s-%d", name, i), Uid: core.GuestUID(uid, uint32(i)), Owner: owner.name, OwnerUid: owner.uid}, Cluster: name, Index: uint32(i),
			Shape: proto.CloneOf(spec.Shape), ImageDigest: image.Digest, Address: guestAddress(prefix, i).String(), NoFork: spec.NoFork,
		}
	}
	return cluster, guests, nil
}

// clusterMTU is what fits between any two of the hosts.
func clusterMTU(snap *store.Snapshot) uint32 {
	mtu := uint32(overlayMTU)
	for _, h := range snap.Hosts {
		if lan := h.GetInfo().GetMtu(); lan > overlayOverhead {
			mtu = min(mtu, lan-overlayOverhead)
		}
	}
	return mtu
}

// ListClusters lists the caller's clusters.
func (s *Server) ListClusters(ctx context.Context, r *connect.Request[v1.ListClustersRequest]) (*connect.Response[v1.ListClustersResponse], error) {
	snap := s.Store.Snapshot()
	mine := own(callerOf(ctx), snap.Clusters)
	if r.Msg.Name != "" && mine[r.Msg.Name] == nil {
		return nil, missing("cluster", r.Msg.Name, mine)
	}
	resp := &v1.ListClustersResponse{}
	for _, name := range slices.Sorted(maps.Keys(mine)) {
		if r.Msg.Name == "" || r.Msg.Name == name {
			resp.Clusters = append(resp.Clusters, view.Cluster(snap, s.Sessions, name))
		}
	}
	return connect.NewResponse(resp), nil
}

// DeleteCluster asks for a cluster's end; it is gone when nothing of it is left.
func (s *Server) DeleteCluster(ctx context.Context, r *connect.Request[v1.DeleteClusterRequest]) (*connect.Response[v1.DeleteClusterResponse], error) {
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		c, err := find(callerOf(ctx), "cluster", r.Msg.Name, snap.Clusters)
		if err != nil || c.Meta.Deleting != nil {
			return nil, err
		}
		c = proto.CloneOf(c)
		c.Meta.Deleting = timestamppb.Now()
		return []store.Op{store.Update(c), audit(ctx, "cluster", c.Meta.Name, "deletion asked for")}, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DeleteClusterResponse{}), nil
}
