package core

// admission_runs.go - creating, starting and cancelling runs.

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/dustin/go-humanize/english"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// Bounds of runs.
const (
	maxRanks     = 1 << 20
	maxRunSpec   = 256 << 10 // bytes: a run's record is rewritten whole at each change
	maxUnended   = 200       // runs of a cluster that have not ended; each is driven separately
	maxRequestID = 64        // bytes
	maxSignal    = 64
	maxRunSpecs  = 32 << 20 // bytes of all runs of a user that are kept: they fill the store
)

// endingSignals cancel a run that does not run yet: SIGHUP, SIGINT, SIGQUIT, SIGKILL and SIGTERM. Other signals have a
// meaning only for a running program.
var endingSignals = []int32{1, 2, 3, 9, 15}

// CreateRun makes a run, which waits for its cluster and, with hold, for StartRun. It returns the run's name. If the request
// was granted before, the change has no operations.
func (a *Admission) CreateRun(r *v1.CreateRunRequest) (change Change, name string, err error) {
	spec := r.Spec
	if err := checkRun(r.Name, spec); err != nil {
		return change, "", err
	}
	if len(r.RequestId) > maxRequestID {
		return change, "", invalid("the request's id has %d bytes; at most %d", len(r.RequestId), maxRequestID)
	}
	cluster, err := Find(a.Caller, "cluster", spec.Cluster, a.Clusters)
	if err != nil {
		return change, "", err
	}
	if err := beingDeleted(a.Objects, spec.Cluster); err != nil {
		return change, "", err
	}
	name = cmp.Or(r.Name, a.runOfRequest(r.RequestId), freeRunName(a.Objects, spec.Cluster))
	if have := a.Runs[name]; have != nil {
		if !a.Caller.Owns(have.Meta) || !IsRunOf(have, cluster) || !sameRun(have.Spec, spec) {
			return change, name, refuse(Exists, "there is another run %s; take another name", name)
		}
		if RunEnded(have.State) && r.RequestId != "" && r.RequestId != have.RequestId { // it is no repetition of a request
			return change, name, refuse(Exists, "run %s has ended already; take another name, or remove it first (`watari run remove %[1]s`)", name)
		}
		return change, name, nil
	}
	if err := a.runnable(cluster, spec); err != nil {
		return change, name, err
	}
	run := &v1.Run{Meta: &v1.Meta{Name: name, Owner: cluster.Meta.Owner, OwnerUid: cluster.Meta.OwnerUid}, Spec: proto.CloneOf(spec), State: v1.RunState_RUN_STATE_PENDING,
		RequestId: r.RequestId, ClusterUid: cluster.Meta.Uid}
	run.Directory = RunDirectory(run)
	change.write(Create, run)
	a.audited(&change, "run", name, "created on cluster %s: %s", spec.Cluster, strings.Join(spec.Command, " "))
	return change, name, nil
}

// checkRun refuses a run's specification that is out of bounds.
func checkRun(name string, spec *v1.RunSpec) error {
	if name != "" {
		if err := CheckName("run", name); err != nil {
			return err
		}
	}
	switch {
	case len(spec.GetCommand()) == 0 || spec.Command[0] == "":
		return invalid("the run has no program")
	case proto.Size(spec) > maxRunSpec:
		return invalid("the run's command and environment have %s; at most %s", humanize.IBytes(uint64(proto.Size(spec))), humanize.IBytes(maxRunSpec))
	case spec.Ranks > maxRanks:
		return invalid("%d ranks: at most %d", spec.Ranks, maxRanks)
	case v1.Transport_name[int32(spec.Transport)] == "":
		return invalid("unknown transport %d", spec.Transport)
	case spec.Directory != "" && !strings.HasPrefix(spec.Directory, "/"):
		return invalid("the run's directory %q is not absolute", spec.Directory)
	}
	for key := range spec.Env {
		if key == "" || strings.ContainsAny(key, "=\x00") {
			return invalid("%q cannot be an environment variable's name", key)
		}
	}
	return nil
}

