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
	"watari/policy"
)

const (
	copying     = v1.VolumeMoveState_VOLUME_MOVE_STATE_COPYING
	handingOver = v1.VolumeMoveState_VOLUME_MOVE_STATE_HANDING_OVER
	moveDone    = v1.VolumeMoveState_VOLUME_MOVE_STATE_DONE
	moveFailed  = v1.VolumeMoveState_VOLUME_MOVE_STATE_FAILED
	moveEnded   = v1.VolumeMoveState_VOLUME_MOVE_STATE_CANCELLED
)

func (h *household) data() *v1.Volume { return h.objects.Volumes["data"] }

// inMove returns a household whose cluster md on a1 uses volume data, which moves from a2 to b1. a2 has a complete copy on b1
// if ready.
func inMove(t *testing.T, ready bool) *household {
	h := inUse(t)
	h.ask(func(a *Admission) (Change, error) {
		return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Host: "b1"})
	})
	h.pass(time.Second)
	h.copies = map[string][]*v1.VolumeCopyObserved{"b1": {{Uid: "uid-data", Move: h.data().Move.Id, Copy: "copy", Ready: true}}}
	if ready {
		h.pass(time.Second)
		h.sends(true, false)
	}
	return h
}

// sends makes a2 report the copy that it sends.
func (h *household) sends(ready, handsOver bool) {
	o := proto.CloneOf(h.volumes["a2"][0])
	o.Ready, o.Sending = !handsOver, &v1.VolumeSending{Move: h.data().Move.Id, Copy: "copy", Ready: ready, HandsOver: handsOver}
	h.volumes["a2"] = []*v1.VolumeObserved{o}
}

// givesUp makes a2 report that it has given the volume up.
func (h *household) givesUp() {
	o := proto.CloneOf(h.volumes["a2"][0])
	o.Ready, o.Sending = false, nil
	o.GivenUp = &v1.VolumeGivenUp{Move: h.data().Move.Id, Copy: "copy", Target: "b1", TargetUid: "uid-b1", Restored: []string{"r"}}
	h.volumes["a2"] = []*v1.VolumeObserved{o}
}

func (h *household) expectMove(state v1.VolumeMoveState, host, message string) {
	h.t.Helper()
	if v := h.data(); v.Move.GetState() != state || v.Host != host || !strings.Contains(v.Move.Message, message) {
		h.t.Fatalf("the volume is on %s, and its move is %v", v.Host, v.Move)
	}
}

func TestAVolumeMovesWhileAGuestUsesIt(t *testing.T) {
	h := inUse(t)
	ask := func(a *Admission) (Change, error) {
		return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Host: "b1"})
	}
	h.ask(ask)
	id := h.data().Move.Id
	h.ask(ask)
	orders := h.pass(time.Second)
	h.expectMove(copying, "a2", "waits for host b1")
	if h.data().Move.Id != id {
		t.Error("a repeated request begins another move")
	}
	if w := h.volumeOrder(orders, "b1"); w.GetReceive().GetMove() != id || w.Receive.Host.Name != "a2" || w.Facts.Seal != nil || len(w.Readers) > 0 || w.Make {
		t.Errorf("b1 is ordered %v", w)
	}
	if w := h.volumeOrder(orders, "a2"); w.GetSend() != nil {
		t.Errorf("before there is a copy a2 is ordered %v", w)
	}
	h.copies = map[string][]*v1.VolumeCopyObserved{"b1": {{Uid: "uid-data", Move: id, Copy: "copy", Ready: true}}}
	if w := h.volumeOrder(h.pass(time.Second), "a2"); w.GetSend().GetCopy() != "copy" || w.Send.Host.Name != "b1" || w.Send.HandOver || w.Readers[0].Name != "a1" {
		t.Errorf("a2 is ordered %v", w)
	}
	h.sends(false, false)
	h.pass(time.Second)
	h.expectMove(copying, "a2", "")
	h.sends(true, false)
	orders = h.pass(time.Second)
	h.expectMove(handingOver, "a2", "completes the copy")
	if w := h.volumeOrder(orders, "a2"); !w.GetSend().GetHandOver() || w.Adopt != nil {
		t.Errorf("a2 is ordered %v", w)
	}
	h.sends(true, true)
	h.pass(time.Second)
	h.expectMove(handingOver, "a2", "")
	h.givesUp()
	orders = h.pass(time.Second)
	h.expectMove(moveDone, "b1", "")
	if v := h.data(); v.Generation == 0 || v.Generation != v.Move.Generation || v.State != v1.VolumeState_VOLUME_STATE_READY || v.Cluster != "md" {
		t.Errorf("it is %v", v)
	}
	if w := h.volumeOrder(orders, "b1"); w.GetAdopt().GetCopy() != "copy" || !slices.Equal(w.Adopt.Restored, []string{"r"}) || w.Readers[0].Name != "a1" || w.Receive != nil || w.Drop != "" || w.Facts.Generation != h.data().Generation {
		t.Errorf("b1 is ordered %v", w)
	}
	if w := h.volumeOrder(orders, "a2"); w != nil {
		t.Errorf("before b1 serves it a2 is ordered %v", w)
	}
	for _, g := range orders["a1"].Guests {
		if g.Volume != nil && g.Volume.Host.Name != "b1" {
			t.Errorf("guest %s uses the volume on %s", g.Name, g.Volume.Host.Name)
		}
	}
	h.copies = nil
	h.has("b1", h.data(), 0)
	h.volumes["b1"][0].Facts.Generation = h.data().Generation
	if w := h.volumeOrder(h.pass(time.Second), "a2"); !w.GetDiscard() {
		t.Errorf("when b1 serves it a2 is ordered %v", w)
	}
}

