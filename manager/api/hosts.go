package api

// hosts.go - listing, draining and removing hosts.

import (
	"context"
	"maps"
	"slices"
	"strings"

	"watari/core"
	"watari/manager/store"
	"watari/manager/view"
	"watari/migration"

	v1 "watari/api/watariv1"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// ListHosts lists the hosts; a user sees all of them, but of the guests on them only the own ones.
func (s *Server) ListHosts(ctx context.Context, r *connect.Request[v1.ListHostsRequest]) (*connect.Response[v1.ListHostsResponse], error) {
	snap := s.Store.Snapshot()
	if r.Msg.Name != "" && snap.Hosts[r.Msg.Name] == nil {
		return nil, missing("host", r.Msg.Name, snap.Hosts)
	}
	resp := &v1.ListHostsResponse{}
	for _, name := range slices.Sorted(maps.Keys(snap.Hosts)) {
		if r.Msg.Name == "" || r.Msg.Name == name {
			resp.Hosts = append(resp.Hosts, s.viewHost(callerOf(ctx), snap, name))
		}
	}
	return connect.NewResponse(resp), nil
}

// viewHost is a host as the caller may see it; nil: there is none.
func (s *Server) viewHost(c caller, snap *store.Snapshot, name string) *v1.Host {
	h := view.Host(snap, s.Sessions, name)
	if h != nil {
		h.Guests = slices.DeleteFunc(h.Guests, func(g string) bool { return !c.owns(snap.Guests[g].GetMeta()) })
		if !c.admin {
			h.Problems = nil // they may name guests of others
		}
	}
	return h
}

// DrainHost has a host take no guests and its guests moved away, or takes that back.
func (s *Server) DrainHost(ctx context.Context, r *connect.Request[v1.DrainHostRequest]) (*connect.Response[v1.DrainHostResponse], error) {
	name, drain := r.Msg.Name, !r.Msg.Undo
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		h := snap.Hosts[name]
		switch {
		case h == nil:
			return nil, missing("host", name, snap.Hosts)
		case h.Meta.Deleting != nil:
			return nil, fail(connect.CodeFailedPrecondition, "host %s is being removed", name)
		case h.Draining == drain:
			return nil, nil
		}
		h = proto.CloneOf(h)
		h.Draining = drain
		what := "to be drained"
		if !drain {
			what = "to take guests again"
		}
		return []store.Op{store.Update(h), audit(ctx, "host", name, "%s", what)}, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.DrainHostResponse{Host: s.viewHost(callerOf(ctx), s.Store.Snapshot(), name)}), nil
}

// TrustHost puts a host into a trust group, or, where that is empty, has it trust no other.
func (s *Server) TrustHost(ctx context.Context, r *connect.Request[v1.TrustHostRequest]) (*connect.Response[v1.TrustHostResponse], error) {
	name, group := r.Msg.Name, r.Msg.Group
	if group != "" {
		if err := checkName("trust group", group); err != nil {
			return nil, err
		}
	}
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		h := snap.Hosts[name]
		switch {
		case h == nil:
			return nil, missing("host", name, snap.Hosts)
		case h.TrustGroup == group:
			return nil, nil
		}
		h = proto.CloneOf(h)
		h.TrustGroup = group
		what := "is in trust group " + group
		if group == "" {
			what = "trusts no other host"
		}
		return []store.Op{store.Update(h), audit(ctx, "host", name, "%s from now on", what)}, nil
	})
	if err != nil {
		return nil, err
	}
	return connect.NewResponse(&v1.TrustHostResponse{Host: s.viewHost(callerOf(ctx), s.Store.Snapshot(), name)}), nil
}

// RemoveHost takes a host out. It must have no guests, unless it is lost, which the caller vouches for: then
// its guests are started elsewhere. Its certificate is not honoured from then on. A host that comes back all the same is
// told that it was removed, and ends its guests (AcceptHost).
func (s *Server) RemoveHost(ctx context.Context, r *connect.Request[v1.RemoveHostRequest]) (*connect.Response[v1.RemoveHostResponse], error) {
	name, lost := r.Msg.Name, r.Msg.Lost
	err := s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		h := snap.Hosts[name]
		if h == nil {
			return nil, missing("host", name, snap.Hosts)
		}
		// One that is being removed may turn out to be lost while guests still depend on it.
		if h.Meta.Deleting != nil && (!lost || h.FencedBootId == h.GetInfo().GetBootId()) {
			return nil, nil
		}
		_, _, connected := s.Sessions.Observed(name)
		guests := HostGuests(snap, name)
		if !lost {
			for _, stranger := range core.Strangers(snap, s.Sessions) {
				if stranger.Host == name {
					return nil, fail(connect.CodeFailedPrecondition, "host %s would end a guest that may be the only copy: %v", name, stranger)
				}
			}
		}
		switch {
		case lost && connected:
			return nil, fail(connect.CodeFailedPrecondition, "host %s is connected, so it is not lost; drain it and remove it without --lost", name)
		case !lost && len(guests) > 0:
			return nil, fail(connect.CodeFailedPrecondition, "host %s has guests: %s; drain it first, or, if it is off for good, say so with --lost",
				name, strings.Join(guests, ", "))
		}
		h = proto.CloneOf(h)
		h.Draining, h.Meta.Deleting = true, timestamppb.Now()
		what := "removed"
		if lost {
			h.FencedBootId = h.GetInfo().GetBootId()
			what = "removed as lost; its guests are started elsewhere: " + listOr(guests, "none")
		}
		return []store.Op{store.Update(h), remember(snap, h, lost), audit(ctx, "host", name, "%s", what)}, nil
	})
	if err != nil {
		return nil, err
	}
	s.Sessions.Drop(name)
	if err := s.ForgetHost(ctx, name); err != nil {
		return nil, storeError(err)
	}
	return connect.NewResponse(&v1.RemoveHostResponse{}), nil
}

// remember writes down that a host was removed.
func remember(snap *store.Snapshot, h *v1.Host, lost bool) store.Op {
	if r := snap.Removed[h.Meta.Uid]; r != nil {
		r = proto.CloneOf(r)
		r.Lost = r.Lost || lost
		return store.Update(r)
	}
	return store.Create(&v1.RemovedHost{Meta: &v1.Meta{Name: h.Meta.Uid}, Host: h.Meta.Name, BootId: h.GetInfo().GetBootId(), Lost: lost})
}

// HostGuests names the guests that have, or are about to have, their grant on a host.
func HostGuests(snap *store.Snapshot, host string) []string {
	names := map[string]bool{}
	for name, g := range snap.Guests {
		if g.Host == host {
			names[name] = true
		}
	}
	for _, m := range snap.Migrations {
		if m.Target == host && !migration.Ended(m.State) {
			names[m.Guest] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// ForgetHost deletes a host that is being removed once no guest depends on it; the daemon repeats it.
func (s *Server) ForgetHost(ctx context.Context, name string) error {
	return s.change(ctx, func(snap *store.Snapshot) ([]store.Op, error) {
		h := snap.Hosts[name]
		if h == nil || h.Meta.Deleting == nil || len(HostGuests(snap, name)) > 0 {
			return nil, nil
		}
		return []store.Op{store.Delete(proto.CloneOf(h))}, nil
	})
}
