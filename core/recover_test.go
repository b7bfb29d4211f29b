package core

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/internal/protocol"
)

const (
	keepAct     = v1.RecoveryAct_RECOVERY_ACT_KEEP
	adoptAct    = v1.RecoveryAct_RECOVERY_ACT_ADOPT
	restartAct  = v1.RecoveryAct_RECOVERY_ACT_RESTART
	holdAct     = v1.RecoveryAct_RECOVERY_ACT_HOLD
	conflictAct = v1.RecoveryAct_RECOVERY_ACT_CONFLICT
	waitAct     = v1.RecoveryAct_RECOVERY_ACT_WAIT
	leaveAct    = v1.RecoveryAct_RECOVERY_ACT_LEAVE
	endAct      = v1.RecoveryAct_RECOVERY_ACT_END

	runningThere  = v1.GuestCondition_GUEST_CONDITION_RUNNING
	goneThere     = v1.GuestCondition_GUEST_CONDITION_GONE
	sentThere     = v1.GuestCondition_GUEST_CONDITION_SENT
	sendingThere  = v1.GuestCondition_GUEST_CONDITION_SENDING
	receivedThere = v1.GuestCondition_GUEST_CONDITION_RECEIVED
	startingThere = v1.GuestCondition_GUEST_CONDITION_STARTING
)

// oldState is a state with the cluster md of two guests, on a1 at epochs 3 and 4, and the hosts a1 and b1, which are
// connected and report nothing.
type oldState struct {
	objects *Objects
	reports map[string]*v1.HostObserved
	choices RecoveryChoices
}

func newOldState() *oldState {
	w := &oldState{objects: &Objects{Hosts: map[string]*v1.Host{}, Guests: map[string]*v1.Guest{}, Clusters: map[string]*v1.Cluster{},
		Images: map[string]*v1.Image{"mpi": {Digest: "sha256:mpi"}}, Users: map[string]*v1.User{"ann": {Meta: &v1.Meta{Name: "ann", Uid: "ann-uid"}}}},
		reports: map[string]*v1.HostObserved{}}
	for _, host := range []string{"a1", "b1"} {
		w.objects.Hosts[host] = &v1.Host{Meta: &v1.Meta{Name: host}}
		w.reports[host] = &v1.HostObserved{Protocol: protocol.Version, Info: &v1.HostInfo{BootId: host + "-boot"}}
	}
	w.objects.Clusters["md"] = &v1.Cluster{Meta: &v1.Meta{Name: "md", Uid: "md-uid"}, Prefix: "10.77.0.0/24"}
	for i := range uint32(2) {
		name := fmt.Sprintf("md-%d", i)
		w.objects.Guests[name] = &v1.Guest{Meta: &v1.Meta{Name: name, Uid: name + "-uid"}, Cluster: "md", Index: i, Host: "a1", BootId: "a1-boot",
			Epoch: 3 + uint64(i), LastEpoch: 3 + uint64(i), StartedEpoch: 3, ImageDigest: "sha256:mpi"}
	}
	return w
}

// sees makes a host report a guest.
func (w *oldState) sees(host, guest string, epoch uint64, condition v1.GuestCondition, changes ...func(*v1.GuestObserved)) {
	g := &v1.GuestObserved{Uid: guest + "-uid", Name: guest, Epoch: epoch, Condition: condition, Process: condition == runningThere}
	for _, change := range changes {
		change(g)
	}
	w.reports[host].Guests = append(w.reports[host].Guests, g)
}

// newer is a guest of the unknown cluster lu.
func newer(index uint32, changes ...func(*v1.GuestFacts)) func(*v1.GuestObserved) {
	return func(g *v1.GuestObserved) {
		g.Uid = GuestUID("lu-uid", index)
		g.Facts = &v1.GuestFacts{Owner: "ann", OwnerUid: "ann-uid", Index: index, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 28}, ImageDigest: "sha256:mpi",
			Address: fmt.Sprintf("10.77.1.%d", 10+index), StartedEpoch: 1, Platform: &v1.Platform{Machine: "m", QemuVersion: "10"},
			Cluster: &v1.ClusterFacts{Name: "lu", Uid: "lu-uid", Owner: "ann", OwnerUid: "ann-uid", Prefix: "10.77.1.0/24", Mtu: 1420,
				Spec: &v1.ClusterSpec{Guests: 2, Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 28}, Image: "mpi"}}}
		for _, change := range changes {
			change(g.Facts)
		}
	}
}

