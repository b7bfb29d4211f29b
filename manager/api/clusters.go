package api

// clusters.go - creating, listing, resizing and deleting clusters.

import (
	"context"
	"maps"
	"slices"
	"time"

	"watari/core"
	"watari/locality"
	"watari/manager/store"
	"watari/manager/view"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

// CreateCluster makes a cluster and its guests; the controller assigns hosts later.
func (s *Server) CreateCluster(ctx context.Context, r *connect.Request[v1.CreateClusterRequest]) (*connect.Response[v1.CreateClusterResponse], error) {
	name, existed := r.Msg.Name, false
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) {
		change, err := a.CreateCluster(core.ClusterRequest{Name: name, Spec: r.Msg.Spec, UID: store.NewUID(), MaxOps: s.Store.MaxOps()})
		if existed = len(change.Ops) == 0; existed || err != nil {
			return change, err
		}
		return change, s.newClusterKeys(change.Ops[0].Object.(*v1.Cluster))
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

// newClusterKeys makes the certificate authority and the checkpoint key of a new cluster.
func (s *Server) newClusterKeys(c *v1.Cluster) error {
	authority, err := s.Authority.ClusterAuthority(c.Meta.Name, c.Meta.Uid)
	if err != nil {
		return err
	}
	key, err := newCheckpointKey() // a policy may suspend the cluster before a user asks for a checkpoint
	if err != nil {
		return err
	}
	c.CaCertificate, c.CaKey = authority.CertificatePEM(), authority.KeyPEM()
	c.CheckpointKey, c.CheckpointRecipient = key.Secret, key.Recipient
	return nil
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

// ClusterTraffic returns which guests of a cluster exchange messages.
func (s *Server) ClusterTraffic(ctx context.Context, r *connect.Request[v1.ClusterTrafficRequest]) (*connect.Response[v1.ClusterTrafficResponse], error) {
	snap := s.Store.Snapshot()
	c, err := find(callerOf(ctx), "cluster", r.Msg.Name, snap.Clusters)
	if err != nil {
		return nil, err
	}
	var traffic core.Traffic
	if s.Traffic != nil {
		traffic = s.Traffic(time.Now())
	}
	distance := locality.Default
	if s.Signals != nil {
		if _, p := s.Signals(time.Now()); p != nil && p.Locality != nil {
			distance = p.Locality.Distance
		}
	}
	return connect.NewResponse(core.ClusterTraffic(snap, c.Meta.Name, traffic, distance)), nil
}

// ResizeCluster changes the number of a cluster's guests. Removed guests end afterwards.
func (s *Server) ResizeCluster(ctx context.Context, r *connect.Request[v1.ResizeClusterRequest]) (*connect.Response[v1.ResizeClusterResponse], error) {
	resp := &v1.ResizeClusterResponse{}
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) {
		resized, err := a.ResizeCluster(core.ResizeRequest{Name: r.Msg.Name, Guests: r.Msg.Guests, UID: store.NewUID(), MaxOps: s.Store.MaxOps()})
		resp.Runs, resp.Unchanged = resized.Runs, len(resized.Ops) == 0
		return resized.Change, err
	})
	if err != nil {
		return nil, err
	}
	if resp.Cluster = view.Cluster(s.Store.Snapshot(), s.Sessions, r.Msg.Name); resp.Cluster == nil {
		return nil, fail(connect.CodeAborted, "cluster %s was deleted at once", r.Msg.Name)
	}
	return connect.NewResponse(resp), nil
}

// DeleteCluster requests a cluster's deletion; the object disappears once all its parts are gone.
func (s *Server) DeleteCluster(ctx context.Context, r *connect.Request[v1.DeleteClusterRequest]) (*connect.Response[v1.DeleteClusterResponse], error) {
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.DeleteCluster(r.Msg.Name) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DeleteClusterResponse{}), nil
}
