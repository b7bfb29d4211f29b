package api

// hosts.go - listing, draining and removing hosts.

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/core"
	"watari/manager/store"
	"watari/manager/view"
	"watari/policy"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
)

// ListHosts lists all hosts. A user sees all of them, but of their guests only the user's own.
func (s *Server) ListHosts(ctx context.Context, r *connect.Request[v1.ListHostsRequest]) (*connect.Response[v1.ListHostsResponse], error) {
	snap := s.Store.Snapshot()
	if r.Msg.Name != "" && snap.Hosts[r.Msg.Name] == nil {
		return nil, missing("host", r.Msg.Name, snap.Hosts)
	}
	if r.Msg.Name != "" {
		return connect.NewResponse(&v1.ListHostsResponse{Hosts: []*v1.Host{s.viewHost(callerOf(ctx), snap, r.Msg.Name)}}), nil
	}
	return connect.NewResponse(&v1.ListHostsResponse{Hosts: s.viewHosts(callerOf(ctx), snap)}), nil
}

// viewHosts returns all hosts, by name, as the caller may see them.
func (s *Server) viewHosts(c caller, snap *store.Snapshot) []*v1.Host {
	hosts := view.Hosts(snap, s.Sessions)
	for i, h := range hosts {
		hosts[i] = s.hostView(c, snap, h)
	}
	return hosts
}

// viewHost returns a host as the caller may see it, or nil if it does not exist.
func (s *Server) viewHost(c caller, snap *store.Snapshot, name string) *v1.Host {
	return s.hostView(c, snap, view.Host(snap, s.Sessions, name))
}

// hostView adds the sessions' knowledge to a host, which may be nil, and removes what the caller may not see.
func (s *Server) hostView(c caller, snap *store.Snapshot, h *v1.Host) *v1.Host {
	if h != nil {
		h.Load = s.Sessions.Load(h.Meta.Name)
		h.Sample = shownSample(c, snap, s.History.Latest(h.Meta.Name))
		h.Guests = slices.DeleteFunc(h.Guests, func(g string) bool { return !c.owns(snap.Guests[g].GetMeta()) })
		if !c.admin {
			h.Problems, h.Volumes = nil, nil // they may name guests and volumes of others
			hideOwner(h)
		}
	}
	return h
}

// hideOwner removes from a copy of a host the condition by which its owner is back.
func hideOwner(h *v1.Host) {
	for _, w := range h.Withdrawn {
		if w.Policy == policy.HarvestName {
			w.Reason = policy.OwnerUses
		}
	}
}

// shownSample returns a sample, which may be nil, as the caller may see it. Only administrators see what owners do on their
// machines.
func shownSample(c caller, snap *store.Snapshot, sample *v1.HostSample) *v1.HostSample {
	if sample == nil || c.admin {
		return sample
	}
	sample = proto.CloneOf(sample)
	sample.Guests = slices.DeleteFunc(sample.Guests, func(g *v1.GuestSample) bool {
		meta := snap.Guests[g.Name].GetMeta()
		return meta.GetUid() != g.Uid || !c.owns(meta)
	})
	sample.Owner = nil
	return sample
}

// Usage returns what a host or a guest has used.
func (s *Server) Usage(ctx context.Context, r *connect.Request[v1.UsageRequest]) (*connect.Response[v1.UsageResponse], error) {
	snap, c := s.Store.Snapshot(), callerOf(ctx)
	since := r.Msg.Since.AsTime()
	if (r.Msg.Host == "") == (r.Msg.Guest == "") {
		return nil, connect.NewError(connect.CodeInvalidArgument, errors.New("usage is that of a host or of a guest: name one of them"))
	}
	if r.Msg.Host != "" {
		if snap.Hosts[r.Msg.Host] == nil {
			return nil, missing("host", r.Msg.Host, snap.Hosts)
		}
		steps := s.History.Host(r.Msg.Host, since)
		for _, step := range steps {
			if !c.admin {
				step.Owner = nil
			}
		}
		return connect.NewResponse(&v1.UsageResponse{Host: steps}), nil
	}
	g, err := find(c, "guest", r.Msg.Guest, snap.Guests)
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.UsageResponse{Guest: s.History.Guest(g.Meta.Uid, since)}), nil
}

