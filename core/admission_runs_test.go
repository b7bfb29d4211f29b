package core

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

func TestARunIsBounded(t *testing.T) {
	run := func(bytes int) *v1.RunSpec {
		return &v1.RunSpec{Cluster: "md", Command: []string{"x"}, Env: map[string]string{"A": strings.Repeat("x", bytes)}}
	}
	if err := checkRun("r1", run(100<<10)); err != nil {
		t.Error(err)
	}
	if err := checkRun("r1", run(1<<20)); err == nil || !strings.Contains(err.Error(), "have 1.0 MiB; at most 256 KiB") {
		t.Error(err)
	}
	s := &Objects{Runs: map[string]*v1.Run{
		"a": {Spec: run(1), State: v1.RunState_RUN_STATE_PENDING},
		"b": {Spec: run(1), State: v1.RunState_RUN_STATE_RUNNING},
		"c": {Spec: run(1), State: v1.RunState_RUN_STATE_EXITED},
		"d": {Spec: &v1.RunSpec{Cluster: "lu"}, State: v1.RunState_RUN_STATE_RUNNING},
	}}
	if n := unended(s, "md"); n != 2 {
		t.Errorf("%d runs of md have not ended", n)
	}
}

func TestARunOverPMWantsAnImageThatHasIt(t *testing.T) {
	for _, test := range []struct {
		image     *v1.Image
		transport v1.Transport
		words     []string
	}{
		{&v1.Image{Digest: "d", Mpi: []string{"openmpi"}, Pm: true}, v1.Transport_TRANSPORT_PM, nil},
		{&v1.Image{Digest: "d", Mpi: []string{"mpich", "openmpi"}, Pm: true}, v1.Transport_TRANSPORT_PM, nil},
		{&v1.Image{Digest: "d", Pm: true}, v1.Transport_TRANSPORT_PM, nil}, // an MPI that was not found, as without PM
		{&v1.Image{Digest: "d", Mpi: []string{"openmpi"}}, v1.Transport_TRANSPORT_PM, []string{"image mpi of cluster md", "no PM", "watari image build"}},
		{&v1.Image{Digest: "d", Mpi: []string{"mpich"}, Pm: true}, v1.Transport_TRANSPORT_PM, []string{"image mpi of cluster md", "Open MPI"}},
		{&v1.Image{Digest: "d", Mpi: []string{"mpich"}}, v1.Transport_TRANSPORT_TCP, nil},
		{&v1.Image{Digest: "d", Mpi: []string{"openmpi"}}, v1.Transport_TRANSPORT_UNSPECIFIED, nil},
	} {
		s := &Objects{Images: map[string]*v1.Image{"mpi": test.image, "other": {Digest: "other"}}}
		err := checkTransport(s, &v1.Cluster{Meta: &v1.Meta{Name: "md"}, ImageDigest: "d"}, test.transport)
		if test.words == nil && err != nil || test.words != nil && KindOf(err) != Precondition {
			t.Errorf("%v over %v: %v", test.image, test.transport, err)
			continue
		}
		for _, word := range test.words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%v over %v: %v; want %q", test.image, test.transport, err, word)
			}
		}
	}
	if err := checkRun("r", &v1.RunSpec{Command: []string{"x"}, Transport: 9}); KindOf(err) != Invalid || !strings.Contains(err.Error(), "9") {
		t.Errorf("unknown transport: %v", err)
	}
}

// ready returns an admission whose cluster md can run programs.
func ready() *Admission {
	a := admissionTest()
	a.Clusters["md"] = &v1.Cluster{Meta: &v1.Meta{Name: "md", Uid: "md-uid", Owner: "ann", OwnerUid: "u1"}, ImageDigest: "digest"}
	a.Guests["md-0"] = &v1.Guest{Meta: &v1.Meta{Name: "md-0", Uid: "md-0-uid", Owner: "ann", OwnerUid: "u1"}, Cluster: "md", Host: "a1", Shape: shape(1, 512)}
	return a
}

