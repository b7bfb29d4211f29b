// Package view fills in the observed fields of stored objects: values from the agents' reports, and the states that
// follow from them. It changes neither objects nor reports.
package view

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/migration"
	"watari/policy"
)

// Host returns a copy with state, guests, problems and last report; nil: there is no such host.
func Host(s *core.Objects, r core.Reports, name string) *v1.Host {
	var guests []string
	for _, g := range s.Guests {
		if g.Host == name {
			guests = append(guests, g.Meta.Name)
		}
	}
	return host(s, r, name, guests, core.Relays(s))
}

// Hosts returns all hosts in the order of names, as Host does. It visits each guest once.
func Hosts(s *core.Objects, r core.Reports) []*v1.Host {
	guests := map[string][]string{}
	for _, g := range s.Guests {
		guests[g.Host] = append(guests[g.Host], g.Meta.Name)
	}
	relays := core.Relays(s)
	hosts := make([]*v1.Host, 0, len(s.Hosts))
	for _, name := range slices.Sorted(maps.Keys(s.Hosts)) {
		hosts = append(hosts, host(s, r, name, guests[name], relays))
	}
	return hosts
}

func host(s *core.Objects, r core.Reports, name string, guests []string, relays map[string][]*v1.RelayedPeer) *v1.Host {
	stored := s.Hosts[name]
	if stored == nil {
		return nil
	}
	h := proto.CloneOf(stored)
	report, since, connected := r.Observed(name)
	h.Guests = guests
	slices.Sort(h.Guests)
	if connected {
		h.Problems = report.GetProblems()
	}
	h.LastSeen = timestamppb.New(since)
	if connected {
		h.LastSeen = timestamppb.Now()
	} else if since.IsZero() {
		h.LastSeen = nil
	}
	if h.Draining || policy.Withdrawn(h, policy.MaintenanceName) != nil {
		h.Volumes = core.VolumesLeft(s, r, name)
	}
	processes := slices.ContainsFunc(report.GetGuests(), func(g *v1.GuestObserved) bool { return g.Process })
	h.State = hostState(h, connected, processes)
	h.Relayed = relays[name]
	return h
}

// hostState returns the state of a host with its guests and volumes. Volumes that cannot move do not keep it from being drained.
// processes: the host may have processes of guests. A guest that has moved still has one for a moment, which uses its image's file.
func hostState(h *v1.Host, connected, processes bool) v1.HostState {
	leaves := func(v *v1.HostVolume) bool { return !v.Stays }
	switch {
	case h.Quarantine.GetCutOff() != nil:
		return v1.HostState_HOST_STATE_QUARANTINED
	case !connected:
		return v1.HostState_HOST_STATE_UNREACHABLE
	case h.Draining && (len(h.Guests) > 0 || processes || slices.ContainsFunc(h.Volumes, leaves)):
		return v1.HostState_HOST_STATE_DRAINING
	case h.Draining:
		return v1.HostState_HOST_STATE_DRAINED
	case len(h.Withdrawn) > 0:
		return v1.HostState_HOST_STATE_WITHDRAWN
	}
	return v1.HostState_HOST_STATE_READY
}

// Guest returns a copy with state, message and readiness; nil: there is no such guest.
func Guest(s *core.Objects, r core.Reports, name string) *v1.Guest {
	stored := s.Guests[name]
	if stored == nil {
		return nil
	}
	return observed(r, core.ActiveMoves(s), stored)
}

func observed(r core.Reports, moves core.Moves, stored *v1.Guest) *v1.Guest {
	g := proto.CloneOf(stored)
	g.State, g.Message, g.Ready = core.GuestState(r, moves, stored)
	return g
}

// Guests returns the guests of a cluster, or of all clusters if cluster is empty, in the order of cluster and index,
// with observed fields.
func Guests(s *core.Objects, r core.Reports, cluster string) []*v1.Guest {
	moves := core.ActiveMoves(s)
	var list []*v1.Guest
	for _, g := range s.Guests {
		if cluster == "" || g.Cluster == cluster {
			list = append(list, observed(r, moves, g))
		}
	}
	slices.SortFunc(list, func(a, b *v1.Guest) int {
		return cmp.Or(strings.Compare(a.Cluster, b.Cluster), cmp.Compare(a.Index, b.Index))
	})
	return list
}

// Cluster returns a copy with state, message and the number of ready guests; nil: there is no such cluster. It leaves
// out the keys of the cluster's authority and of its checkpoints.
func Cluster(s *core.Objects, r core.Reports, name string) *v1.Cluster {
	stored := s.Clusters[name]
	if stored == nil {
		return nil
	}
	c := proto.CloneOf(stored)
	c.CaKey, c.CheckpointKey = nil, ""
	status := core.StatusOf(r, core.ActiveMoves(s), stored, core.GuestsOf(s, name))
	c.State, c.Message, c.ReadyGuests = status.State, status.Message, status.Ready
	return c
}

// Migration returns a copy with the source's present progress; nil: there is no such move.
func Migration(s *core.Objects, r core.Reports, name string) *v1.Migration {
	stored := s.Migrations[name]
	if stored == nil {
		return nil
	}
	m := proto.CloneOf(stored)
	if migration.Ended(m.State) {
		return m
	}
	report, _, _ := r.Observed(m.Source)
	if g := core.GuestOn(report, m.GuestUid); g != nil && g.MigrationId == m.Meta.Uid && g.Progress != nil {
		m.Progress = g.Progress
	}
	if m.Started != nil {
		m.TotalMs = uint32(time.Since(m.Started.AsTime()).Milliseconds())
	}
	return m
}

// Volume returns a volume with the size of its disk in use, the progress of its move, and whether its host is connected; nil: it does
// not exist.
func Volume(s *core.Objects, r core.Reports, name string) *v1.Volume {
	v := s.Volumes[name]
	if v == nil {
		return nil
	}
	v = proto.CloneOf(v)
	v.CheckpointKey = ""
	if v.Host == "" {
		return v
	}
	report, _, connected := r.Observed(v.Host)
	for _, o := range report.GetVolumes() {
		if o.Uid == v.Meta.Uid {
			v.UsedBytes = o.UsedBytes
			if !o.Ready {
				v.Message = cmp.Or(v.Message, o.Message)
			}
			if s := o.Sending; s != nil && v.Move.GetEnded() == nil && s.Move == v.Move.GetId() {
				v.Move.CopiedBytes, v.Move.TotalBytes = s.CopiedBytes, s.TotalBytes
			}
		}
	}
	if !connected && s.Hosts[v.Host] != nil {
		v.Message = "host " + v.Host + " is out of reach"
	}
	return v
}
