// Package view fills in the observed fields of stored objects: what the agents report now, and the states that
// follow from it. It reads a snapshot and the sessions and changes neither.
package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/manager/store"
	"watari/migration"
)

// Observer tells what a host's agent last reported; since is when it connected or disconnected.
type Observer interface {
	Observed(host string) (report *v1.HostObserved, since time.Time, connected bool)
}

// GuestOn is a host's report of a guest, by uid; nil: it reports none.
func GuestOn(report *v1.HostObserved, uid string) *v1.GuestObserved {
	for _, g := range report.GetGuests() {
		if g.Uid == uid {
			return g
		}
	}
	return nil
}

// BootID is the boot that a host is in: the one that its agent reports, or, while the agent is away, the last one known.
func BootID(s *store.Snapshot, o Observer, host string) string {
	if report, _, connected := o.Observed(host); connected && report.GetInfo().GetBootId() != "" {
		return report.Info.BootId
	}
	return s.Hosts[host].GetInfo().GetBootId()
}

// Dead tells whether a guest's copy that was granted to a host under a boot cannot be running any more: the host was
// started anew since, or fenced, and its agent sees no process of the guest.
func Dead(s *store.Snapshot, o Observer, host, boot, uid string) bool {
	h := s.Hosts[host]
	if h == nil || boot == "" || BootID(s, o, host) == boot && h.FencedBootId != boot {
		return false
	}
	return !Alive(o, host, uid)
}

// Alive tells whether a host's agent, in its present session, sees a process of a guest: evidence against which no grant
// is released.
func Alive(o Observer, host, uid string) bool {
	report, _, connected := o.Observed(host)
	return connected && GuestOn(report, uid).GetProcess()
}

// Host returns a copy with state, load, guests, problems and last report; nil where there is no such host.
func Host(s *store.Snapshot, o Observer, name string) *v1.Host {
	stored := s.Hosts[name]
	if stored == nil {
		return nil
	}
	h := proto.CloneOf(stored)
	report, since, connected := o.Observed(name)
	for _, g := range s.Guests {
		if g.Host == name {
			h.Guests = append(h.Guests, g.Meta.Name)
		}
	}
	slices.Sort(h.Guests)
	h.Load = report.GetLoad()
	if connected {
		h.Problems = report.GetProblems()
	}
	h.LastSeen = timestamppb.New(since)
	if connected {
		h.LastSeen = timestamppb.Now()
	} else if since.IsZero() {
		h.LastSeen = nil
	}
	h.State = hostState(h, connected)
	return h
}

func hostState(h *v1.Host, connected bool) v1.HostState {
	switch {
	case !connected:
		return v1.HostState_HOST_STATE_UNREACHABLE
	case h.Draining && len(h.Guests) > 0:
		return v1.HostState_HOST_STATE_DRAINING
	case h.Draining:
		return v1.HostState_HOST_STATE_DRAINED
	}
	return v1.HostState_HOST_STATE_READY
}

// Migrating returns the move of a guest that has not ended; nil: none.
func Migrating(s *store.Snapshot, guestUID string) *v1.Migration {
	for _, m := range s.Migrations {
		if m.GuestUid == guestUID && !migration.Ended(m.State) {
			return m
		}
	}
	return nil
}

// Guest returns a copy with state, message and readiness; nil where there is no such guest.
func Guest(s *store.Snapshot, o Observer, name string) *v1.Guest {
	stored := s.Guests[name]
	if stored == nil {
		return nil
	}
	g := proto.CloneOf(stored)
	g.State, g.Message, g.Ready = guestState(s, o, g)
	return g
}