// away disconnects a host.
func (w *oldState) away(host string) { delete(w.reports, host) }

func (w *oldState) plan() RecoveryPlan { return Recovery(w.objects, w.reports, w.choices) }

// planRow is the only row about a guest with this act.
func planRow(t *testing.T, p RecoveryPlan, guest string, act v1.RecoveryAct) RecoveredGuest {
	t.Helper()
	for _, g := range p.Guests {
		if g.Guest == guest && g.Act == act {
			return g
		}
	}
	t.Fatalf("no row about %s: %v; there are %v, obstacles %q", guest, act, p.Guests, p.Obstacles)
	return RecoveredGuest{}
}

func TestWhatAgreesIsKeptAndEpochsAreRaised(t *testing.T) {
	w := newOldState()
	w.sees("a1", "md-0", 3, runningThere)
	w.sees("a1", "md-1", 4, runningThere)
	w.reports["b1"].Epochs = []*v1.KnownEpoch{{Uid: "md-1-uid", Epoch: 9}, {Uid: "md-0-uid", Epoch: 2}, {Uid: "md-0-uid", Epoch: math.MaxUint64}}
	p := w.plan()
	if len(p.Obstacles) > 0 || len(p.Hosts) > 0 || len(p.Guests) != 2 {
		t.Fatalf("%+v", p)
	}
	if g := planRow(t, p, "md-0", keepAct).Object; g.LastEpoch != 3+EpochGap || g.Epoch != 3 || g.Host != "a1" {
		t.Error(g)
	}
	if g := planRow(t, p, "md-1", keepAct).Object; g.LastEpoch != 9+EpochGap { // b1 has a record of an epoch that the state never gave
		t.Error(g)
	}
}

func TestAGuestIsAdoptedWhereItRuns(t *testing.T) {
	w := newOldState()
	w.objects.Guests["md-0"].Stopped = true
	w.sees("b1", "md-0", 7, runningThere, func(g *v1.GuestObserved) {
		g.Facts = &v1.GuestFacts{StartedEpoch: 6, Platform: &v1.Platform{Machine: "new"}}
	})
	w.sees("a1", "md-0", 6, sentThere)
	w.sees("a1", "md-1", 5, runningThere)
	p := w.plan()
	g := planRow(t, p, "md-0", adoptAct).Object
	if g.Host != "b1" || g.Epoch != 7 || g.BootId != "b1-boot" || g.StartedEpoch != 6 || g.Platform.GetMachine() != "new" || g.LastEpoch != 7+EpochGap || g.Stopped {
		t.Error(g)
	}
	if g := planRow(t, p, "md-1", adoptAct).Object; g.Epoch != 5 || g.StartedEpoch != 5 {
		t.Error(g)
	}
	if len(p.Obstacles) > 0 {
		t.Error(p.Obstacles)
	}
}

func TestACopyOfAnEarlierEpochThanTheStateKnowsIsEnded(t *testing.T) {
	w := newOldState()
	w.sees("b1", "md-0", 2, runningThere)
	w.away("a1")
	p := w.plan()
	planRow(t, p, "md-0", endAct)
	if g := planRow(t, p, "md-0", keepAct).Object; g.Host != "a1" || g.Epoch != 3 {
		t.Error(g)
	}
}

func TestNothingIsStartedThatAHostMayRunWhichIsAway(t *testing.T) {
	w := newOldState()
	w.objects.Hosts["c1"] = &v1.Host{Meta: &v1.Meta{Name: "c1"}}
	w.objects.Guests["md-1"].Host, w.objects.Guests["md-1"].BootId = "c1", "c1-boot"
	p := w.plan()
	if g := planRow(t, p, "md-0", holdAct).Object; g.Host != "" || !strings.Contains(g.Failure, "c1") || !strings.Contains(g.Failure, "guest start md-0") {
		t.Error(g)
	}
	if g := planRow(t, p, "md-1", keepAct).Object; g.Host != "c1" {
		t.Error(g)
	}
	if len(p.Hosts) != 1 || p.Hosts[0].Host != "c1" || p.Hosts[0].Vouched || len(p.Obstacles) > 0 {
		t.Error(p.Hosts, p.Obstacles)
	}
	w.choices.Without = []string{"c1"}
	p = w.plan()
	for _, name := range []string{"md-0", "md-1"} {
		if g := planRow(t, p, name, restartAct).Object; g.Host != "" || g.Failure != "" || g.LastEpoch <= EpochGap {
			t.Error(g)
		}
	}
	if !p.Hosts[0].Vouched {
		t.Error(p.Hosts)
	}
	w.choices.Without = []string{"a1", "x9"}
	if p = w.plan(); len(p.Obstacles) != 2 {
		t.Error(p.Obstacles)
	}
}