// A move that is cancelled or fails leaves the volume on its host. It ends only when the host has reported that it has not
// given the disk up.
func TestAVolumeStaysIfItsMoveFails(t *testing.T) {
	for name, c := range map[string]struct {
		fail  func(h *household)
		state v1.VolumeMoveState
		why   string
	}{
		"cancelled": {func(h *household) {
			for range 2 {
				h.ask(func(a *Admission) (Change, error) {
					return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Cancel: true})
				})
			}
		}, moveEnded, "it was cancelled"},
		"its target is removed": {func(h *household) { h.objects = h.objects.Apply(Change{Ops: []Op{{Delete, h.objects.Hosts["b1"]}}}) }, moveFailed, "host b1 was removed"},
		"its target is drained": {func(h *household) { h.change("b1", func(b1 *v1.Host) { b1.Draining = true }) }, moveFailed, "host b1 is being drained"},
		"its target is cut off": {func(h *household) { h.quarantine("b1", 0, false) }, moveFailed, "host b1 is"},
		"its target has no room": {func(h *household) {
			h.copies["b1"] = []*v1.VolumeCopyObserved{{Uid: "uid-data", Move: h.data().Move.Id, Copy: "copy", Ready: true, Failed: true, Message: "full"}}
		}, moveFailed, "host b1 cannot take it: full"},
	} {
		t.Run(name, func(t *testing.T) {
			h := inMove(t, true)
			h.pass(time.Second)
			h.expectMove(handingOver, "a2", "")
			h.sends(true, true)
			c.fail(h)
			orders := h.pass(time.Second)
			h.expectMove(copying, "a2", "waits for host a2 to keep the volume")
			if w := h.volumeOrder(orders, "a2"); w.GetSend().GetHandOver() {
				t.Errorf("a2 is ordered %v", w)
			}
			h.away, h.out = map[string]bool{"a2": true}, time.Second
			h.sends(true, false)
			h.pass(time.Second)
			h.expectMove(copying, "a2", "waits for host a2 to keep the volume")
			h.away = nil
			orders = h.pass(time.Second)
			h.expectMove(c.state, "a2", c.why)
			if w := h.volumeOrder(orders, "a2"); w.GetSend() != nil || w.TakeBack != "" || len(w.Readers) != 1 {
				t.Errorf("a2 is ordered %v", w)
			}
			if w := h.volumeOrder(orders, "b1"); h.objects.Hosts["b1"] != nil && (w.GetDrop() != "copy" || w.Facts != nil) {
				t.Errorf("b1 is ordered %v", w)
			}
		})
	}
}

// The source may have given the disk up in spite of a cancellation. Then the target has the volume.
func TestAVolumeThatWasGivenUpMoves(t *testing.T) {
	h := inMove(t, true)
	h.pass(time.Second)
	h.sends(true, true)
	h.ask(func(a *Admission) (Change, error) {
		return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Cancel: true})
	})
	h.pass(time.Second)
	h.givesUp()
	h.away, h.out = map[string]bool{"b1": true, "a2": true}, time.Second
	h.pass(time.Second)
	h.expectMove(moveDone, "b1", "")
}