// DrainHost drains a host, or ends its draining.
func (s *Server) DrainHost(ctx context.Context, r *connect.Request[v1.DrainHostRequest]) (*connect.Response[v1.DrainHostResponse], error) {
	name := r.Msg.Name
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.DrainHost(name, !r.Msg.Undo) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DrainHostResponse{Host: s.viewHost(callerOf(ctx), s.Store.Snapshot(), name)}), nil
}

// QuarantineHost moves a host's guests away and cuts the host off, or ends its quarantine.
func (s *Server) QuarantineHost(ctx context.Context, r *connect.Request[v1.QuarantineHostRequest]) (*connect.Response[v1.QuarantineHostResponse], error) {
	name := r.Msg.Name
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) {
		return a.QuarantineHost(name, r.Msg.Grace.AsDuration(), r.Msg.Undo)
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.QuarantineHostResponse{Host: s.viewHost(callerOf(ctx), s.Store.Snapshot(), name)}), nil
}

// RevokeHost voids a host's certificates, because somebody else may have the key, and makes a token with which the host gets a new
// one. Its session ends; its guests stay.
func (s *Server) RevokeHost(ctx context.Context, r *connect.Request[v1.RevokeHostRequest]) (*connect.Response[v1.RevokeHostResponse], error) {
	name := r.Msg.Name
	token, record := s.newToken(ctx, "", "", hostTokenValid)
	record.Host = name
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		h := snap.Hosts[name]
		switch {
		case h == nil:
			return nil, missing("host", name, snap.Hosts)
		case h.Meta.Deleting != nil:
			return nil, fail(connect.CodeFailedPrecondition, "host %s is being removed", name)
		case h.Quarantine != nil:
			return nil, fail(connect.CodeFailedPrecondition, "host %s is quarantined; trust it again first, with `watari host quarantine %s --undo`, or remove it", name, name)
		}
		h = proto.CloneOf(h)
		h.Generation = core.NextGeneration(h.Generation, time.Now())
		record.UsedUid = h.Meta.Uid
		ops := []store.Op{store.Create(record), store.Update(h), audit(ctx, "host", name, "certificates revoked")}
		for _, t := range snap.Tokens { // whoever has the key could have their answer again
			if t.Host == name || t.UsedUid == h.Meta.Uid {
				ops = append(ops, store.Delete(proto.CloneOf(t)))
			}
		}
		return ops, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.RevokeHostResponse{Host: s.viewHost(callerOf(ctx), s.Store.Snapshot(), name), Token: token.String(), Expires: record.Expires}), nil
}

// TrustHost puts a host into a trust group; with an empty group, the host trusts no other host.
func (s *Server) TrustHost(ctx context.Context, r *connect.Request[v1.TrustHostRequest]) (*connect.Response[v1.TrustHostResponse], error) {
	name := r.Msg.Name
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.TrustHost(name, r.Msg.Group) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.TrustHostResponse{Host: s.viewHost(callerOf(ctx), s.Store.Snapshot(), name)}), nil
}

// SpareHost keeps a host free for guests that are lost elsewhere, or ends that reservation.
func (s *Server) SpareHost(ctx context.Context, r *connect.Request[v1.SpareHostRequest]) (*connect.Response[v1.SpareHostResponse], error) {
	name := r.Msg.Name
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.SpareHost(name, !r.Msg.Undo) })
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.SpareHostResponse{Host: s.viewHost(callerOf(ctx), s.Store.Snapshot(), name)}), nil
}

// RemoveHost removes a host. The host must have no guests, unless the caller vouches that it is lost: then its guests are
// started elsewhere. Its certificate is refused from then on. A removed host that connects again learns of the removal, and
// ends its guests (AcceptHost).
func (s *Server) RemoveHost(ctx context.Context, r *connect.Request[v1.RemoveHostRequest]) (*connect.Response[v1.RemoveHostResponse], error) {
	name := r.Msg.Name
	err := s.admit(ctx, func(a *core.Admission) (core.Change, error) { return a.RemoveHost(name, r.Msg.Lost) })
	if err != nil {
		return nil, err
	}
	s.Sessions.Drop(name)
	if err := s.ForgetHost(ctx, name); err != nil {
		return nil, storeError(err)
	}
	return connect.NewResponse(&v1.RemoveHostResponse{}), nil
}

// ForgetHost deletes a host that is being removed once no guest depends on it; the manager calls ForgetHost repeatedly.
func (s *Server) ForgetHost(ctx context.Context, name string) error {
	return s.admit(ctx, func(a *core.Admission) (core.Change, error) { return core.ForgetHost(a.Objects, name), nil })
}