func TestStoppedAndGivenUpGuestsStaySo(t *testing.T) {
	w := newOldState()
	w.objects.Guests["md-0"].Stopped = true
	w.objects.Guests["md-1"].Host, w.objects.Guests["md-1"].Failure = "", "given up"
	p := w.plan()
	if g := planRow(t, p, "md-0", keepAct).Object; g.Host != "" || !g.Stopped {
		t.Error(g)
	}
	if g := planRow(t, p, "md-1", keepAct).Object; g.Failure != "given up" {
		t.Error(g)
	}
}

func TestTwoCopiesAreForAPersonToDecide(t *testing.T) {
	w := newOldState()
	w.sees("a1", "md-0", 3, runningThere)
	w.sees("b1", "md-0", 5, runningThere)
	w.sees("a1", "md-1", 4, runningThere)
	p := w.plan()
	planRow(t, p, "md-0", conflictAct)
	if len(p.Obstacles) != 1 || !strings.Contains(p.Obstacles[0], "--keep md-0=HOST") {
		t.Error(p.Obstacles)
	}
	w.choices.Keep = map[string]string{"md-0": "c9"}
	if p = w.plan(); len(p.Obstacles) != 2 {
		t.Error(p.Obstacles)
	}
	for _, by := range []string{"md-0", "md-0-uid"} {
		w.choices.Keep = map[string]string{by: "b1"}
		p = w.plan()
		if g := planRow(t, p, "md-0", adoptAct).Object; g.Host != "b1" || len(p.Obstacles) > 0 {
			t.Error(g, p.Obstacles)
		}
		if planRow(t, p, "md-0", endAct).Host != "a1" {
			t.Error("the other copy goes on")
		}
	}
	w.choices.Keep = map[string]string{"md-9": "b1"}
	if p = w.plan(); !strings.Contains(strings.Join(p.Obstacles, "\n"), "md-9") {
		t.Error(p.Obstacles)
	}
}

func TestMovesThatWereUnderWay(t *testing.T) {
	for name, c := range map[string]struct {
		source, target v1.GuestCondition
		process, ranOn bool
		moved          bool // the source's report names the move
		away           string
		act            v1.RecoveryAct
		host           string
		obstacles      int
	}{
		"it is being sent":                  {source: sendingThere, target: v1.GuestCondition_GUEST_CONDITION_RECEIVING, act: waitAct, host: "a1", obstacles: 1},
		"it was sent":                       {source: sentThere, target: receivedThere, act: adoptAct, host: "b1"},
		"it was sent and its process ends":  {source: sentThere, target: receivedThere, process: true, act: waitAct, host: "a1", obstacles: 1},
		"the transfer failed":               {source: v1.GuestCondition_GUEST_CONDITION_SEND_FAILED, target: receivedThere, act: keepAct, host: "a1"},
		"room was made":                     {source: runningThere, target: startingThere, act: keepAct, host: "a1"},
		"the source is away":                {target: receivedThere, away: "a1", act: waitAct, host: "b1", obstacles: 1},
		"the target is away":                {source: sentThere, away: "b1", act: holdAct},
		"the source went on and ended":      {source: goneThere, moved: true, ranOn: true, target: receivedThere, act: restartAct},
		"it ended before this move":         {source: goneThere, target: receivedThere, act: restartAct},
		"it ended while all of it was sent": {source: goneThere, moved: true, target: receivedThere, act: adoptAct, host: "b1"},
		"the source cannot tell":            {target: receivedThere, act: waitAct, host: "a1", obstacles: 1},
		"the end is doubted":                {source: goneThere, target: v1.GuestCondition_GUEST_CONDITION_RECEIVING, process: true, act: waitAct, host: "a1", obstacles: 1},
	} {
		w := newOldState()
		w.objects.Migrations = map[string]*v1.Migration{"m": {Meta: &v1.Meta{Name: "m"}, State: v1.MigrationState_MIGRATION_STATE_TRANSFERRING},
			"old": {Meta: &v1.Meta{Name: "old"}, State: v1.MigrationState_MIGRATION_STATE_DONE}}
		w.sees("a1", "md-1", 4, runningThere)
		w.sees("a1", "md-0", 3, c.source, func(g *v1.GuestObserved) {
			g.Process, g.RanOn = g.Process || c.process, c.ranOn
			if c.moved {
				g.MigrationId = "m-uid"
			}
		})
		w.sees("b1", "md-0", 4, c.target, func(g *v1.GuestObserved) { g.MigrationId = "m-uid" })
		if c.away != "" {
			w.away(c.away)
		}
		p := w.plan()
		g := planRow(t, p, "md-0", c.act)
		if g.Host != c.host || len(p.Obstacles) != c.obstacles {
			t.Errorf("%s: %v, obstacles %q", name, g, p.Obstacles)
		}
		if len(p.Migrations) != 1 || p.Migrations[0].State != v1.MigrationState_MIGRATION_STATE_CANCELLED {
			t.Errorf("%s: moves %v", name, p.Migrations)
		}
	}
}