// A disk that was given up in vain is served again when the target has no copy and no disk of the volume.
// The volume had moved and was deleted before an older copy of the store was put back, which knows the move as under way.
func TestTheMoveOfALostVolumeEnds(t *testing.T) {
	h := inMove(t, false)
	h.volumes["a2"] = nil
	h.pass(time.Second)
	h.pass(time.Second)
	if v := h.data(); v.State != v1.VolumeState_VOLUME_STATE_LOST {
		t.Errorf("the volume is %v", v)
	}
	h.expectMove(moveFailed, "a2", "host a2 has no disk of it")
}

// The move had ended when an older copy of the store was put back that knows it as under way. The target's disk has the generation that the
// move gave it, and keeps it: with a later one, the target would look for the copy again.
func TestAMoveThatHadEndedEndsAgain(t *testing.T) {
	for name, starts := range map[string]uint64{"": 0, "guests have been started since": 2} {
		t.Run(name, func(t *testing.T) { endsAgain(t, starts) })
	}
}

func endsAgain(t *testing.T, starts uint64) {
	h := inMove(t, true)
	h.givesUp()
	h.copies = nil
	h.has("b1", h.data(), 0)
	h.volumes["b1"][0].Facts.Generation, h.volumes["b1"][0].Ready = h.data().Move.Generation+starts, true
	config := h.core.Config
	config.Term = 2
	h.core = New(config) // no host has made a report under its orders yet
	for range 3 {
		h.pass(time.Second)
	}
	h.expectMove(moveDone, "b1", "")
	if v := h.data(); v.Generation != v.Move.Generation || v.DiskGeneration != v.Generation {
		t.Errorf("it is %v", v)
	}
}

func TestAVolumeIsTakenBack(t *testing.T) {
	takenBack := func(h *household, want bool) {
		h.t.Helper()
		orders := h.pass(time.Second)
		if w := h.volumeOrder(orders, "a2"); h.data().Host != "a2" || (w.GetTakeBack() != "") != want {
			h.t.Errorf("the volume is on %s, and a2 is ordered %v", h.data().Host, w)
		}
	}
	removed := func(h *household) {
		var c Change
		c.write(Create, &v1.RemovedHost{Meta: &v1.Meta{Name: "uid-b1"}, Host: "b1"})
		c.write(Delete, h.objects.Hosts["b1"])
		h.objects = h.objects.Apply(c)
	}
	forgotten := func(h *household) { // an older copy of the store was put back
		v := proto.CloneOf(h.data())
		v.Move = nil
		h.objects = h.objects.Apply(Change{Ops: []Op{{Update, v}}})
	}
	t.Run("its target was removed", func(t *testing.T) {
		h := inMove(t, true)
		h.pass(time.Second)
		h.givesUp()
		removed(h)
		before := h.data().Generation
		takenBack(h, true)
		h.expectMove(moveFailed, "a2", "host b1 was removed")
		if h.data().Generation <= max(before, h.data().Move.Generation) {
			t.Errorf("if b1 comes back, its disk is later than %v", h.data())
		}
	})
	t.Run("another host has its target's name", func(t *testing.T) {
		h := inMove(t, true)
		h.pass(time.Second)
		h.givesUp()
		removed(h)
		b1 := &v1.Host{Meta: &v1.Meta{Name: "b1", Uid: "uid-of-a-later-b1"}, Info: &v1.HostInfo{BootId: "boot-b1", Site: "b", Cores: 8, MemoryBytes: 8 << 30}}
		h.objects, h.copies = h.objects.Apply(Change{Ops: []Op{{Create, b1}}}), nil
		takenBack(h, true)
	})
	t.Run("the store has forgotten the move", func(t *testing.T) {
		h := inMove(t, true)
		h.givesUp()
		forgotten(h)
		takenBack(h, false)
		if w := h.volumeOrder(h.pass(0), "b1"); w.GetDrop() != "copy" {
			t.Errorf("b1 is ordered %v", w)
		}
		h.copies = nil
		h.away, h.out = map[string]bool{"b1": true}, time.Minute
		takenBack(h, false)
		h.away = map[string]bool{"a1": true} // it may have the volume by now
		takenBack(h, false)
		h.away = nil
		takenBack(h, true)
	})
	t.Run("the store has forgotten the volume", func(t *testing.T) {
		h := inMove(t, true)
		h.givesUp()
		forgotten(h)
		h.copies = nil
		v := proto.CloneOf(h.data()) // as it is known again by a2's report
		v.State, v.Generation = v1.VolumeState_VOLUME_STATE_PENDING, v.DiskGeneration
		h.objects = h.objects.Apply(Change{Ops: []Op{{Update, v}}})
		takenBack(h, true)
	})
	t.Run("the store has forgotten the target", func(t *testing.T) {
		h := inMove(t, true)
		h.givesUp()
		forgotten(h)
		h.objects = h.objects.Apply(Change{Ops: []Op{{Delete, h.objects.Hosts["b1"]}}})
		takenBack(h, false)
	})
	t.Run("the store has forgotten that the target has the volume", func(t *testing.T) {
		h := inMove(t, true)
		h.givesUp()
		h.has("b1", h.data(), 0)
		h.volumes["b1"][0].Facts.Generation = 1
		forgotten(h)
		h.pass(time.Second)
		if v := h.data(); v.Host != "b1" || v.Generation != 1 {
			t.Errorf("the volume is %v", v)
		}
	})
}