func runRequest(name string, change ...func(*v1.CreateRunRequest)) *v1.CreateRunRequest {
	r := &v1.CreateRunRequest{Name: name, Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x", "y"}}}
	for _, f := range change {
		f(r)
	}
	return r
}

func TestBoundsOfRuns(t *testing.T) {
	for want, change := range map[string]func(*v1.CreateRunRequest){
		"the run has no program":                        func(r *v1.CreateRunRequest) { r.Spec.Command = []string{""} },
		"1048577 ranks: at most 1048576":                func(r *v1.CreateRunRequest) { r.Spec.Ranks = maxRanks + 1 },
		`the run's directory "tmp" is not absolute`:     func(r *v1.CreateRunRequest) { r.Spec.Directory = "tmp" },
		`"A=" cannot be an environment variable's name`: func(r *v1.CreateRunRequest) { r.Spec.Env = map[string]string{"A=": ""} },
		`"" cannot be an environment variable's name`:   func(r *v1.CreateRunRequest) { r.Spec.Env = map[string]string{"": ""} },
		"the request's id has 65 bytes; at most 64":     func(r *v1.CreateRunRequest) { r.RequestId = strings.Repeat("x", maxRequestID+1) },
		`"Run" cannot be a run's name`:                  func(r *v1.CreateRunRequest) { r.Name = "Run" },
		`there is no cluster "lu"; there are: md`:       func(r *v1.CreateRunRequest) { r.Spec.Cluster = "lu" },
		"have 257 KiB; at most 256 KiB":                 func(r *v1.CreateRunRequest) { r.Spec.Command = []string{"x", strings.Repeat("x", 257<<10)} },
	} {
		kind := Invalid
		if strings.HasPrefix(want, "there is no") {
			kind = NotFound
		}
		c, _, err := ready().CreateRun(runRequest("r", change))
		refused(t, c, err, kind, want)
	}
	most := func(r *v1.CreateRunRequest) {
		r.Spec.Ranks, r.Spec.Directory, r.RequestId = maxRanks, "/tmp", strings.Repeat("x", maxRequestID)
	}
	if c, name, err := ready().CreateRun(runRequest("", most)); err != nil || name != "md-run-1" || len(c.Ops) != 1 {
		t.Errorf("%v, %s, %v", c, name, err)
	}
}

// Files that are staged for a run lie in the head guest's memory. A run whose files are gone does not begin in an empty folder.
func TestARunWhoseStagedFilesAreGoneDoesNotBegin(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(h *household)
		gone    string
	}{
		"nothing":                    {func(*household) {}, ""},
		"its guest is started again": {func(h *household) { h.objects.Guests["md-0"].StartedEpoch = 2 }, "guest md-0 was started again after files had been staged for run r, which were in its memory"},
		"the same, and the home is on a volume": {func(h *household) {
			h.objects.Guests["md-0"].StartedEpoch = 2
			h.objects.Clusters["md"].Spec.Volume = "v"
		}, ""},
		"its cluster goes back": {func(h *household) {
			h.objects.Clusters["md"].Restore = &v1.Restore{Id: "x", Checkpoint: "md-c4", State: v1.RestoreState_RESTORE_STATE_DONE}
		}, "cluster md went back to checkpoint md-c4, from before files were staged for run r"},
		"its cluster goes back to a later checkpoint": {func(h *household) {
			h.objects.Clusters["md"].Restore = &v1.Restore{Id: "x", Checkpoint: "md-c5", State: v1.RestoreState_RESTORE_STATE_DONE}
		}, ""},
		"nobody starts it for a day": {func(h *household) { h.now = h.now.Add(longestHold) }, "nobody has staged a file for it or started it for a day"},
	} {
		h := newHousehold(t, "", 1)
		h.saved("md-c4", time.Minute)
		h.volumes = map[string][]*v1.VolumeObserved{} // so that hosts report which orders they have
		h.objects.Runs["r"] = &v1.Run{Meta: &v1.Meta{Name: "r", Uid: "r-uid", Created: timestamppb.New(h.now)}, Spec: &v1.RunSpec{Cluster: "md", Command: []string{"x"}, Hold: true}, ClusterUid: "uid-md", State: v1.RunState_RUN_STATE_PENDING}
		stage := func() error {
			a := h.admission()
			a.Caller = Caller{Name: "admin", Admin: true}
			change, err := a.StageFile("r")
			h.objects = h.objects.Apply(change)
			return err
		}
		h.objects.Clusters["md"].Restore = &v1.Restore{Id: "earlier", State: v1.RestoreState_RESTORE_STATE_RESTORING}
		if err := stage(); KindOf(err) != Precondition {
			t.Errorf("a file is staged while the cluster is being restored: %v", err)
		}
		h.objects.Clusters["md"].Restore.State = v1.RestoreState_RESTORE_STATE_DONE
		if err := stage(); err != nil {
			t.Fatal(err)
		}
		c.happens(h)
		if !strings.HasPrefix(c.gone, "nobody") {
			if err := stage(); (KindOf(err) == Lost) != (c.gone != "") {
				t.Errorf("%s: one more file is staged: %v", name, err)
			}
			h.objects.Runs["r"] = proto.CloneOf(h.objects.Runs["r"])
			h.objects.Runs["r"].Spec.Hold = false
		}
		h.pass(0)
		h.pass(0)
		if r := h.objects.Runs["r"]; c.gone == "" && r.State != v1.RunState_RUN_STATE_STARTING || c.gone != "" && (r.State != v1.RunState_RUN_STATE_FAILED || r.Message != c.gone) {
			t.Errorf("%s: the run is %s: %s", name, r.State, r.Message)
		}
	}
}

