package migration

import (
	"testing"
	"time"

	"pgregory.net/rapid"

	v1 "watari/api/watariv1"
)

// The model: two hosts with at most one copy of the guest each, messages that are delivered late or not at all, hosts that
// crash, and transfers that end in each way that libvirt knows. The last reply of a transfer may be lost: then the source
// runs again while the target has a whole copy. Whatever the order of events, two copies never run, and once nothing fails
// any more, the move ends.

type copyState int

const (
	absent copyState = iota
	running
	paused
	receiving
	received
)

type modelHost struct {
	copy      copyState
	order     v1.GuestRole // last delivered
	cancelled bool         // order.cancel, last delivered
	condition v1.GuestCondition
	connected bool
	crashed   bool
	handed    bool // a source whose process has ended, before libvirt says how
	// what the manager last heard
	heard       *v1.GuestObserved
	heardOrder  v1.GuestRole // the order in force on the host at that time
	heardCancel bool
	dead        bool // the manager knows that the host has rebooted
}

type world struct {
	t              *rapid.T
	m              *v1.Migration
	source, target modelHost
	granted        bool // the target holds the grant
	lost           bool
	onlyThere      bool // a transfer ended with a whole copy at the target and none at the source, which does not know why
}

func newWorld(t *rapid.T) *world {
	w := &world{t: t, m: &v1.Migration{Source: "s", Target: "t", SourceEpoch: 1, TargetEpoch: 2,
		State: v1.MigrationState_MIGRATION_STATE_PENDING}}
	w.source = modelHost{copy: running, condition: v1.GuestCondition_GUEST_CONDITION_RUNNING, connected: true, order: v1.GuestRole_GUEST_ROLE_RUN}
	w.target = modelHost{connected: true}
	w.report(&w.source, 1)
	return w
}

// current reports whether the host made the heard report after it took up the orders in force.
func (h *modelHost) current(w *world) bool {
	source, target := Roles(w.m.State)
	order := source
	if h == &w.target {
		order = target
	}
	return h.heardOrder == order && h.heardCancel == w.m.Cancel
}

func (w *world) report(h *modelHost, epoch uint64) {
	if !h.connected || h.crashed {
		return
	}
	h.heard, h.heardOrder, h.heardCancel = nil, h.order, h.cancelled
	if h.condition != v1.GuestCondition_GUEST_CONDITION_UNSPECIFIED {
		h.heard = &v1.GuestObserved{Epoch: epoch, Condition: h.condition, HandedOver: h.handed}
	}
}

func (w *world) deliver(h *modelHost, isTarget bool) {
	if !h.connected || h.crashed {
		return
	}
	source, target := Roles(w.m.State)
	if w.lost { // the guest is started again under a higher epoch, so both hosts must end their copies
		source, target = v1.GuestRole_GUEST_ROLE_ABSENT, v1.GuestRole_GUEST_ROLE_ABSENT
	}
	h.order, h.cancelled = source, w.m.Cancel
	if isTarget {
		h.order = target
		// The role RUN is the grant: it is given only where the record says so.
		if h.order == v1.GuestRole_GUEST_ROLE_RUN && !w.granted {
			w.t.Fatalf("target told to run in state %v without the grant", w.m.State)
		}
	}
}

func (w *world) actSource() {
	h := &w.source
	if h.crashed {
		return
	}
	switch h.order {
	case v1.GuestRole_GUEST_ROLE_OUTGOING:
		if h.cancelled && h.condition == v1.GuestCondition_GUEST_CONDITION_RUNNING {
			return // the source does not begin to send
		}
		if h.copy == running && w.target.copy == receiving && h.condition == v1.GuestCondition_GUEST_CONDITION_RUNNING {
			h.condition, w.target.condition = v1.GuestCondition_GUEST_CONDITION_SENDING, v1.GuestCondition_GUEST_CONDITION_RECEIVING
		} else if h.copy == running && h.condition == v1.GuestCondition_GUEST_CONDITION_RUNNING {
			h.condition = v1.GuestCondition_GUEST_CONDITION_SEND_FAILED // nobody listens
		}
	case v1.GuestRole_GUEST_ROLE_RUN:
		if h.copy == paused {
			h.copy = running
		}
		if h.copy == running {
			h.condition = v1.GuestCondition_GUEST_CONDITION_RUNNING
		}
	case v1.GuestRole_GUEST_ROLE_ABSENT:
		h.copy, h.condition, h.handed = absent, v1.GuestCondition_GUEST_CONDITION_UNSPECIFIED, false
	}
}