// Guests do not move, and are not saved, while their volume is handed over, and it is not handed over while they are.
func TestAHandOverAndMovesOfGuestsWaitForEachOther(t *testing.T) {
	h := inMove(t, false)
	h.pass(time.Second)
	move := func() {
		h.ask(func(a *Admission) (Change, error) {
			m, err := a.MoveGuest(&v1.MigrateRequest{Guest: "md-0", ToHost: "b1"})
			return m.Change, err
		})
		h.pass(time.Second)
	}
	stateOf := func(guest string) (state v1.MigrationState) {
		for _, m := range h.objects.Migrations {
			if m.Guest == guest {
				state = m.State
			}
		}
		return state
	}
	move()
	h.sends(true, false)
	h.pass(time.Second)
	h.expectMove(copying, "a2", "waits until guest md-0 has moved")
	h.arrive()
	h.pass(time.Second)
	h.expectMove(handingOver, "a2", "")

	h = inMove(t, true)
	h.pass(time.Second)
	move()
	if s := stateOf("md-0"); s != v1.MigrationState_MIGRATION_STATE_PENDING {
		t.Errorf("the guest's move is %v", s)
	}
	h.givesUp()
	h.pass(time.Second)
	h.expectMove(moveDone, "b1", "")
	h.pass(time.Second)
	if s := stateOf("md-0"); s == v1.MigrationState_MIGRATION_STATE_PENDING {
		t.Error("afterwards the guest's move does not begin")
	}

	h = inMove(t, true)
	h.files = map[string][]*v1.CheckpointObserved{"a2": {{CheckpointId: "c", GuestUid: "uid-data", Busy: true}}}
	h.pass(time.Second)
	h.expectMove(copying, "a2", "waits until host a2 has written a checkpoint")
}

func TestAVolumeLeavesAHostThatIsDrained(t *testing.T) {
	h := inUse(t)
	h.change("a2", func(a2 *v1.Host) { a2.Draining = true })
	h.pass(time.Second)
	if m := h.data().Move; m.GetState() != copying || m.Target == "a2" || m.Reason != "host a2 is being drained" {
		t.Errorf("its move is %v", m)
	}
}

// maintaining is a policy by which a host is maintained now.
func maintaining(host, more string) string {
	return fmt.Sprintf("maintenance: {windows: [{match: 'host.name == %q', begin: 2026-11-24 11:00, end: 2026-11-24 14:00}]%s}", host, more)
}

// A host that is maintained may be switched off, and so may not have volumes. A host whose owner is back keeps them.
func TestAVolumeLeavesAHostThatIsMaintained(t *testing.T) {
	for name, c := range map[string]struct {
		policy string
		stays  string // why; empty: it leaves
	}{
		"maintained":        {maintaining("a2", ""), ""},
		"another is exempt": {maintaining("a2", ", exempt: {clusters: [other]}"), ""},
		"exempt":            {maintaining("a2", ", exempt: {clusters: [md]}"), "the policy exempts it"},
		"quiet hours":       {maintaining("a2", ", quiet_hours: [{from: '10:00', to: '15:00'}]"), "these are quiet hours"},
	} {
		t.Run(name, func(t *testing.T) {
			h := inUse(t)
			h.objects.Policies["v1"] = NewPolicy(1, c.policy, "", "admin")
			h.policy, _ = policy.Parse(c.policy)
			h.pass(0)
			switch m := h.data().Move; {
			case c.stays != "":
				h.expectLeft(true, "stays on host a2, which is maintained: "+c.stays)
			case m == nil || m.Target == "a2" || m.Reason != "host a2 is being maintained":
				t.Errorf("its move is %v, and it says %q", m, h.data().Message)
			}
		})
	}
	h := inUse(t)
	h.change("a2", func(a2 *v1.Host) {
		a2.Withdrawn = []*v1.Withdrawal{{Policy: policy.HarvestName, Since: timestamppb.New(h.now)}}
	})
	h.pass(0)
	if m := h.data().Move; m != nil {
		t.Errorf("the owner is back, and the volume moves: %v", m)
	}
}