// runnable refuses a new run that its cluster cannot run.
func (a *Admission) runnable(cluster *v1.Cluster, spec *v1.RunSpec) error {
	if err := noneHalted(a.Objects, spec.Cluster); err != nil {
		return err
	}
	if err := checkTransport(a.Objects, cluster, spec.Transport); err != nil {
		return err
	}
	if unended(a.Objects, spec.Cluster) >= maxUnended {
		return refuse(Exhausted, "cluster %s has %d runs that have not ended; wait for some, or cancel them (`watari run list`)", spec.Cluster, maxUnended)
	}
	kept := proto.Size(spec)
	for _, run := range a.Runs {
		if run.Meta.OwnerUid == cluster.Meta.OwnerUid {
			kept += proto.Size(run.Spec)
		}
	}
	if kept > maxRunSpecs {
		return refuse(Exhausted, "the commands and environments of user %s's runs have more than %s; remove some (`watari run remove`)", cluster.Meta.Owner, humanize.IBytes(maxRunSpecs))
	}
	limit := a.Users[cluster.Meta.Owner].GetQuota().GetRuns()
	if have := unendedOf(a.Objects, cluster.Meta.Owner); limit > 0 && have >= int(limit) {
		return refuse(Exhausted, "the quota of user %s is %s that have not ended, and there are %d; wait for some, cancel them (`watari run list`), "+
			"or have an administrator raise it (`watari quota set %[1]s --runs ...`)", cluster.Meta.Owner, english.Plural(int(limit), "run", ""), have)
	}
	return nil
}

// runOfRequest returns the name of the caller's run that a request has made already; empty: there is none.
func (a *Admission) runOfRequest(id string) string {
	for name, run := range a.Runs {
		if id != "" && run.RequestId == id && a.Caller.Owns(run.Meta) {
			return name
		}
	}
	return ""
}

// sameRun compares two specifications. A held run that was started meanwhile is still the same.
func sameRun(a, b *v1.RunSpec) bool {
	a, b = proto.CloneOf(a), proto.CloneOf(b)
	a.Hold, b.Hold = false, false
	return proto.Equal(a, b)
}

// unended counts a cluster's runs that have not ended.
func unended(s *Objects, cluster string) int {
	return countUnended(s, func(run *v1.Run) bool { return run.Spec.GetCluster() == cluster })
}

// unendedOf counts a user's runs that have not ended.
func unendedOf(s *Objects, owner string) int {
	return countUnended(s, func(run *v1.Run) bool { return run.Meta.Owner == owner })
}

func countUnended(s *Objects, counts func(*v1.Run) bool) (n int) {
	for _, run := range s.Runs {
		if counts(run) && !RunEnded(run.State) {
			n++
		}
	}
	return n
}

// noneHalted refuses a run if its cluster has halted guests, for which the run would wait forever.
func noneHalted(s *Objects, cluster string) error {
	if halted := Halted(GuestsOf(s, cluster)); halted != "" {
		return precondition("a run needs all guests of cluster %s: %s", cluster, halted)
	}
	return nil
}

// checkTransport refuses a run over PM if the cluster's image has no PM, or has MPICH and not Open MPI.
func checkTransport(s *Objects, cluster *v1.Cluster, transport v1.Transport) error {
	if transport != v1.Transport_TRANSPORT_PM {
		return nil
	}
	for name, image := range s.Images {
		switch {
		case image.Digest != cluster.ImageDigest:
		case !image.Pm:
			return precondition("image %s of cluster %s has no PM: build it anew with `watari image build`, which finds PM's libpm-fi.so "+
				"beside watari or takes it by --pm, and make a cluster with it", name, cluster.Meta.Name)
		case slices.Contains(image.Mpi, "mpich") && !slices.Contains(image.Mpi, "openmpi"):
			return precondition("image %s of cluster %s has MPICH; runs over PM want Open MPI", name, cluster.Meta.Name)
		}
	}
	return nil
}

// maxRunNumber bounds the number in names of runs that count for the next one's: users may choose any name.
const maxRunNumber = 1 << 30

// freeRunName returns <cluster>-run-<n>, n above that of every run kept.
func freeRunName(s *Objects, cluster string) string {
	last := 0
	for name := range s.Runs {
		var n int
		if rest, found := strings.CutPrefix(name, cluster+"-run-"); found {
			if _, err := fmt.Sscanf(rest, "%d", &n); err == nil && n < maxRunNumber {
				last = max(last, n)
			}
		}
	}
	for {
		last++
		if name := fmt.Sprintf("%s-run-%d", cluster, last); s.Runs[name] == nil {
			return name
		}
	}
}

// StartRun starts a run that was created with hold.
func (a *Admission) StartRun(name string) (Change, error) {
	return a.changeRun(name, "to be started", func(run *v1.Run) (bool, error) {
		if !run.Spec.GetHold() {
			return false, nil
		}
		if RunEnded(run.State) && run.Message != "" {
			return false, precondition("run %s has ended: %s", run.Meta.Name, run.Message)
		}
		if RunEnded(run.State) || run.Cancel {
			return false, precondition("run %s was cancelled", run.Meta.Name)
		}
		if err := noneHalted(a.Objects, run.Spec.Cluster); err != nil {
			return false, err
		}
		run.Spec.Hold = false
		return true, nil
	})
}