func (w *world) actTarget() {
	h := &w.target
	if h.crashed {
		return
	}
	if h.condition == v1.GuestCondition_GUEST_CONDITION_RECEIVING { // its agent finds out how the transfer ended
		if h.copy == received {
			h.condition = v1.GuestCondition_GUEST_CONDITION_RECEIVED
		} else if w.source.condition != v1.GuestCondition_GUEST_CONDITION_SENDING {
			h.copy, h.condition = absent, v1.GuestCondition_GUEST_CONDITION_GONE
		}
	}
	switch h.order {
	case v1.GuestRole_GUEST_ROLE_INCOMING:
		if h.copy == absent && h.condition == v1.GuestCondition_GUEST_CONDITION_UNSPECIFIED {
			h.copy, h.condition = receiving, v1.GuestCondition_GUEST_CONDITION_RESERVED
		}
	case v1.GuestRole_GUEST_ROLE_RUN:
		if h.copy == received {
			h.copy, h.condition = running, v1.GuestCondition_GUEST_CONDITION_RUNNING
		}
	case v1.GuestRole_GUEST_ROLE_ABSENT:
		h.copy, h.condition = absent, v1.GuestCondition_GUEST_CONDITION_UNSPECIFIED
	}
}

// endTransfer ends a transfer in one of libvirt's ways.
func (w *world) endTransfer(way int) {
	if w.source.condition != v1.GuestCondition_GUEST_CONDITION_SENDING || w.source.crashed {
		return
	}
	whole := w.target.copy == receiving && !w.target.crashed
	switch {
	case w.source.handed: // libvirt learns what its agent saw before, and reports it or is no longer asked
		w.source.handed, w.source.condition = false, v1.GuestCondition_GUEST_CONDITION_GONE
		if way == 0 && w.onlyThere {
			w.source.condition = v1.GuestCondition_GUEST_CONDITION_SENT
		}
	case way == 6 && whole && w.target.heard.GetCondition() == v1.GuestCondition_GUEST_CONDITION_RECEIVING:
		// Its process has ended because the target has all of it.
		w.source.copy, w.source.handed = absent, true
		w.target.copy, w.onlyThere = received, true
	case way == 7: // its process has ended by itself
		w.source.copy, w.source.handed = absent, true
	case way == 0 && whole: // success
		w.source.copy, w.source.condition = absent, v1.GuestCondition_GUEST_CONDITION_SENT
		w.target.copy = received
	case way == 1 && whole: // the last reply is lost: whole there, running here
		w.source.condition = v1.GuestCondition_GUEST_CONDITION_SEND_FAILED
		w.target.copy = received
	case way == 2: // failure that leaves the source paused
		w.source.copy, w.source.condition = paused, v1.GuestCondition_GUEST_CONDITION_SEND_FAILED
	case way == 3: // source QEMU is killed
		w.source.copy, w.source.condition = absent, v1.GuestCondition_GUEST_CONDITION_GONE
	case way == 5 && whole && w.target.heard.GetCondition() == v1.GuestCondition_GUEST_CONDITION_RECEIVING:
		// The last reply is lost: the copy is whole at the target, and gone at the source, where libvirt gives no reason.
		// The manager has heard meanwhile that the transfer had begun, for a transfer takes longer than a report.
		w.source.copy, w.source.condition = absent, v1.GuestCondition_GUEST_CONDITION_GONE
		w.target.copy, w.onlyThere = received, true
	default:
		w.source.condition = v1.GuestCondition_GUEST_CONDITION_SEND_FAILED
	}
}

func (w *world) crash(h *modelHost) {
	h.crashed, h.connected, h.copy, h.handed = true, false, absent, false
	h.condition = v1.GuestCondition_GUEST_CONDITION_UNSPECIFIED
	if h == &w.target && w.source.condition == v1.GuestCondition_GUEST_CONDITION_SENDING && !w.source.handed {
		w.source.condition = v1.GuestCondition_GUEST_CONDITION_SEND_FAILED
	}
}

func (w *world) comeBack(h *modelHost) {
	if h.crashed {
		h.crashed, h.dead, h.order, h.heard = false, true, v1.GuestRole_GUEST_ROLE_UNSPECIFIED, nil
	}
	h.connected = true
}

func (w *world) view(h *modelHost) Host {
	v := Host{Connected: h.connected && !h.crashed, Dead: h.dead, Guest: h.heard, Current: h.current(w)}
	if !v.Connected {
		v.Away = time.Hour
	}
	return v
}

func (w *world) step(patience time.Duration) {
	d := Step(w.m, Observed{Source: w.view(&w.source), Target: w.view(&w.target), Turn: true, RoutesSet: true, InState: patience})
	w.m.State, w.m.Message = d.State, d.Message
	switch d.Grant {
	case GrantToTarget:
		if w.source.copy != absent {
			w.t.Fatalf("grant passed on while the source's copy exists")
		}
		w.granted = true
	case GrantLost:
		w.lost = true
	}
}