func TestAClusterThatTheStateNeverKnewIsMadeAgain(t *testing.T) {
	w := newOldState()
	w.sees("a1", "md-0", 3, runningThere)
	w.sees("a1", "md-1", 4, runningThere)
	w.sees("b1", "lu-0", 2, runningThere, newer(0))
	p := w.plan()
	if len(p.Clusters) != 1 || len(p.Obstacles) > 0 {
		t.Fatalf("%+v", p)
	}
	c := p.Clusters[0]
	if c.Object.Meta.Uid != "lu-uid" || c.Object.Meta.OwnerUid != "ann-uid" || c.Object.Prefix != "10.77.1.0/24" || c.Object.Mtu != 1420 ||
		c.Object.ImageDigest != "sha256:mpi" || len(c.Object.Platforms) != 1 || c.Object.Platforms[0].QemuVersion != "" || len(c.Notes) > 0 {
		t.Error(c)
	}
	g := planRow(t, p, "lu-0", adoptAct).Object
	if g.Meta.Uid != GuestUID("lu-uid", 0) || g.Cluster != "lu" || g.Host != "b1" || g.Epoch != 2 || g.StartedEpoch != 1 || g.Meta.Owner != "ann" ||
		g.LastEpoch != 2+EpochGap || g.Address != "10.77.1.10" || g.Shape.Vcpus != 1 {
		t.Error(g)
	}
	// No host runs the other guest of the cluster.
	other := planRow(t, p, "lu-1", restartAct).Object
	if other.Meta.Uid != GuestUID("lu-uid", 1) || other.Address != "10.77.1.11" || other.Index != 1 || other.Host != "" || other.LastEpoch != EpochGap {
		t.Error(other)
	}
	w.objects.Hosts["c1"] = &v1.Host{Meta: &v1.Meta{Name: "c1"}}
	if other = planRow(t, w.plan(), "lu-1", holdAct).Object; other.Failure == "" {
		t.Error(other)
	}
}

func TestWhatARecoveredClusterLacksIsSaid(t *testing.T) {
	w := newOldState()
	w.objects.Images, w.objects.Users = nil, nil
	w.sees("b1", "lu-0", 2, runningThere, newer(0))
	p := w.plan()
	notes := strings.Join(p.Clusters[0].Notes, "\n")
	if len(p.Clusters[0].Notes) != 2 || !strings.Contains(notes, "sha256:mpi") || !strings.Contains(notes, "user ann") {
		t.Error(notes)
	}
	if g := planRow(t, p, "lu-0", adoptAct).Object; g.Failure != "" || g.Meta.Owner != "ann" || g.Meta.OwnerUid != "ann-uid" {
		t.Error(g)
	}
	for _, name := range []string{"lu-1", "md-0"} { // they cannot be started without their image
		if g := planRow(t, p, name, restartAct); !strings.Contains(g.Object.Failure, "build the image") || !strings.Contains(g.Reason, "built again") {
			t.Error(g)
		}
	}
	w.objects.Users = map[string]*v1.User{"ann": {Meta: &v1.Meta{Name: "ann", Uid: "another"}}}
	if notes := w.plan().Clusters[0].Notes; !strings.Contains(strings.Join(notes, "\n"), "another user ann") {
		t.Error(notes)
	}
}