// A name that somebody has chosen does not use up the numbers.
func TestARunsNumberIsFree(t *testing.T) {
	a := ready()
	for _, name := range []string{"md-run-9223372036854775807", "md-run-1073741824", "md-run-7", "md-run-x"} {
		a.Runs[name] = &v1.Run{Meta: &v1.Meta{Name: name, Owner: "bob"}, Spec: &v1.RunSpec{Cluster: "lu"}}
	}
	if _, name, err := a.CreateRun(runRequest("")); err != nil || name != "md-run-8" {
		t.Errorf("%s, %v", name, err)
	}
}

// The commands of a user's runs do not fill the store.
func TestTheCommandsOfAUsersRunsAreBounded(t *testing.T) {
	large := []string{strings.Repeat("x", maxRunSpec-100)}
	for owner, kept := range map[string]bool{"bob": true, "u1": false} {
		a := ready()
		a.Caller = Caller{Name: "ann", UID: "u1"}
		for i := range maxRunSpecs / maxRunSpec {
			name := fmt.Sprint("r", i)
			a.Runs[name] = &v1.Run{Meta: &v1.Meta{Name: name, OwnerUid: owner}, Spec: &v1.RunSpec{Cluster: "lu", Command: large}, State: v1.RunState_RUN_STATE_EXITED}
		}
		c, _, err := a.CreateRun(runRequest("", func(r *v1.CreateRunRequest) { r.Spec.Command = large }))
		if kept && err != nil {
			t.Error(err)
		} else if !kept {
			refused(t, c, err, Exhausted, "the commands and environments of user ann's runs have more than 32 MiB; remove some")
		}
	}
}

// Who asks for a run again by its name, follows it. He would take an old result for a new one if it had ended.
func TestANameIsOneRunUntilThatHasEnded(t *testing.T) {
	a := ready()
	asked := func(id string) *v1.CreateRunRequest {
		return runRequest("nightly", func(r *v1.CreateRunRequest) { r.RequestId = id })
	}
	change, _, err := a.CreateRun(asked("first"))
	if err != nil {
		t.Fatal(err)
	}
	a.Objects = a.Apply(change)
	for id, refusal := range map[string]string{"first": "", "second": "run nightly has ended already; take another name", "": ""} {
		for _, state := range []v1.RunState{v1.RunState_RUN_STATE_RUNNING, v1.RunState_RUN_STATE_EXITED} {
			a.Runs["nightly"].State = state
			change, name, err := a.CreateRun(asked(id))
			if refusal != "" && RunEnded(state) {
				refused(t, change, err, Exists, refusal)
			} else if err != nil || name != "nightly" || len(change.Ops) != 0 {
				t.Errorf("asked again with id %q, and it is %v: %v, %v", id, state, change, err)
			}
		}
	}
}

func TestAClusterHasAsManyRunsAsItMay(t *testing.T) {
	a := ready()
	for i := range maxUnended - 1 {
		name := fmt.Sprintf("md-run-%d", i+1)
		a.Runs[name] = &v1.Run{Meta: &v1.Meta{Name: name, Owner: "ann"}, Spec: &v1.RunSpec{Cluster: "md"}}
	}
	change, name, err := a.CreateRun(runRequest(""))
	if err != nil || name != "md-run-200" {
		t.Fatalf("%s, %v", name, err)
	}
	a.Objects = a.Apply(change)
	change, _, err = a.CreateRun(runRequest(""))
	refused(t, change, err, Exhausted, "cluster md has 200 runs that have not ended")
	a.Runs["md-run-7"].State = v1.RunState_RUN_STATE_EXITED
	if _, name, err = a.CreateRun(runRequest("")); err != nil || name != "md-run-201" {
		t.Errorf("%s, %v", name, err)
	}
}