func (w *world) check() {
	if w.source.copy == running && w.target.copy == running {
		w.t.Fatalf("two copies run, state %v", w.m.State)
	}
	if w.target.copy == running && !w.granted {
		w.t.Fatalf("the target's copy runs without the grant, state %v", w.m.State)
	}
	if w.lost && (w.source.copy == running || w.target.copy == running) {
		w.t.Fatalf("the guest was given up as lost while a copy runs")
	}
}

// calm delivers everything, without faults, until nothing changes.
func (w *world) calm(way int) {
	for range 60 {
		w.comeBack(&w.source)
		w.comeBack(&w.target)
		w.deliver(&w.source, false)
		w.deliver(&w.target, true)
		w.actTarget()
		w.actSource()
		w.endTransfer(way)
		w.report(&w.source, 1)
		w.report(&w.target, 2)
		w.step(time.Second)
		w.check()
	}
}

func TestUndisturbedMoveIsDone(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		w.calm(0)
		if w.m.State != v1.MigrationState_MIGRATION_STATE_DONE || w.target.copy != running || w.source.copy != absent {
			t.Fatalf("state %v, source %v, target %v", w.m.State, w.source.copy, w.target.copy)
		}
	})
}

// TestTheTargetNeedNotAwaitWhatLibvirtSays: the source's agent has seen its process end.
func TestTheTargetNeedNotAwaitWhatLibvirtSays(t *testing.T) {
	m := &v1.Migration{Source: "s", Target: "t", SourceEpoch: 1, TargetEpoch: 2}
	source := &v1.GuestObserved{Epoch: 1, Condition: v1.GuestCondition_GUEST_CONDITION_SENDING, HandedOver: true}
	target := &v1.GuestObserved{Epoch: 2, Condition: v1.GuestCondition_GUEST_CONDITION_RECEIVED}
	step := func() (states []v1.MigrationState) {
		m.State = v1.MigrationState_MIGRATION_STATE_TRANSFERRING
		for range 2 {
			d := Step(m, Observed{Source: Host{Connected: true, Guest: source}, Target: Host{Connected: true, Current: true, Guest: target}, RoutesSet: true})
			m.State = d.State
			states = append(states, d.State)
		}
		return states
	}
	if states := step(); states[1] != v1.MigrationState_MIGRATION_STATE_RESUMING {
		t.Errorf("%v", states)
	}
	for name, change := range map[string]func(){
		"the process is there":       func() { source.Process = true },
		"the target is not done":     func() { target.Condition = v1.GuestCondition_GUEST_CONDITION_RECEIVING },
		"the target has not begun":   func() { target.Condition = v1.GuestCondition_GUEST_CONDITION_RESERVED },
		"the agent has seen nothing": func() { source.HandedOver = false },
	} {
		source.Process, source.HandedOver, target.Condition = false, true, v1.GuestCondition_GUEST_CONDITION_RECEIVED
		change()
		if states := step(); states[0] != v1.MigrationState_MIGRATION_STATE_TRANSFERRING {
			t.Errorf("%s: %v", name, states)
		}
	}
}

func TestNeverTwoWhateverFails(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t)
		hosts := []*modelHost{&w.source, &w.target}
		for range rapid.IntRange(5, 80).Draw(t, "events") {
			i := rapid.IntRange(0, 1).Draw(t, "host")
			h := hosts[i]
			switch rapid.IntRange(0, 19).Draw(t, "event") {
			case 0, 1, 2, 3:
				w.deliver(h, i == 1)
			case 4, 5, 6:
				w.actSource()
			case 7, 8, 9:
				w.actTarget()
			case 10, 11, 12:
				w.report(h, uint64(i+1))
			case 13, 14, 15:
				w.step(time.Second)
			case 16:
				w.endTransfer(rapid.IntRange(0, 7).Draw(t, "way"))
			case 17:
				w.m.Cancel = w.m.Cancel || rapid.Bool().Draw(t, "cancel")
			case 18:
				h.connected = !h.connected && !h.crashed
			case 19:
				if rapid.Bool().Draw(t, "crash") {
					w.crash(h)
				} else {
					w.comeBack(h)
				}
			}
			w.check()
		}
		w.calm(rapid.IntRange(0, 7).Draw(t, "last way"))
		if !Ended(w.m.State) {
			t.Fatalf("stuck in %v (%s): source %+v, target %+v", w.m.State, w.m.Message, w.source, w.target)
		}
		if w.onlyThere && !w.target.dead && w.target.copy != running {
			t.Fatalf("the only copy was thrown away: %v (%s)", w.m.State, w.m.Message)
		}
		if !w.lost && !w.source.dead && !w.target.dead && w.source.condition != v1.GuestCondition_GUEST_CONDITION_GONE &&
			w.source.copy != running && w.target.copy != running {
			t.Fatalf("no copy runs though nothing crashed: %v (%s)", w.m.State, w.m.Message)
		}
	})
}