func guestState(s *store.Snapshot, o Observer, g *v1.Guest) (state v1.GuestState, message string, ready bool) {
	if g.Host == "" {
		switch {
		case g.Failure != "":
			return v1.GuestState_GUEST_STATE_FAILED, g.Failure, false
		case g.Stopped:
			return v1.GuestState_GUEST_STATE_STOPPED, "", false
		}
		return v1.GuestState_GUEST_STATE_PENDING, cmp.Or(g.Message, "waits for a host to be chosen"), false
	}
	report, since, connected := o.Observed(g.Host)
	seen := GuestOn(report, g.Meta.Uid)
	ready = connected && seen.GetEpoch() == g.Epoch && seen.GetReady()
	if m := Migrating(s, g.Meta.Uid); m != nil && m.State != v1.MigrationState_MIGRATION_STATE_PENDING {
		return v1.GuestState_GUEST_STATE_MIGRATING, moving(m), ready
	}
	if !connected {
		return v1.GuestState_GUEST_STATE_UNKNOWN, unreachable(g.Host, since), false
	}
	if seen == nil || seen.Epoch != g.Epoch {
		return v1.GuestState_GUEST_STATE_STARTING, "host " + g.Host + " was told", false
	}
	switch seen.Condition {
	case v1.GuestCondition_GUEST_CONDITION_RUNNING:
		if g.Stopped {
			return v1.GuestState_GUEST_STATE_RUNNING, "is being stopped", ready
		}
		if !ready {
			return v1.GuestState_GUEST_STATE_STARTING, cmp.Or(seen.Step, "waits for its guest agent"), false
		}
		return v1.GuestState_GUEST_STATE_RUNNING, seen.Message, true
	case v1.GuestCondition_GUEST_CONDITION_GONE, v1.GuestCondition_GUEST_CONDITION_FAILED:
		return v1.GuestState_GUEST_STATE_FAILED, cmp.Or(seen.Message, "its QEMU ended"), false
	}
	return v1.GuestState_GUEST_STATE_STARTING, cmp.Or(seen.Message, seen.Step), ready
}

func unreachable(host string, since time.Time) string {
	if since.IsZero() {
		return fmt.Sprintf("host %s has not been reachable since the manager started", host)
	}
	return fmt.Sprintf("host %s has not been reachable since %s", host, since.UTC().Format(time.RFC3339))
}

func moving(m *v1.Migration) string {
	text := fmt.Sprintf("moves from %s to %s: %s", m.Source, m.Target, StateName(m.State.String()))
	if m.Message != "" {
		text += ": " + m.Message
	}
	return text
}

// StateName turns an enum's name into a word for people: "MIGRATION_STATE_ROLLING_BACK" into "rolling back".
func StateName(enum string) string {
	if _, rest, found := strings.Cut(enum, "_STATE_"); found {
		enum = rest
	}
	return strings.ToLower(strings.ReplaceAll(enum, "_", " "))
}

// Guests returns a cluster's guests by index, observed fields filled; of all clusters, by name, where cluster is
// empty.
func Guests(s *store.Snapshot, o Observer, cluster string) []*v1.Guest {
	var list []*v1.Guest
	for name, g := range s.Guests {
		if cluster == "" || g.Cluster == cluster {
			list = append(list, Guest(s, o, name))
		}
	}
	slices.SortFunc(list, func(a, b *v1.Guest) int {
		if a.Cluster != b.Cluster {
			return strings.Compare(a.Cluster, b.Cluster)
		}
		return int(a.Index) - int(b.Index)
	})
	return list
}

