package core

// runs.go - decides about runs. A run is PENDING until all guests of its cluster answer, STARTING until its head guest
// has started its process, RUNNING until the process has ended, and then EXITED, FAILED or CANCELLED.

import (
	"cmp"
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// cancelSignals are sent, one after the other, until a cancelled run ends. A run that has lost a guest begins with the
// second: after the first its launcher would wait for the lost guest.
var cancelSignals = []int32{2, 15, 9}

// cancelPatience is the pause after each of these signals.
const cancelPatience = 5 * time.Second

// longestHold is how long a run may wait for its next file.
const longestHold = 24 * time.Hour

// RunSeen is the state of a run's process, from the agent of its head guest.
type RunSeen struct {
	// Restores is Run.Restores of the run that this is about.
	Restores uint32
	Started  bool
	Refused  string      // why the guest will never start it; empty: it may
	Unknown  bool        // the guest does not know the process, although it was started
	Ended    *v1.Process // nil: it has not ended. All of its output is stored
	RanOut   string      // of a failed process: the guest whose memory ran out; empty: none
	Message  string      // why its output cannot be stored
	// Signals is the number of delivered cancelSignals, and Signalled the time of the last one.
	Signals   int
	Signalled time.Time
}

// RunOrder orders to start a run's process, if it has not been started, and to follow its output.
type RunOrder struct {
	Run    *v1.Run
	Signal int32 // the signal to send now; 0: none
	// Sent is the value of RunSeen.Signals after the signal's delivery.
	Sent int
}

// runs decides about each run that has not ended.
func (p *pass) runs() {
	for _, name := range sortedKeys(p.Objects.Runs) {
		run := p.Objects.Runs[name]
		if RunEnded(run.State) || p.full() {
			continue
		}
		if cluster := p.Clusters[run.Spec.GetCluster()]; restoring(cluster) && cluster.Meta.Deleting == nil && IsRunOf(run, cluster) && !run.Cancel {
			p.say(run, "waits for cluster "+cluster.Meta.Name+": it is being restored from checkpoint "+cluster.Restore.Checkpoint)
			continue
		}
		switch run.State {
		case v1.RunState_RUN_STATE_STARTING, v1.RunState_RUN_STATE_RUNNING:
			p.begunRun(run)
		default:
			p.pendingRun(run)
		}
	}
}

func (p *pass) pendingRun(run *v1.Run) {
	cluster := p.Clusters[run.Spec.GetCluster()]
	guests := members(p.index.guestsOf(run.Spec.GetCluster()))
	halted := ""
	if !run.Spec.GetHold() {
		halted = Halted(guests)
	}
	switch {
	case run.Cancel:
		p.endRun(run, v1.RunState_RUN_STATE_CANCELLED, 0, "cancelled before it was started")
	case cluster == nil || cluster.Meta.Deleting != nil || !IsRunOf(run, cluster):
		p.endRun(run, v1.RunState_RUN_STATE_FAILED, 0, fmt.Sprintf("cluster %s no longer exists", run.Spec.GetCluster()))
	case run.Spec.Hold:
		if end := cmp.Or(run.Staged.GetAt(), run.Meta.Created).AsTime().Add(longestHold); p.Now.Before(end) {
			p.again = earlier(p.again, end)
			p.say(run, "waits for its files")
		} else { // whoever staged them has gone away
			p.endRun(run, v1.RunState_RUN_STATE_FAILED, 0, "nobody has staged a file for it or started it for a day")
		}
	case halted != "": // end the run: a person has to act, which may take days
		p.endRun(run, v1.RunState_RUN_STATE_FAILED, 0, fmt.Sprintf("a run needs all guests of cluster %s: %s", run.Spec.Cluster, halted))
	default:
		status := p.status(cluster, guests)
		if !allReady(cluster, status) {
			p.say(run, "waits for cluster "+run.Spec.Cluster+": "+status.Message)
			return
		}
		if !p.listsSet(guests) {
			p.say(run, "waits for cluster "+run.Spec.Cluster+": its guests are told who belongs to it")
			return
		}
		if gone := stagedFilesGone(p.Objects, run); gone != "" {
			p.endRun(run, v1.RunState_RUN_STATE_FAILED, 0, gone)
			return
		}
		update := proto.CloneOf(run)
		update.State, update.Message, update.Directory = v1.RunState_RUN_STATE_STARTING, "", RunDirectory(run)
		update.Head, update.HeadUid = RunHead(p.Objects, run)
		update.StartedEpochs = startedEpochs(guests)
		var c Change
		c.write(Update, update)
		c.write(Expect, cluster) // a resize would change the guests
		p.propose("run/"+run.Meta.Name, c)
	}
}

// listsSet reports whether the connected hosts of a cluster's guests follow the present orders. What a host reports of its
// guests' readiness is then about the present list of guests, which launchers read.
func (p *pass) listsSet(guests []*v1.Guest) bool {
	for _, g := range guests {
		if _, _, connected := p.Observed(g.Host); connected && !p.current(g.Host) {
			return false
		}
	}
	return true
}

// status returns a cluster's status. It computes it once for a decision.
func (p *pass) status(c *v1.Cluster, guests []*v1.Guest) ClusterStatus {
	status, known := p.statuses[c.Meta.Name]
	if !known {
		status = StatusOf(p, p.index.moves, c, guests)
		p.statuses[c.Meta.Name] = status
	}
	return status
}

// allReady reports whether every guest of a cluster answers. Moving guests count as answering.
func allReady(c *v1.Cluster, status ClusterStatus) bool {
	return status.Ready == c.Spec.GetGuests() || status.State == v1.ClusterState_CLUSTER_STATE_READY
}

// startedEpochs returns the epochs at which the guests' present copies were started. They distinguish these copies from
// later ones.
func startedEpochs(guests []*v1.Guest) map[string]uint64 {
	epochs := map[string]uint64{}
	for _, g := range guests {
		epochs[g.Meta.Name] = g.StartedEpoch
	}
	return epochs
}

// lostGuest returns a guest whose copy at the run's start is gone; empty: none. All guests of the cluster matter,
// because a launcher spans them all, however few ranks it starts.
func lostGuest(s *Objects, run *v1.Run) string {
	for _, name := range sortedKeys(run.StartedEpochs) {
		if g := s.Guests[name]; g == nil || g.Host == "" || g.StartedEpoch != run.StartedEpochs[name] {
			return name
		}
	}
	return ""
}

func lostMessage(guest string) string {
	return fmt.Sprintf("guest %s ended while the program ran, and its part of the program with it; `watari events` says why", guest)
}

// begunRun decides about a run in state STARTING or RUNNING.
func (p *pass) begunRun(run *v1.Run) {
	seen, lost := p.World.Runs[run.Meta.Uid], lostGuest(p.Objects, run)
	if seen.Restores != run.Restores {
		seen = RunSeen{} // it describes the run before its cluster went back
	}
	head := p.Guests[run.Head]
	starting := run.State == v1.RunState_RUN_STATE_STARTING
	switch {
	case seen.Ended != nil:
		state, message := v1.RunState_RUN_STATE_EXITED, seen.Ended.Message
		switch {
		case run.Cancel:
			state = v1.RunState_RUN_STATE_CANCELLED
		case seen.Ended.ExitCode != 0 && lost == "" && p.waitsForCluster(run):
			return
		case lost != "" && seen.Ended.ExitCode != 0:
			state, message = v1.RunState_RUN_STATE_FAILED, lostMessage(lost)
		case seen.RanOut != "":
			message = seen.RanOut
		}
		p.endRun(run, state, seen.Ended.ExitCode, message)
	case starting && seen.Refused != "":
		p.endRun(run, broken(run), 127, fmt.Sprintf("could not be started on %s: %s", run.Head, seen.Refused))
	case seen.Unknown:
		p.endRun(run, broken(run), 0, fmt.Sprintf("its head guest %s was restarted, and the run ended with it", run.Head))
	case head == nil || head.Meta.Uid != run.HeadUid:
		p.endRun(run, broken(run), 0, fmt.Sprintf("its head guest %s no longer exists", run.Head))
	case lost == run.Head && lost != "":
		p.endRun(run, broken(run), 0, lostMessage(lost))
	case starting && seen.Started:
		update := proto.CloneOf(run)
		update.State, update.Started = v1.RunState_RUN_STATE_RUNNING, timestamppb.New(p.Now)
		var c Change
		c.write(Update, update)
		c.event(v1.Severity_SEVERITY_INFO, "run", run.Meta.Name, "started on cluster %s: %q", run.Spec.Cluster, run.Spec.Command)
		p.propose("run/"+run.Meta.Name, c)
		p.follow(run, seen, lost)
	default:
		p.say(run, seen.Message)
		p.follow(run, seen, lost)
	}
}

// broken returns the state of a run that ends because its program cannot go on.
func broken(run *v1.Run) v1.RunState {
	if run.Cancel {
		return v1.RunState_RUN_STATE_CANCELLED
	}
	return v1.RunState_RUN_STATE_FAILED
}

// waitsForCluster reports whether a run that has failed may run again soon, because its cluster is about to go back to a checkpoint.
func (p *pass) waitsForCluster(run *v1.Run) bool {
	cluster := p.Clusters[run.Spec.GetCluster()]
	if cluster == nil || !IsRunOf(run, cluster) {
		return false
	}
	why, waits := p.expectsRestore(cluster)
	if waits {
		p.say(run, why)
	}
	return waits
}

// follow adds the order to follow a run. If the run is cancelled or has lost a guest, it also orders the next signal: a
// launcher notices a lost guest only when it sends to it.
func (p *pass) follow(run *v1.Run, seen RunSeen, lost string) {
	order := RunOrder{Run: run}
	if run.State == v1.RunState_RUN_STATE_RUNNING && (run.Cancel || lost != "") {
		next := seen.Signals
		if !run.Cancel {
			next = max(next, 1)
		}
		next = min(next, len(cancelSignals)-1)
		if due := seen.Signalled.Add(cancelPatience); seen.Signalled.IsZero() || !p.Now.Before(due) {
			order.Signal, order.Sent = cancelSignals[next], next+1
		} else {
			p.again = earlier(p.again, due)
		}
	}
	p.runOrders = append(p.runOrders, order)
}

func (p *pass) endRun(run *v1.Run, state v1.RunState, exitCode int32, message string) {
	update := proto.CloneOf(run)
	update.State, update.ExitCode, update.Message, update.Ended = state, exitCode, message, timestamppb.New(p.Now)
	severity := v1.Severity_SEVERITY_INFO
	if state == v1.RunState_RUN_STATE_FAILED {
		severity = v1.Severity_SEVERITY_ERROR
	}
	var c Change
	c.write(Update, update)
	c.event(severity, "run", run.Meta.Name, "%s, status %d %s", StateName(state.String()), exitCode, message)
	p.propose("run/"+run.Meta.Name, c)
}

// say stores a message in a run.
func (p *pass) say(run *v1.Run, message string) {
	if run.Message == message {
		return
	}
	update := proto.CloneOf(run)
	update.Message = message
	var c Change
	c.write(Update, update)
	p.propose("run/"+run.Meta.Name, c)
}