func TestAGuestOfWhichTooLittleIsKnownIsLeftAlone(t *testing.T) {
	spoil := func(change func(*v1.GuestFacts)) func(*v1.GuestObserved) { return newer(0, change) }
	for name, c := range map[string]struct {
		change func(*v1.GuestObserved)
		says   string
	}{
		"no facts":             {func(*v1.GuestObserved) {}, "too few facts"},
		"a bad prefix":         {spoil(func(f *v1.GuestFacts) { f.Cluster.Prefix = "10.77.1.0/8" }), "prefix"},
		"an IPv6 prefix":       {spoil(func(f *v1.GuestFacts) { f.Cluster.Prefix = "fd00::/24" }), "prefix"},
		"another's prefix":     {spoil(func(f *v1.GuestFacts) { f.Cluster.Prefix = "10.77.0.0/24" }), "cluster md has its addresses"},
		"a bad name":           {spoil(func(f *v1.GuestFacts) { f.Cluster.Name = "../x" }), "name"},
		"another's name":       {spoil(func(f *v1.GuestFacts) { f.Cluster.Name = "md" }), "another cluster md"},
		"too many guests":      {spoil(func(f *v1.GuestFacts) { f.Cluster.Spec.Guests = math.MaxUint32 }), "number of guests"},
		"no specification":     {spoil(func(f *v1.GuestFacts) { f.Cluster.Spec = nil }), "number of guests"},
		"an index beyond":      {spoil(func(f *v1.GuestFacts) { f.Index = 9 }), "name is not one"},
		"an address beyond":    {spoil(func(f *v1.GuestFacts) { f.Address = "10.99.1.10" }), "address is not one"},
		"no address":           {spoil(func(f *v1.GuestFacts) { f.Address = "" }), "address is not one"},
		"no size":              {spoil(func(f *v1.GuestFacts) { f.Shape = nil }), "size"},
		"a cluster without it": {spoil(func(f *v1.GuestFacts) { f.Cluster.Uid = "md-uid" }), "no such guest"},
	} {
		w := newOldState()
		w.sees("b1", "lu-0", 2, runningThere, c.change)
		p := w.plan()
		g := planRow(t, p, "lu-0", leaveAct)
		if !strings.Contains(g.Reason, c.says) || !strings.Contains(g.Reason, "left alone") || g.Object != nil || len(p.Clusters) > 0 {
			t.Errorf("%s: %v, clusters %v", name, g, p.Clusters)
		}
	}
}

func TestHostsThatDisagreeAboutAClusterMakeNone(t *testing.T) {
	w := newOldState()
	w.sees("a1", "lu-0", 2, runningThere, newer(0))
	w.sees("b1", "lu-1", 2, runningThere, newer(1, func(f *v1.GuestFacts) { f.Cluster.Owner = "mallory" }))
	p := w.plan()
	if len(p.Clusters) > 0 || !strings.Contains(planRow(t, p, "lu-0", leaveAct).Reason, "do not agree") {
		t.Errorf("%+v", p)
	}
}

func TestOneGuestIsNotTakenUpTwice(t *testing.T) {
	w := newOldState()
	w.sees("a1", "lu-0", 2, runningThere, newer(0))
	w.sees("b1", "lu-0", 2, runningThere, newer(0), func(g *v1.GuestObserved) { g.Uid = "forged-uid" })
	p := w.plan()
	if got := slices.DeleteFunc(slices.Clone(p.Guests), func(g RecoveredGuest) bool { return g.Guest != "lu-0" || g.Object == nil }); len(got) != 1 {
		t.Errorf("%v", got)
	}
	planRow(t, p, "lu-0", leaveAct)
}