func TestAUserHasAsManyRunsAsTheQuotaSays(t *testing.T) {
	a := ready()
	a.Users["ann"].Quota = &v1.Quota{Runs: 2}
	a.Runs["other-run-1"] = &v1.Run{Meta: &v1.Meta{Name: "other-run-1", Owner: "ann"}, Spec: &v1.RunSpec{Cluster: "other"}}
	a.Runs["bobs"] = &v1.Run{Meta: &v1.Meta{Name: "bobs", Owner: "bob"}, Spec: &v1.RunSpec{Cluster: "bobs"}}
	change, _, err := a.CreateRun(runRequest(""))
	if err != nil {
		t.Fatal(err)
	}
	a.Objects = a.Apply(change)
	change, _, err = a.CreateRun(runRequest(""))
	refused(t, change, err, Exhausted, "the quota of user ann is 2 runs that have not ended, and there are 2; wait for some")
	change, err = a.RemoveRun("other-run-1")
	refused(t, change, err, Precondition, "run other-run-1 has not ended; end it first")
	a.Runs["other-run-1"].State = v1.RunState_RUN_STATE_EXITED
	if _, _, err = a.CreateRun(runRequest("")); err != nil {
		t.Error(err)
	}
	change, err = a.RemoveRun("other-run-1")
	if err != nil || a.Apply(change).Runs["other-run-1"] != nil {
		t.Errorf("%v, %v", change, err)
	}
	change, err = a.RemoveRun("bobs")
	refused(t, change, err, NotFound, "there is no run")
	change, _, err = a.CreateRun(runRequest("bobs"))
	refused(t, change, err, Exists, "there is another run bobs; take another name")
}

func TestARequestForARunIsGrantedOnce(t *testing.T) {
	a := ready()
	again := func(r *v1.CreateRunRequest) { r.RequestId = "one" }
	change, name, err := a.CreateRun(runRequest("", again))
	if err != nil || len(change.Ops) != 1 || len(change.Events) != 1 || change.Events[0].Message != "created on cluster md: x y" || change.Events[0].Actor != "ann" {
		t.Fatalf("%v, %v", change, err)
	}
	a.Objects = a.Apply(change)
	if change, other, err := a.CreateRun(runRequest("", again)); err != nil || other != name || len(change.Ops) != 0 {
		t.Errorf("%v, %s, %v", change, other, err)
	}
	change, _, err = a.CreateRun(runRequest(name, func(r *v1.CreateRunRequest) { r.Spec.Ranks = 2 }))
	refused(t, change, err, Exists, "there is another run md-run-1; take another name")
	a.Guests["md-0"].Stopped = true
	change, _, err = a.CreateRun(runRequest("r"))
	refused(t, change, err, Precondition, "a run needs all guests of cluster md: guest md-0 is stopped")
}

func TestStartingAndCancellingRuns(t *testing.T) {
	a := ready()
	held, _, err := a.CreateRun(runRequest("r", func(r *v1.CreateRunRequest) { r.Spec.Hold = true }))
	if err != nil {
		t.Fatal(err)
	}
	a.Objects = a.Apply(held)
	started, err := a.StartRun("r")
	if err != nil || len(started.Ops) != 1 || started.Ops[0].Object.(*v1.Run).Spec.Hold || !a.Runs["r"].Spec.Hold {
		t.Errorf("%v, %v", started, err)
	}
	change, err := a.CancelRun("r", 10, "SIGUSR1")
	refused(t, change, err, Precondition, "run r does not run yet, so it has nothing that could take SIGUSR1")
	cancelled, err := a.CancelRun("r", 15, "SIGTERM")
	if err != nil || !cancelled.Ops[0].Object.(*v1.Run).Cancel {
		t.Errorf("%v, %v", cancelled, err)
	}
	a.Objects = a.Apply(cancelled)
	change, err = a.StartRun("r")
	refused(t, change, err, Precondition, "run r was cancelled")
	if change, err := a.CancelRun("r", 0, ""); err != nil || len(change.Ops) != 0 {
		t.Errorf("cancelled again: %v, %v", change, err)
	}
	for _, signal := range []int32{-1, 65} {
		if _, err := a.RunToSignal("r", signal); KindOf(err) != Invalid {
			t.Errorf("signal %d: %v", signal, err)
		}
	}
	a.Runs["r"].Cancel, a.Runs["r"].State = false, v1.RunState_RUN_STATE_RUNNING
	if run, err := a.RunToSignal("r", 64); run == nil || err != nil {
		t.Errorf("%v, %v", run, err)
	}
	a.Caller = Caller{Name: "bob", UID: "u2"}
	if _, err := a.RunToSignal("r", 10); KindOf(err) != NotFound {
		t.Error(err)
	}
	change, err = a.CancelRun("r", 0, "")
	refused(t, change, err, NotFound, `there is no run "r"; there is none at all`)
}
