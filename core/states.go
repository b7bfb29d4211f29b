package core

// states.go - derives the states of guests, clusters and runs from objects and reports.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	v1 "watari/api/watariv1"
	"watari/migration"
)

// StateName turns an enum's name into a word for people: "MIGRATION_STATE_ROLLING_BACK" into "rolling back".
func StateName(enum string) string {
	if _, rest, found := strings.Cut(enum, "_STATE_"); found {
		enum = rest
	}
	return strings.ToLower(strings.ReplaceAll(enum, "_", " "))
}

// Moves are the moves that have not ended, by their guest's uid.
type Moves map[string]*v1.Migration

// ActiveMoves returns the moves that have not ended.
func ActiveMoves(s *Objects) Moves {
	moves := Moves{}
	for _, m := range s.Migrations {
		if !migration.Ended(m.State) {
			moves[m.GuestUid] = m
		}
	}
	return moves
}

// GuestState returns a guest's state, the reason, and whether its agent answers.
func GuestState(r Reports, moves Moves, g *v1.Guest) (state v1.GuestState, message string, ready bool) {
	if g.Host == "" {
		switch {
		case removing(g):
			return v1.GuestState_GUEST_STATE_STOPPED, "is being removed", false
		case g.Failure != "":
			return v1.GuestState_GUEST_STATE_FAILED, g.Failure, false
		case g.Stopped:
			return v1.GuestState_GUEST_STATE_STOPPED, "", false
		}
		return v1.GuestState_GUEST_STATE_PENDING, cmp.Or(g.Message, "waits for a host to be chosen"), false
	}
	report, since, connected := r.Observed(g.Host)
	seen := GuestOn(report, g.Meta.Uid)
	ready = connected && seen.GetEpoch() == g.Epoch && seen.GetReady()
	if m := moves[g.Meta.Uid]; m != nil && m.State != v1.MigrationState_MIGRATION_STATE_PENDING {
		return v1.GuestState_GUEST_STATE_MIGRATING, moving(m), ready
	}
	if !connected {
		return v1.GuestState_GUEST_STATE_UNKNOWN, unreachable(g.Host, since) + untilLease(g), false
	}
	if seen == nil || seen.Epoch != g.Epoch {
		return v1.GuestState_GUEST_STATE_STARTING, "host " + g.Host + " has the order to start it", false
	}
	switch seen.Condition {
	case v1.GuestCondition_GUEST_CONDITION_RUNNING:
		if removing(g) {
			return v1.GuestState_GUEST_STATE_RUNNING, "is being removed", ready
		}
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

// untilLease says how long a guest whose host is out of reach may run on; empty: without a limit.
func untilLease(g *v1.Guest) string {
	if g.LeaseMs == 0 {
		return ""
	}
	return fmt.Sprintf("; the guest ends there within its lease of %s", leaseLength(g))
}

func moving(m *v1.Migration) string {
	text := fmt.Sprintf("moves from %s to %s: %s", m.Source, m.Target, StateName(m.State.String()))
	if m.Message != "" {
		text += ": " + m.Message
	}
	return text
}

// ClusterStatus is the state of a cluster as a whole.
type ClusterStatus struct {
	State   v1.ClusterState
	Message string // which guests are not ready, and why
	Ready   uint32 // guests that answer
}

// StatusOf returns the state of a cluster whose guests are given, in the order of their index. Guests that are being
// removed do not count.
func StatusOf(r Reports, moves Moves, c *v1.Cluster, guests []*v1.Guest) ClusterStatus {
	var status ClusterStatus
	var wanted, settled int
	var why []string
	for _, g := range members(guests) {
		state, message, ready := GuestState(r, moves, g)
		if ready {
			status.Ready++
		}
		if g.Stopped {
			continue
		}
		wanted++
		if !ready && state != v1.GuestState_GUEST_STATE_MIGRATING {
			why = append(why, strings.TrimSuffix(fmt.Sprintf("%s: %s: %s", g.Meta.Name, StateName(state.String()), message), ": "))
		} else {
			settled++
		}
		if g.Restarts > 0 || state == v1.GuestState_GUEST_STATE_UNKNOWN || state == v1.GuestState_GUEST_STATE_FAILED {
			status.State = v1.ClusterState_CLUSTER_STATE_DEGRADED
		}
	}
	status.Message = strings.Join(why, "; ")
	switch {
	case c.Meta.Deleting != nil:
		status.State = v1.ClusterState_CLUSTER_STATE_DELETING
	case wanted == 0:
		status.State, status.Message = v1.ClusterState_CLUSTER_STATE_STOPPED, "all its guests are stopped; `watari guest start GUEST` starts one"
	case settled == wanted:
		status.State = v1.ClusterState_CLUSTER_STATE_READY
	case status.State == v1.ClusterState_CLUSTER_STATE_UNSPECIFIED:
		status.State = v1.ClusterState_CLUSTER_STATE_STARTING
	}
	return status
}

// GuestsOf returns a cluster's guests in the order of indices.
func GuestsOf(s *Objects, cluster string) []*v1.Guest {
	var guests []*v1.Guest
	for _, g := range s.Guests {
		if g.Cluster == cluster {
			guests = append(guests, g)
		}
	}
	byIndex(guests)
	return guests
}

// members returns the guests that are not being removed from their cluster.
func members(guests []*v1.Guest) []*v1.Guest {
	if !slices.ContainsFunc(guests, removing) {
		return guests
	}
	return slices.DeleteFunc(slices.Clone(guests), removing)
}

func removing(g *v1.Guest) bool { return g.Meta.Deleting != nil }

func byIndex(guests []*v1.Guest) {
	slices.SortFunc(guests, func(a, b *v1.Guest) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Meta.Name, b.Meta.Name))
	})
}

// Halted names the cluster's guests that only a person can start again, each with its state and the next step; empty:
// all run, or will run by themselves. A run needs all guests, however few ranks it has, because its launcher spans the
// whole cluster.
func Halted(guests []*v1.Guest) string {
	var why []string
	for _, g := range members(guests) {
		switch {
		case g.Stopped:
			why = append(why, fmt.Sprintf("guest %s is stopped; `watari guest start %s` starts it", g.Meta.Name, g.Meta.Name))
		case g.Failure != "":
			why = append(why, fmt.Sprintf("guest %s is failed: %s", g.Meta.Name, g.Failure))
		}
	}
	slices.Sort(why)
	return strings.Join(why, "; ")
}

// RunEnded reports whether a run's state is final.
func RunEnded(state v1.RunState) bool {
	switch state {
	case v1.RunState_RUN_STATE_EXITED, v1.RunState_RUN_STATE_FAILED, v1.RunState_RUN_STATE_CANCELLED:
		return true
	}
	return false
}

// IsRunOf reports whether a run belongs to this cluster. An earlier cluster may have had the same name and another
// owner.
func IsRunOf(run *v1.Run, cluster *v1.Cluster) bool {
	return run.ClusterUid == "" || run.ClusterUid == cluster.GetMeta().GetUid()
}

// RunDirectory returns the working directory of a run's program in the guests.
func RunDirectory(run *v1.Run) string {
	if run.Spec.GetDirectory() != "" {
		return run.Spec.Directory
	}
	return "/home/watari/runs/" + run.Meta.Name
}

// RunHead returns the guest on which a run's launcher runs: the first of the cluster, which serves the shared home.
func RunHead(s *Objects, run *v1.Run) (name, uid string) {
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