func TestAReportThatNoAgentMakesIsLeftOutOfAccount(t *testing.T) {
	w := newOldState()
	w.sees("a1", "md-1", 4, runningThere)
	w.sees("a1", "md-1", 9, runningThere) // twice in one report
	w.sees("a1", "md-0", math.MaxUint64, runningThere)
	w.reports["a1"].Guests = append(w.reports["a1"].Guests, &v1.GuestObserved{Condition: runningThere, Epoch: 1})
	p := w.plan()
	if g := planRow(t, p, "md-1", keepAct).Object; g.LastEpoch != 4+EpochGap {
		t.Error(g)
	}
	if g := planRow(t, p, "md-0", restartAct).Object; g.LastEpoch != 3+EpochGap {
		t.Error(g)
	}
	if len(p.Obstacles) != 2 || !strings.Contains(p.Obstacles[0], "md-0 on a1") || !strings.Contains(p.Obstacles[1], "md-1 on a1") {
		t.Error(p.Obstacles)
	}
	planRow(t, p, `""`, leaveAct)
	w.sees("b1", "lu\x1b[2J", 2, runningThere, newer(0))
	planRow(t, w.plan(), `"lu\x1b[2J"`, leaveAct) // the quoted name does no harm to a terminal
}

func TestACopyWithoutARecordIsEnded(t *testing.T) {
	w := newOldState()
	w.sees("b1", "md-0", 0, runningThere)
	p := w.plan()
	if planRow(t, p, "md-0", endAct).Host != "b1" {
		t.Error(p.Guests)
	}
	if g := planRow(t, p, "md-0", restartAct); len(p.Obstacles) > 0 || !strings.Contains(g.Reason, "waits for the end of its copy on b1") {
		t.Error(g, p.Obstacles)
	}
}

func TestAPlanIsTheSameEachTime(t *testing.T) {
	w := newOldState()
	w.sees("a1", "lu-0", 2, runningThere, newer(0))
	w.sees("b1", "lu-1", 2, runningThere, newer(1))
	w.sees("b1", "md-0", 5, runningThere)
	first := w.plan()
	for range 20 {
		p := w.plan()
		if len(p.Guests) != len(first.Guests) {
			t.Fatal(p)
		}
		for i := range p.Guests {
			if !proto.Equal(p.Guests[i].GuestRecovery, first.Guests[i].GuestRecovery) || !proto.Equal(p.Guests[i].Object, first.Guests[i].Object) {
				t.Fatal(p.Guests[i], first.Guests[i])
			}
		}
	}
}

// An agent of an earlier version does not report that a guest ran on after a failed move.
func TestAReceivedCopyIsNotAdoptedOnTheWordOfAnOlderAgent(t *testing.T) {
	w := newOldState()
	w.sees("a1", "md-1", 4, runningThere)
	w.reports["a1"].Protocol = protocol.Changes - 1
	w.sees("a1", "md-0", 3, goneThere, func(g *v1.GuestObserved) { g.MigrationId = "m-uid" })
	w.sees("b1", "md-0", 4, receivedThere, func(g *v1.GuestObserved) { g.MigrationId, g.Process = "m-uid", true })
	planRow(t, w.plan(), "md-0", restartAct)
}

func TestARecordThatCannotBeReadOfAGuestThatIsNotKnownStopsNothing(t *testing.T) {
	w := newOldState()
	w.sees("a1", "md-0", 3, runningThere)
	w.sees("a1", "md-1", 4, runningThere)
	w.reports["b1"].Guests = append(w.reports["b1"].Guests, &v1.GuestObserved{Uid: "0123456789ab", Message: "it cannot be read now"})
	if p := w.plan(); len(p.Obstacles) > 0 {
		t.Error(p.Obstacles)
	}
}

// resized sets the number of guests of a resize in facts.
func resized(guests uint32, resizes uint64) func(*v1.GuestFacts) {
	return func(f *v1.GuestFacts) { f.Cluster.Spec.Guests, f.Cluster.Resizes = guests, resizes }
}

func TestAResizedClusterIsMadeAgainWithItsLastSize(t *testing.T) {
	w := newOldState()
	w.sees("a1", "md-0", 3, runningThere)
	w.sees("a1", "md-1", 4, runningThere)
	w.sees("a1", "lu-0", 2, runningThere, newer(0, resized(2, 0))) // its host was away during the resizes
	w.sees("b1", "lu-1", 2, runningThere, newer(1, resized(3, 2)))
	w.sees("b1", "lu-3", 2, runningThere, newer(3, resized(4, 1))) // it was to be removed
	p := w.plan()
	if len(p.Obstacles) > 0 || len(p.Clusters) != 1 || p.Clusters[0].Object.Spec.Guests != 3 || p.Clusters[0].Object.Resizes != 2 || p.Clusters[0].Known() {
		t.Fatalf("%+v", p)
	}
	planRow(t, p, "lu-0", adoptAct)
	planRow(t, p, "lu-1", adoptAct)
	planRow(t, p, "lu-2", restartAct)
	planRow(t, p, "lu-3", leaveAct)
}