// Cluster returns a copy with state, message and the number of ready guests; nil where there is no such cluster.
// The key of its CA is left out.
func Cluster(s *store.Snapshot, o Observer, name string) *v1.Cluster {
	stored := s.Clusters[name]
	if stored == nil {
		return nil
	}
	c := proto.CloneOf(stored)
	c.CaKey = nil
	var wanted, wereReady uint32
	var why []string
	for _, g := range Guests(s, o, name) {
		if g.Ready {
			c.ReadyGuests++
		}
		if g.Stopped {
			continue
		}
		wanted++
		if !g.Ready && g.State != v1.GuestState_GUEST_STATE_MIGRATING {
			why = append(why, strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", g.Meta.Name, StateName(g.State.String()), g.Message), ": "))
		} else {
			wereReady++
		}
		if g.Restarts > 0 || g.State == v1.GuestState_GUEST_STATE_UNKNOWN || g.State == v1.GuestState_GUEST_STATE_FAILED {
			c.State = v1.ClusterState_CLUSTER_STATE_DEGRADED
		}
	}
	c.Message = strings.Join(why, "; ")
	switch {
	case c.Meta.Deleting != nil:
		c.State = v1.ClusterState_CLUSTER_STATE_DELETING
	case wanted == 0:
		c.State, c.Message = v1.ClusterState_CLUSTER_STATE_STOPPED, "all its guests are stopped; `watari guest start GUEST` starts one"
	case wereReady == wanted:
		c.State = v1.ClusterState_CLUSTER_STATE_READY
	case c.State == v1.ClusterState_CLUSTER_STATE_UNSPECIFIED:
		c.State = v1.ClusterState_CLUSTER_STATE_STARTING
	}
	return c
}

// Halted says which guests of a cluster run only once a person has started them, each with its state and the next
// step; empty: all run, or will by themselves. A run needs all of them, however few ranks it has: its launcher spans
// the whole cluster.
func Halted(s *store.Snapshot, cluster string) string {
	var why []string
	for _, g := range s.Guests {
		switch {
		case g.Cluster != cluster:
		case g.Stopped:
			why = append(why, fmt.Sprintf("guest %s is stopped; `watari guest start %s` starts it", g.Meta.Name, g.Meta.Name))
		case g.Failure != "":
			why = append(why, fmt.Sprintf("guest %s is failed: %s", g.Meta.Name, g.Failure))
		}
	}
	slices.Sort(why)
	return strings.Join(why, "; ")
}

// Migration returns a copy with the source's present progress; nil where there is no such move.
func Migration(s *store.Snapshot, o Observer, name string) *v1.Migration {
	stored := s.Migrations[name]
	if stored == nil {
		return nil
	}
	m := proto.CloneOf(stored)
	if migration.Ended(m.State) {
		return m
	}
	report, _, _ := o.Observed(m.Source)
	if g := GuestOn(report, m.GuestUid); g != nil && g.MigrationId == m.Meta.Uid && g.Progress != nil {
		m.Progress = g.Progress
	}
	if m.Started != nil {
		m.TotalMs = uint32(time.Since(m.Started.AsTime()).Milliseconds())
	}
	return m
}

// RunEnded tells whether a run's state is final.
func RunEnded(state v1.RunState) bool {
	switch state {
	case v1.RunState_RUN_STATE_EXITED, v1.RunState_RUN_STATE_FAILED, v1.RunState_RUN_STATE_CANCELLED:
		return true
	}
	return false
}

// IsRunOf says whether a run is this cluster's, and not that of an earlier one of the same name, perhaps another's.
func IsRunOf(run *v1.Run, cluster *v1.Cluster) bool {
	return run.ClusterUid == "" || run.ClusterUid == cluster.GetMeta().GetUid()
}

// RunDirectory is where a run's program runs, in the guests.
func RunDirectory(run *v1.Run) string {
	if run.Spec.GetDirectory() != "" {
		return run.Spec.Directory
	}
	return "/home/watari/runs/" + run.Meta.Name
}

// RunHead is the guest on which a run's launcher runs: the first of the cluster, which serves the shared home.
func RunHead(s *store.Snapshot, run *v1.Run) (name, uid string) {
	if run.Head != "" {
		return run.Head, run.HeadUid
	}
	if !IsRunOf(run, s.Clusters[run.Spec.GetCluster()]) {
		return "", ""
	}
	for _, g := range s.Guests {
		if g.Cluster == run.Spec.GetCluster() && g.Index == 0 {
			return g.Meta.Name, g.Meta.Uid
		}
	}
	return "", ""
}