// No volume is made on, or moved to, a host that is maintained.
func TestAHostThatIsMaintainedGetsNoVolume(t *testing.T) {
	h := inUse(t)
	h.objects.Policies["v1"] = NewPolicy(1, maintaining("b1", ""), "", "admin")
	h.policy, _ = policy.Parse(maintaining("b1", ""))
	h.pass(0)
	a := h.admission()
	a.Caller = Caller{Name: "ann"}
	if _, err := a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Host: "b1"}); err == nil || !strings.Contains(err.Error(), "being maintained") {
		t.Errorf("a move there: %v", err)
	}
	for _, host := range []string{"a1", "a2"} {
		h.change(host, func(v *v1.Host) { v.Draining = true })
	}
	if v := h.created("more", 1<<30); v.Host != "" {
		t.Errorf("a volume is made on %s", v.Host)
	}
	h = inMove(t, true)
	h.objects.Policies["v1"] = NewPolicy(1, maintaining("b1", ""), "", "admin")
	h.policy, _ = policy.Parse(maintaining("b1", ""))
	h.pass(0)
	h.expectMove(moveFailed, "a2", "host b1 is being maintained")
}

// expectLeft fails the test unless a2, which is drained, still has volume data, or has no volume if message is empty.
func (h *household) expectLeft(stays bool, message string) {
	h.t.Helper()
	var got []string
	for _, v := range VolumesLeft(h.objects, h.reports(), "a2") {
		got = append(got, fmt.Sprintf("%s stays=%v %s", v.Name, v.Stays, v.Message))
	}
	if text := strings.Join(got, "\n"); (text == "") != (message == "") || text != "" && !strings.HasPrefix(text, fmt.Sprintf("data stays=%v %s", stays, message)) {
		h.t.Errorf("on a2 is %q", text)
	}
}

// A drained host has a volume from the request on, until its old disk is deleted.
func TestADrainedHostHasAVolumeUntilItsFileIsGone(t *testing.T) {
	h := inUse(t)
	h.change("a2", func(a2 *v1.Host) { a2.Draining = true })
	h.expectLeft(false, "is about to move")
	h.pass(time.Second)
	to := h.data().Move.Target
	h.expectLeft(false, "moves to host "+to)
	v := proto.CloneOf(h.data())
	v.Host, v.Move.State = to, moveDone
	h.objects = h.objects.Apply(Change{Ops: []Op{{Update, v}}})
	h.expectLeft(false, "is on host "+to)
	h.volumes["a2"] = nil
	h.expectLeft(false, "")
}

// A volume for which no host has room stays, and says why. It moves later, or forgets that the host was drained.
func TestAVolumeThatCannotLeaveADrainedHostSaysWhy(t *testing.T) {
	h := inUse(t)
	h.away = map[string]bool{"a1": true, "b1": true, "b2": true}
	h.change("a2", func(a2 *v1.Host) { a2.Draining = true })
	h.pass(time.Second)
	h.expectLeft(true, "stays on host a2, which is drained: no host that is connected and keeps volumes has 2.0 GiB of disk free")
	h.change("a2", func(a2 *v1.Host) { a2.Draining = false })
	h.pass(time.Second)
	if v := h.data(); v.Message != "" {
		t.Errorf("the volume says %q", v.Message)
	}
	h.change("a2", func(a2 *v1.Host) { a2.Draining = true })
	h.pass(time.Second)
	h.away = nil
	h.pass(time.Second)
	h.expectLeft(false, "moves to host ")
	if v := h.data(); v.Message != "" {
		t.Errorf("the volume that moves says %q", v.Message)
	}
}

