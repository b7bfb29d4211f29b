package core

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/core/lifecycle"
	"watari/policy"
)

// saved adds a whole checkpoint of the household's cluster, with its files on a1.
func (h *household) saved(name string, age time.Duration, change ...func(*v1.Checkpoint)) {
	c := &v1.Checkpoint{Meta: &v1.Meta{Name: name, Uid: "uid-" + name, Owner: "ann", Created: timestamppb.New(h.now.Add(-age))}, Cluster: "md", ClusterUid: "uid-md",
		State: v1.CheckpointState_CHECKPOINT_STATE_DONE, Started: timestamppb.New(h.now.Add(-age)), Ended: timestamppb.New(h.now.Add(-age)), Taken: timestamppb.New(h.now.Add(-age))}
	for _, g := range GuestsOf(h.objects, "md") {
		c.Members = append(c.Members, &v1.CheckpointMember{Guest: g.Meta.Name, GuestUid: g.Meta.Uid, Index: g.Index, Host: g.Host, Epoch: g.Epoch, StartedEpoch: g.StartedEpoch,
			File: &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:" + name + g.Meta.Name, Size: 1 << 20}, StateBytes: 2 << 20, Hosts: []string{"a1"}}})
	}
	for _, change := range change {
		change(c)
	}
	h.write(c)
}

// write writes an object as the store does, so that later passes see it: they look at what has changed.
func (h *household) write(object Object) {
	h.objects = h.objects.Apply(Change{Ops: []Op{{Kind: Create, Object: object}}})
}

func (h *household) admission() *Admission {
	return &Admission{Objects: h.objects, Caller: Caller{Name: "root", Admin: true}, Reports: h.reports(), Now: h.now, Began: h.core.Began}
}

// A checkpoint that was given up may still be written by a host. The next one of the guest waits.
func TestACheckpointWaitsForWhatAHostStillWrites(t *testing.T) {
	h := newHousehold(t, "", 1)
	h.files = map[string][]*v1.CheckpointObserved{"a1": {{CheckpointId: "c", GuestUid: h.objects.Guests["md-0"].Meta.Uid, Busy: true}}}
	h.saved("md-c7", 0, func(c *v1.Checkpoint) {
		c.State, c.Ended, c.Taken = v1.CheckpointState_CHECKPOINT_STATE_PENDING, nil, nil
	})
	h.pass(time.Second)
	if c := h.objects.Checkpoints["md-c7"]; c.State != v1.CheckpointState_CHECKPOINT_STATE_PENDING || !strings.Contains(c.Message, "an earlier checkpoint of guest md-0") {
		t.Errorf("it is %v: %s", c.State, c.Message)
	}
	h.files = nil
	h.pass(time.Second)
	if c := h.objects.Checkpoints["md-c7"]; c.State != v1.CheckpointState_CHECKPOINT_STATE_PREPARING {
		t.Errorf("afterwards it is %v: %s", c.State, c.Message)
	}
}

// Checkpoints that a cluster left behind do not replace the one to which it went back.
func TestACheckpointIsKeptThoughNewerOnesWereLeftBehind(t *testing.T) {
	h := newHousehold(t, "", 2)
	for i := range 5 {
		h.saved(fmt.Sprintf("md-c%d", i), time.Duration(10-i)*time.Hour)
	}
	h.objects.Clusters["md"].LeftBehind = []*v1.CheckpointNumbers{{After: 1, Upto: 4}}
	h.pass(time.Second)
	if left := sortedKeys(h.objects.Checkpoints); !slices.Equal(left, []string{"md-c0", "md-c1", "md-c2", "md-c3", "md-c4"}) {
		t.Errorf("checkpoints are %v", left)
	}
}

func TestTheNewestCheckpointsAreKept(t *testing.T) {
	h := newHousehold(t, "", 2)
	for i := range 5 {
		h.saved(fmt.Sprintf("md-c%d", i), time.Duration(10-i)*time.Hour)
	}
	h.saved("md-c8", 20*time.Hour, func(c *v1.Checkpoint) { c.Pinned = true })
	for i := range 5 {
		h.saved(fmt.Sprintf("md-f%d", i), time.Duration(10-i)*time.Minute, func(c *v1.Checkpoint) { c.State, c.Members = v1.CheckpointState_CHECKPOINT_STATE_FAILED, nil })
	}
	h.pass(time.Second)
	if got, want := strings.Join(sortedKeys(h.objects.Checkpoints), " "), "md-c2 md-c3 md-c4 md-c8 md-f2 md-f3 md-f4"; got != want {
		t.Errorf("kept are %s, want %s", got, want)
	}
}

// Copies take longer than the pause between checkpoints. The loss of one host must leave a checkpoint.
func TestTheLatestCheckpointWithCopiesIsKept(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.objects.Clusters["md"].Verified = timestamppb.New(h.now)
	for i := range 7 {
		h.saved(fmt.Sprintf("md-c%d", i), time.Duration(10-i)*time.Hour, func(c *v1.Checkpoint) {
			for _, m := range c.Members {
				if i < 2 {
					m.File.Hosts = []string{"a1", "b1"}
				}
			}
			if i == 6 {
				c.Verification = &v1.Verification{State: v1.VerificationState_VERIFICATION_STATE_FAILED, Ended: timestamppb.New(h.now)}
			}
		})
	}
	h.pass(time.Second)
	if got, want := strings.Join(sortedKeys(h.objects.Checkpoints), " "), "md-c1 md-c4 md-c5 md-c6"; got != want {
		t.Errorf("kept are %s, want %s", got, want)
	}
}

func TestALaterCheckpointHasAHigherNumber(t *testing.T) {
	h := newHousehold(t, "", 2)
	for _, name := range []string{"md-c9", "md-c10", "md-cx", "other-c30"} {
		h.saved(name, time.Hour)
	}
	_, name, err := h.admission().CreateCheckpoint(&v1.CreateCheckpointRequest{Cluster: "md"}, CheckpointKey{"secret", "public"})
	if err != nil || name != "md-c11" {
		t.Errorf("it is called %s, %v", name, err)
	}
}

func TestCheckpointsAreMadeAsPlanned(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.objects.Clusters["md"].Checkpoints = &v1.CheckpointPlan{EverySeconds: 600}
	h.objects.Clusters["md"].Meta.Created = timestamppb.New(h.now)
	h.pass(9 * time.Minute)
	if len(h.objects.Checkpoints) != 0 {
		t.Fatal("a checkpoint is made before its time")
	}
	h.pass(2 * time.Minute)
	c := h.objects.Checkpoints["md-c1"]
	if c == nil || c.Reason != "every 10m0s" || c.State != v1.CheckpointState_CHECKPOINT_STATE_PREPARING {
		t.Fatalf("the checkpoint is %v", c)
	}
	orders := h.pass(time.Second)
	if got := orders["a1"].GetCheckpoints(); len(got) != 2 || got[0].Order != v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE {
		t.Errorf("a1's orders are %v", got)
	}
	if len(h.objects.Checkpoints) != 1 {
		t.Errorf("another is made beside it: %v", sortedKeys(h.objects.Checkpoints))
	}
}

// A checkpoint that failed is made again soon, and not only when the next one is due; but not again and again.
func TestAPlannedCheckpointThatFailedIsMadeAgainSoon(t *testing.T) {
	failed := func(c *v1.Checkpoint) { c.State, c.Members = v1.CheckpointState_CHECKPOINT_STATE_FAILED, nil }
	for failures, pause := range []time.Duration{1: 5 * time.Minute, 2: 10 * time.Minute, 3: mostRetryPlanned} {
		if failures == 0 {
			continue
		}
		h := newHousehold(t, "", 2)
		h.objects.Clusters["md"].Checkpoints = &v1.CheckpointPlan{EverySeconds: 6 * 3600}
		h.objects.Clusters["md"].Meta.Created = timestamppb.New(h.now.Add(-9 * time.Hour))
		h.saved("md-c1", 8*time.Hour, failed)
		h.saved("md-c2", 7*time.Hour)
		for n := range failures {
			h.saved(fmt.Sprintf("md-c%d", 3+n), time.Duration(failures-1-n)*time.Minute, failed)
		}
		next := fmt.Sprintf("md-c%d", 3+failures)
		if h.pass(pause - time.Second); h.objects.Checkpoints[next] != nil {
			t.Errorf("after %d failures, another is made before %v", failures, pause)
		}
		if h.pass(2 * time.Second); h.objects.Checkpoints[next] == nil {
			t.Errorf("after %d failures, there are %v after %v", failures, sortedKeys(h.objects.Checkpoints), pause)
		}
	}
}

// A person cancels a planned checkpoint. Its plan does not begin another one at once.
func TestAPlannedCheckpointThatWasCancelledIsNotMadeAgainAtOnce(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.objects.Clusters["md"].Checkpoints = &v1.CheckpointPlan{EverySeconds: 3600}
	h.objects.Clusters["md"].Meta.Created = timestamppb.New(h.now.Add(-2 * time.Hour))
	h.pass(time.Second)
	change, err := h.admission().DeleteCheckpoint("md-c1")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(change.Ops, func(op Op) bool { return op.Kind == Expect && op.Object.GetMeta().Name == "md" }) {
		t.Error("it does not expect the cluster as it is: a restore may begin at the same time")
	}
	h.objects = h.objects.Apply(change)
	h.pass(time.Second)
	h.ask(func(a *Admission) (Change, error) { a.Caller.Admin = true; return a.DeleteCheckpoint("md-c1") })
	h.pass(time.Minute)
	if left := sortedKeys(h.objects.Checkpoints); !slices.Equal(left, []string{"md-c1"}) {
		t.Errorf("after a minute there are %v", left)
	}
	h.pass(retryPlanned)
	if left := sortedKeys(h.objects.Checkpoints); slices.Contains(left, "md-c1") || len(left) != 1 {
		t.Errorf("after the pause there are %v", left)
	}
}

func TestACheckpointGivesWayToADrain(t *testing.T) {
	h := newHousehold(t, "", 2)
	change, name, err := h.admission().CreateCheckpoint(&v1.CreateCheckpointRequest{Cluster: "md"}, CheckpointKey{"secret", "public"})
	if err != nil {
		t.Fatal(err)
	}
	h.objects = h.objects.Apply(change)
	h.pass(time.Second)
	if state := h.objects.Checkpoints[name].State; state != v1.CheckpointState_CHECKPOINT_STATE_PREPARING {
		t.Fatalf("the checkpoint is %s", state)
	}
	h.change("a1", func(host *v1.Host) { host.Draining = true })
	h.pass(time.Second)
	if state := h.objects.Checkpoints[name].State; state != v1.CheckpointState_CHECKPOINT_STATE_CANCELLED {
		t.Errorf("the checkpoint is %s", state)
	}
	if h.moves() == "" {
		t.Error("no guest leaves the drained host")
	}
}

func TestACheckpointThatCannotBeRestored(t *testing.T) {
	for name, c := range map[string]struct {
		change func(h *household)
		want   string
	}{
		"its cluster has other guests": {func(h *household) {
			h.saved("md-c1", time.Hour, func(c *v1.Checkpoint) { c.Members = c.Members[:1] })
		}, "guest md-1 is not in it"},
		"it is not whole": {func(h *household) {
			h.saved("md-c1", time.Hour, func(c *v1.Checkpoint) { c.State = v1.CheckpointState_CHECKPOINT_STATE_FAILED })
		}, "it is failed"},
		"it is of an earlier cluster": {func(h *household) {
			h.saved("md-c1", time.Hour, func(c *v1.Checkpoint) { c.ClusterUid = "another" })
		}, "no longer exists"},
		"there is none": {func(*household) {}, "there is no checkpoint"},
	} {
		h := newHousehold(t, "", 2)
		c.change(h)
		change, _, err := h.admission().RestoreCheckpoint("md-c1")
		if err == nil || !strings.Contains(err.Error(), c.want) || len(change.Ops) > 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A restore first ends all copies, and lets no guest go on before all are restored. If one cannot be restored, an older
// checkpoint is tried.
func TestRestoring(t *testing.T) {
	h := newHousehold(t, "", 2)
	h.saved("md-c1", 2*time.Hour)
	h.saved("md-c2", time.Hour)
	change, _, err := h.admission().RestoreCheckpoint("md")
	if err != nil {
		t.Fatal(err)
	}
	h.objects = h.objects.Apply(change)
	orders := h.pass(time.Second)
	for _, w := range orders["a1"].Guests {
		if w.Role != v1.GuestRole_GUEST_ROLE_ABSENT {
			t.Errorf("guest %s is ordered to be %s before the copies have ended", w.Name, w.Role)
		}
	}
	h.releaseAll()
	orders = h.pass(time.Second)
	restored := 0
	for _, wanted := range orders {
		for _, w := range wanted.Guests {
			if w.Role != v1.GuestRole_GUEST_ROLE_INCOMING || w.Restore.GetCheckpointId() != "uid-md-c2" || w.Epoch != 2 {
				t.Errorf("guest %s is ordered to be %v", w.Name, w)
			}
			restored++
		}
	}
	if restored != 2 {
		t.Fatalf("%d guests are restored", restored)
	}
	g := h.objects.Guests["md-1"]
	var c Change
	c.write(Update, withFailure(g, "the file is damaged"))
	h.objects = h.objects.Apply(c)
	h.pass(time.Second)
	if restore := h.objects.Clusters["md"].Restore; restore.Checkpoint != "md-c1" || !strings.Contains(restore.Reason, "the file is damaged") {
		t.Errorf("after a failure: %v", restore)
	}
}

func withFailure(g *v1.Guest, why string) *v1.Guest {
	g = proto.CloneOf(g)
	g.Failure = why
	return g
}

// A host's refusal does not count as a start. When all hosts have refused, they are asked again after a pause.
func TestHostsThatCannotRestoreAGuestAreAskedAgain(t *testing.T) {
	h := newHousehold(t, "", 1)
	h.saved("md-c1", time.Hour)
	for _, m := range h.objects.Checkpoints["md-c1"].Members {
		h.files = map[string][]*v1.CheckpointObserved{"a1": {{CheckpointId: "uid-md-c1", GuestUid: m.GuestUid, Epoch: m.Epoch, File: m.File,
			Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN}}}
	}
	h.ask(func(a *Admission) (Change, error) { c, _, err := a.RestoreCheckpoint("md-c1"); return c, err })
	h.releaseAll()
	h.refusing = true
	refusals := func(after time.Duration) (n int) {
		h.events = nil
		h.pass(after)
		for _, e := range h.events {
			if strings.Contains(e, "no room") {
				n++
			}
		}
		return n
	}
	for round := range 2 * lifecycle.MaxRestarts {
		pause := refusedPause << round
		if n := refusals(pause); n != len(h.objects.Hosts)+1 { // the last one is the cluster's
			t.Fatalf("round %d: %d hosts refused: %q", round, n, h.events)
		}
		if state := h.objects.Clusters["md"].Restore.State; state != v1.RestoreState_RESTORE_STATE_ENDING {
			t.Fatalf("round %d: it is %s", round, state)
		}
		if n := refusals(pause / 2); n != 0 {
			t.Fatalf("round %d: asked again too early: %q", round, h.events)
		}
	}
	if g := h.objects.Guests["md-0"]; g.Restarts != 0 || g.Failure != "" {
		t.Errorf("the guest: %v", g)
	}
	h.refusing, h.away = false, map[string]bool{"a1": true}
	h.pass(longestRefusedPause)
	if g := h.objects.Guests["md-0"]; g.Host != "" || !strings.Contains(g.Message, "waits for a host that has the files") {
		t.Errorf("its file is out of reach: %v", g)
	}
	h.away = nil
	h.pass(refusedPause)
	if g := h.objects.Guests["md-0"]; g.Host == "" {
		t.Errorf("nothing is in its way: %v", g)
	}
}

// A restore begins when all guests have a place. Until then, the guests say for which one they wait.
func TestGuestsOfARestoreSayForWhichOneTheyWait(t *testing.T) {
	h := newHousehold(t, "", 3)
	h.objects.Guests["md-1"].Shape.MemoryBytes = 64 << 30
	h.saved("md-c1", time.Hour)
	h.ask(func(a *Admission) (Change, error) { c, _, err := a.RestoreCheckpoint("md-c1"); return c, err })
	h.releaseAll()
	h.objects.Guests["md-2"].Message = "hosts have refused it, and are asked again at 12:00:00 UTC"
	h.pass(time.Second)
	for name, want := range map[string]string{"md-0": "waits for a place for guest md-1", "md-1": "no host for guest", "md-2": "waits for a place for guest md-1"} {
		if g := h.objects.Guests[name]; g.Host != "" || !strings.HasPrefix(g.Message, want) {
			t.Errorf("%s is on %q and says %q, want %q", name, g.Host, g.Message, want)
		}
	}
}

// The processes of a run that was cancelled after the checkpoint are back with it.
func TestRunsGoBackWithTheirCluster(t *testing.T) {
	h := newHousehold(t, "", 1)
	running, cancelled, failed, starting := v1.RunState_RUN_STATE_RUNNING, v1.RunState_RUN_STATE_CANCELLED, v1.RunState_RUN_STATE_FAILED, v1.RunState_RUN_STATE_STARTING
	h.objects.Clusters["md"].Restore = &v1.Restore{Id: "r1"}
	for name, r := range map[string]*v1.Run{
		"in-starting": {State: failed}, "in": {State: running}, "in-cancel": {State: running, Cancel: true}, "in-cancelled": {State: cancelled, Cancel: true},
		"new": {State: running}, "new-cancel": {State: running, Cancel: true}, "new-cancelled": {State: cancelled, Cancel: true},
	} {
		r.Meta, r.Spec, r.ClusterUid = &v1.Meta{Name: name, Uid: "uid-" + name}, &v1.RunSpec{Cluster: "md"}, "uid-md"
		h.objects.Runs[name] = r
	}
	h.saved("md-c1", time.Hour, func(c *v1.Checkpoint) {
		for _, name := range []string{"in", "in-cancel", "in-cancelled"} {
			c.Runs = append(c.Runs, &v1.CheckpointRun{Run: name, Uid: "uid-" + name})
		}
		c.Runs = append(c.Runs, &v1.CheckpointRun{Run: "in-starting", Uid: "uid-in-starting", Starting: true},
			&v1.CheckpointRun{Run: "removed", Uid: "uid-removed"}, &v1.CheckpointRun{Run: "in", Uid: "uid of an earlier one"})
	})
	cluster, from := h.objects.Clusters["md"], h.objects.Checkpoints["md-c1"]
	p := &pass{Core: h.core, World: &World{Objects: h.objects, Now: h.now}}
	var c Change
	if p.rewind(&c, cluster, from) {
		t.Error("there is more")
	}
	if strays := p.strays(cluster, from); !slices.Equal(strays, []string{"uid-removed", "uid of an earlier one"}) {
		t.Errorf("nobody ends %q, or too much", strays)
	}
	h.objects = h.objects.Apply(c)
	for name, want := range map[string]v1.RunState{"in-starting": starting, "in": running, "in-cancel": running, "in-cancelled": running, "new": failed, "new-cancel": cancelled, "new-cancelled": cancelled} {
		if r := h.objects.Runs[name]; r.State != want || (r.Restores > 0) != (want == running || want == starting) {
			t.Errorf("run %s is %s after %d restores, want %s", name, r.State, r.Restores, want)
		}
	}
}

// A store takes only so many changes at once. Each run goes back once, however many there are.
func TestManyRunsGoBackWithTheirCluster(t *testing.T) {
	h := newHousehold(t, "", 1)
	h.objects.Clusters["md"].Restore = &v1.Restore{Id: "r1"}
	from := &v1.Checkpoint{Meta: &v1.Meta{Name: "md-c1"}}
	for i := range 3 * mostRewound {
		name := fmt.Sprint("r", i)
		run := &v1.Run{Meta: &v1.Meta{Name: name, Uid: name}, Spec: &v1.RunSpec{Cluster: "md", Command: []string{strings.Repeat("x", i*1000)}}, ClusterUid: "uid-md", State: v1.RunState_RUN_STATE_RUNNING}
		if h.objects.Runs[name] = run; i%2 == 0 {
			from.Runs = append(from.Runs, &v1.CheckpointRun{Run: name, Uid: name})
		}
	}
	changes := 0
	for more := true; more; changes++ {
		p := &pass{Core: h.core, World: &World{Objects: h.objects, Now: h.now}}
		var c Change
		more = p.rewind(&c, h.objects.Clusters["md"], from)
		bytes := 0
		for _, op := range c.Ops {
			bytes += proto.Size(op.Object)
		}
		if len(c.Ops) > mostRewound || bytes > mostRewoundBytes+10_000 {
			t.Errorf("a change has %d objects and %d bytes", len(c.Ops), bytes)
		}
		h.objects = h.objects.Apply(c)
	}
	for name, r := range h.objects.Runs {
		if is := r.State == v1.RunState_RUN_STATE_RUNNING; is != (r.Restores == 1) || r.Restores > 1 {
			t.Errorf("run %s is %s after %d restores", name, r.State, r.Restores)
		}
	}
	if changes < 7 {
		t.Errorf("%d changes", changes)
	}
}

// A part of the runs went back. The restore is finished, whatever happens to the guests meanwhile.
func TestARestoreThatHasBegunToPutRunsBackIsFinished(t *testing.T) {
	h := newHousehold(t, "", 1)
	h.saved("md-c1", time.Hour)
	h.objects.Clusters["md"].Restore = &v1.Restore{Id: "r1", Checkpoint: "md-c1", CheckpointUid: h.objects.Checkpoints["md-c1"].Meta.Uid, State: v1.RestoreState_RESTORE_STATE_RESTORING}
	h.objects.Guests["md-0"].Stopped = true
	h.objects.Runs["r"] = &v1.Run{Meta: &v1.Meta{Name: "r", Uid: "r-uid"}, Spec: &v1.RunSpec{Cluster: "md"}, ClusterUid: "uid-md", State: v1.RunState_RUN_STATE_RUNNING, Restore: "r1"}
	h.pass(0)
	if r := h.objects.Clusters["md"].Restore; r.State != v1.RestoreState_RESTORE_STATE_DONE {
		t.Errorf("the restore is %v", r)
	}
}

// releaseAll releases the grants of all guests, as if their copies had ended.
func (h *household) releaseAll() {
	var c Change
	for _, g := range h.objects.Guests {
		g = proto.CloneOf(g)
		g.Host, g.BootId = "", ""
		c.write(Update, g)
	}
	h.objects = h.objects.Apply(c)
}

func TestCheckpointsAreOrderedByTheirNumbersWhateverTheClockSays(t *testing.T) {
	at := func(name string, age time.Duration) *v1.Checkpoint {
		return &v1.Checkpoint{Meta: &v1.Meta{Name: name, Created: timestamppb.New(time.Unix(1e9, 0).Add(-age))}}
	}
	older, newer := at("md-c9", 0), at("md-c10", time.Hour) // the clock was set back in between
	if compareCheckpoints(older, newer) >= 0 {
		t.Error("the later one counts as the older one")
	}
	if s := at("my-home-s12", 0); checkpointNumber(s) != 12 || checkpointNumber(at("old", 0)) != 0 || checkpointNumber(at("a-b", 0)) != 0 {
		t.Error("numbers")
	}
}

func TestAHostWithoutRoomKeepsNoCopy(t *testing.T) {
	h := newHousehold(t, "", 1)
	h.sharing = true
	h.saved("md-c1", time.Hour, func(c *v1.Checkpoint) {
		c.Copies = 2
		for _, m := range c.Members {
			m.File = &v1.CheckpointFile{Blob: &v1.Blob{Digest: "sha256:1", Size: 1}, Hosts: []string{"a1"}}
		}
	})
	asked := func() (hosts []string) {
		for name, orders := range h.pass(time.Second) {
			for _, w := range orders.Checkpoints {
				if w.Order == v1.CheckpointOrder_CHECKPOINT_ORDER_KEEP && name != "a1" {
					hosts = append(hosts, name)
				}
			}
		}
		return hosts
	}
	if got := asked(); !slices.Equal(got, []string{"b1"}) { // of another site
		t.Fatalf("asked: %v", got)
	}
	c := h.objects.Checkpoints["md-c1"]
	h.files = map[string][]*v1.CheckpointObserved{"b1": {{CheckpointId: c.Meta.Uid, GuestUid: c.Members[0].GuestUid, Phase: v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED, Message: "no room"}}}
	if got := asked(); !slices.Equal(got, []string{"a2"}) {
		t.Errorf("b1 has no room, and asked are: %v", got)
	}
	h.files = nil
	if got := asked(); !slices.Equal(got, []string{"a2"}) {
		t.Errorf("b1 says no more, since it is not asked any more, and asked are: %v", got)
	}
	h.pass(noRoomFor)
	if got := asked(); !slices.Equal(got, []string{"b1"}) {
		t.Errorf("after a while asked are: %v", got)
	}
}

// Copies go to another site, there preferably to a host that is not lent, and never to one that is maintained.
func TestCopiesGoToHostsThatStay(t *testing.T) {
	for _, kept := range []string{"b1", "b2"} {
		other := map[string]string{"b1": "b2", "b2": "b1"}[kept]
		h := newHousehold(t, "maintenance: {}", 1)
		h.objects.Hosts["b2"] = &v1.Host{Meta: &v1.Meta{Name: "b2", Uid: "uid-b2"}, Info: proto.CloneOf(h.objects.Hosts["b1"].Info)}
		h.sharing = true
		h.saved("md-c1", time.Hour)
		target := func() string {
			p := &pass{Core: h.core, World: &World{Objects: h.objects, Reports: h.reports(), Now: h.now}}
			return p.copyTarget(h.objects.Checkpoints["md-c1"], h.objects.Checkpoints["md-c1"].Members[0])
		}
		h.objects.Hosts[kept].Info.Lent = false
		if got := target(); got != kept {
			t.Errorf("%s is not lent, and the copy goes to %q", kept, got)
		}
		h.objects.Hosts[kept].Info.Lent, h.objects.Hosts[other].Info.Lent = true, false
		for _, host := range []string{"a2", other} {
			h.change(host, func(v *v1.Host) {
				v.Withdrawn = []*v1.Withdrawal{{Policy: policy.MaintenanceName, Since: timestamppb.New(h.now)}}
			})
		}
		if got := target(); got != kept {
			t.Errorf("%s is the only host that stays, and the copy goes to %q", kept, got)
		}
		h.ask(func(a *Admission) (Change, error) { return a.QuarantineHost(kept, 0, false) })
		if got := target(); got != "" {
			t.Errorf("%s is cut off, and the copy goes to %q", kept, got)
		}
		h.ask(func(a *Admission) (Change, error) { return a.QuarantineHost(kept, 0, true) })
		h.change(kept, func(v *v1.Host) { v.Draining = false })
		if got := target(); got != kept {
			t.Errorf("%s is trusted again, and the copy goes to %q", kept, got)
		}
		h.change(kept, func(v *v1.Host) { v.Draining = true })
		if got := target(); got != "" {
			t.Errorf("no host stays, and the copy goes to %q", got)
		}
	}
}