// StageFile notes that a file is about to be staged for a run that waits for its files. It refuses if files that were staged before are
// gone.
func (a *Admission) StageFile(name string) (c Change, err error) {
	run, err := Find(a.Caller, "run", name, a.Runs)
	if err != nil || !run.Spec.GetHold() {
		return c, err
	}
	cluster := a.Clusters[run.Spec.Cluster]
	if restoring(cluster) {
		return c, precondition("cluster %s is being restored from checkpoint %s", run.Spec.Cluster, cluster.Restore.Checkpoint)
	}
	if gone := stagedFilesGone(a.Objects, run); gone != "" {
		return c, refuse(Lost, "%s; begin the run again", gone)
	}
	head, _ := RunHead(a.Objects, run)
	staged := &v1.Staged{StartedEpoch: a.Guests[head].GetStartedEpoch(), Restore: cluster.GetRestore().GetId(), At: run.Staged.GetAt()}
	for _, made := range a.Checkpoints {
		if made.Cluster == run.Spec.Cluster {
			staged.Checkpoint = max(staged.Checkpoint, uint32(checkpointNumber(made)))
		}
	}
	if a.Now.Sub(staged.At.AsTime()) > time.Hour {
		staged.At = timestamppb.New(a.Now)
	}
	if !proto.Equal(staged, run.Staged) {
		run = proto.CloneOf(run)
		run.Staged = staged
		c.write(Update, run)
	}
	return c, nil
}

// stagedFilesGone returns why files that were staged for a run are gone; empty: they are there, or none were staged. They are gone with
// the memory of the head guest, unless it went back to a checkpoint that was begun after the last file.
func stagedFilesGone(s *Objects, run *v1.Run) string {
	cluster, staged := s.Clusters[run.Spec.GetCluster()], run.Staged
	head, _ := RunHead(s, run)
	g, restore := s.Guests[head], cluster.GetRestore()
	switch {
	case staged == nil || g.GetHost() == "": // or it will be seen when the guest has a host again
		return ""
	case staged.Restore != restore.GetId() && uint32(numberIn(restore.GetCheckpoint())) <= staged.Checkpoint:
		return fmt.Sprintf("cluster %s went back to checkpoint %s, from before files were staged for run %s", run.Spec.Cluster, restore.GetCheckpoint(), run.Meta.Name)
	case staged.StartedEpoch != g.StartedEpoch && cluster.Spec.GetVolume() == "":
		return fmt.Sprintf("guest %s was started again after files had been staged for run %s, which were in its memory", head, run.Meta.Name)
	}
	return ""
}

// RunToSignal returns the run whose process gets a signal; nil: CancelRun decides about the request.
func (a *Admission) RunToSignal(name string, signal int32) (*v1.Run, error) {
	if signal < 0 || signal > maxSignal {
		return nil, invalid("%d is not a signal's number", signal)
	}
	if signal == 0 {
		return nil, nil
	}
	run, err := Find(a.Caller, "run", name, a.Runs)
	if err != nil || run.State != v1.RunState_RUN_STATE_RUNNING || run.Cancel {
		return nil, err
	}
	return run, nil
}

// CancelRun ends a run. A run that has ended is left as it is. signal, unless it is 0, is what the caller wanted to send to
// the run's process; signalName is for people.
func (a *Admission) CancelRun(name string, signal int32, signalName string) (Change, error) {
	return a.changeRun(name, "to be cancelled", func(run *v1.Run) (bool, error) {
		if RunEnded(run.State) || run.Cancel {
			return false, nil
		}
		if signal != 0 && !slices.Contains(endingSignals, signal) {
			return false, precondition("run %s does not run yet, so it has nothing that could take %s; send it once it runs, "+
				"or end the run with `watari run cancel %s`", run.Meta.Name, signalName, run.Meta.Name)
		}
		run.Cancel = true
		return true, nil
	})
}

// RemoveRun forgets a run that has ended.
func (a *Admission) RemoveRun(name string) (change Change, err error) {
	run, err := Find(a.Caller, "run", name, a.Runs)
	if err != nil {
		return change, err
	}
	if !RunEnded(run.State) {
		return change, precondition("run %s has not ended; end it first with `watari run cancel %[1]s`", name)
	}
	change.write(Delete, proto.CloneOf(run))
	a.audited(&change, "run", name, "removed")
	return change, nil
}

// changeRun changes the caller's run. change tells whether there was anything to change.
func (a *Admission) changeRun(name, what string, change func(*v1.Run) (bool, error)) (c Change, err error) {
	run, err := Find(a.Caller, "run", name, a.Runs)
	if err != nil {
		return c, err
	}
	run = proto.CloneOf(run)
	changed, err := change(run)
	if !changed || err != nil {
		return c, err
	}
	c.write(Update, run)
	a.audited(&c, "run", name, "%s", what)
	return c, nil
}