func TestWhatIsRefusedOfMovesOfVolumes(t *testing.T) {
	to := func(host string) func(*household, *Admission) (Change, error) {
		return func(_ *household, a *Admission) (Change, error) {
			return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Host: host})
		}
	}
	toSite := func(site string) func(*household, *Admission) (Change, error) {
		return func(_ *household, a *Admission) (Change, error) {
			return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Site: site})
		}
	}
	for name, c := range map[string]struct {
		before func(h *household)
		do     func(h *household, a *Admission) (Change, error)
		want   string
	}{
		"an unknown site": {nil, toSite("nowhere"), "there is no site \"nowhere\""},
		"the same site":   {nil, toSite("a"), "volume data is on host a2 already"},
		"a site out of reach": {func(h *household) { h.away = map[string]bool{"b1": true} }, toSite("b"),
			"volume data cannot move to site b: host b1: that host is out of reach"},
		"a host and a site": {nil, func(_ *household, a *Admission) (Change, error) {
			return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Host: "b1", Site: "b"})
		}, "give a host or a site"},
		"nothing":         {nil, to(""), "give a host or a site"},
		"an unknown host": {nil, to("c9"), "there is no host \"c9\""},
		"the same host":   {nil, to("a2"), "volume data is on host a2 already"},
		"nothing to cancel": {nil, func(_ *household, a *Admission) (Change, error) {
			return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Cancel: true})
		}, "volume data does not move"},
		"somebody else's": {nil, func(_ *household, a *Admission) (Change, error) {
			a.Caller = Caller{Name: "bob"}
			return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Host: "b1"})
		}, "there is no volume \"data\""},
		"a host out of reach":     {func(h *household) { h.away = map[string]bool{"b1": true} }, to("b1"), "that host is out of reach"},
		"a volume out of reach":   {func(h *household) { h.away = map[string]bool{"a2": true} }, to("b1"), "host a2 does not serve it"},
		"a host that is drained":  {func(h *household) { h.change("b1", func(b1 *v1.Host) { b1.Draining = true }) }, to("b1"), "drained or removed"},
		"a host with an old disk": {func(h *household) { h.has("b1", h.data(), 0) }, to("b1"), "an older disk of it"},
		"a host without room": {func(h *household) {
			v := proto.CloneOf(h.data())
			v.SizeBytes = 20 << 30
			h.objects = h.objects.Apply(Change{Ops: []Op{{Update, v}}})
		}, to("b1"), "that host has room for 10 GiB, and the volume needs 21 GiB"},
		"another move": {func(h *household) {
			h.ask(func(a *Admission) (Change, error) {
				return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Host: "b1"})
			})
		}, to("a1"), "volume data moves to host b1"},
		"removing its target": {func(h *household) {
			h.ask(func(a *Admission) (Change, error) {
				return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Host: "b1"})
			})
		}, func(_ *household, a *Admission) (Change, error) { return a.RemoveHost("b1", false) }, "host b1 has volumes"},
	} {
		t.Run(name, func(t *testing.T) {
			h := inUse(t)
			if c.before != nil {
				c.before(h)
			}
			a := h.admission()
			a.Caller = Caller{Name: "ann"}
			if _, err := c.do(h, a); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("the answer is %v, want %q", err, c.want)
			}
		})
	}
}

// A volume moves to a host of the site, and to a lent one only if no other can take it. The same request again changes nothing.
func TestAVolumeMovesToASite(t *testing.T) {
	for name, c := range map[string]struct {
		lent, away string
		want       string
	}{
		"one that nobody uses":            {"a1", "", "b1"},
		"another that nobody uses":        {"b1", "", "a1"},
		"a lent one if there is no other": {"b1", "a1", "b1"},
	} {
		t.Run(name, func(t *testing.T) {
			h := inUse(t)
			for _, host := range []string{"a1", "b1"} {
				h.change(host, func(b *v1.Host) { b.Info.Site, b.Info.Lent = "b", c.lent == host })
			}
			h.away = map[string]bool{c.away: true}
			for range 2 {
				h.ask(func(a *Admission) (Change, error) {
					return a.MoveVolume(&v1.MoveVolumeRequest{Name: "data", Site: "b"})
				})
				if got := h.data().Move.GetTarget(); got != c.want {
					t.Errorf("the volume moves to %q, want %s", got, c.want)
				}
			}
		})
	}
}