func TestAClusterThatHasGrownSinceGetsItsGuests(t *testing.T) {
	w := newOldState()
	c := w.objects.Clusters["md"]
	c.ImageDigest, c.Spec, c.Meta.Revision = "sha256:mpi", &v1.ClusterSpec{Guests: 2, Image: "mpi"}, 5
	for _, g := range w.objects.Guests {
		g.Address = fmt.Sprintf("10.77.0.%d", 10+g.Index)
	}
	grown := newer(2, func(f *v1.GuestFacts) {
		f.Address = "10.77.0.12"
		f.Cluster.Name, f.Cluster.Uid, f.Cluster.Prefix, f.Cluster.Spec.Guests, f.Cluster.Resizes = "md", "md-uid", "10.77.0.0/24", 4, 1
	})
	w.sees("a1", "md-0", 3, runningThere)
	w.sees("a1", "md-1", 4, runningThere)
	w.sees("b1", "md-2", 2, runningThere, grown)
	p := w.plan()
	if len(p.Obstacles) > 0 || len(p.Clusters) != 1 || p.Clusters[0].Object.Spec.Guests != 4 || !p.Clusters[0].Known() {
		t.Fatalf("%+v", p)
	}
	planRow(t, p, "md-0", keepAct)
	if g := planRow(t, p, "md-2", adoptAct).Object; g.Host != "b1" || g.Epoch != 2 || g.Cluster != "md" {
		t.Error(g)
	}
	if g := planRow(t, p, "md-3", restartAct).Object; g.Address != "10.77.0.13" || g.Index != 3 {
		t.Error(g)
	}
}

func TestAGuestThatWasBeingRemovedIsNotStarted(t *testing.T) {
	w := newOldState()
	w.objects.Guests["md-1"].Meta.Deleting = timestamppb.Now()
	w.sees("a1", "md-0", 3, runningThere)
	if g := planRow(t, w.plan(), "md-1", keepAct).Object; g.Host != "" {
		t.Error(g)
	}
}

func TestARecoveryDoesNotEndAClusterThatWasBeingRestoredWhenTheCopyWasMade(t *testing.T) {
	for name, condition := range map[string]v1.GuestCondition{"its guests run": v1.GuestCondition_GUEST_CONDITION_RUNNING, "it is suspended": 0,
		"a guest waits for its file": v1.GuestCondition_GUEST_CONDITION_STARTING} {
		running := condition == v1.GuestCondition_GUEST_CONDITION_RUNNING
		o := NoObjects()
		o.Hosts["a1"] = &v1.Host{Meta: &v1.Meta{Name: "a1", Uid: "a1"}, Info: &v1.HostInfo{BootId: "boot"}}
		o.Clusters["md"] = &v1.Cluster{Meta: &v1.Meta{Name: "md", Uid: "md", Revision: 5}, Spec: &v1.ClusterSpec{Guests: 1}, Prefix: "10.77.1.0/24",
			Restore: &v1.Restore{Checkpoint: "md-c1", State: v1.RestoreState_RESTORE_STATE_ENDING}}
		o.Guests["md-0"] = &v1.Guest{Meta: &v1.Meta{Name: "md-0", Uid: "md-0", Revision: 6}, Cluster: "md", Address: "10.77.1.10", LastEpoch: 3}
		report := &v1.HostObserved{Info: o.Hosts["a1"].Info}
		if condition != 0 {
			report.Guests = []*v1.GuestObserved{{Uid: "md-0", Name: "md-0", Epoch: 9, BootId: "boot", Process: true, Condition: condition}}
		}
		plan := Recovery(o, map[string]*v1.HostObserved{"a1": report}, RecoveryChoices{})
		ended := len(plan.Clusters) == 1 && plan.Clusters[0].Known() && plan.Clusters[0].Object.Restore.State == v1.RestoreState_RESTORE_STATE_FAILED
		if ended != running || !running && len(plan.Clusters) > 0 {
			t.Errorf("%s: clusters %v", name, plan.Clusters)
		}
		if o.Clusters["md"].Restore.State != v1.RestoreState_RESTORE_STATE_ENDING {
			t.Errorf("%s: the state was altered", name)
		}
	}
}
