package sim

// transfer.go - the memory of a guest on its way from one host's hypervisor to another's, through their agents' tunnel.

import (
	"errors"
	"time"

	"watari/agent/domain"
	"watari/agent/machine"
	"watari/core"
)

var errBroken = errors.New("the transfer broke off")

// transferStage is how far a transfer has come.
type transferStage int

const (
	asking    transferStage = iota // for admission
	carrying                       // the source runs, the target's domain is incoming
	finished                       // the target is whole; the source does not know yet
	confirmed                      // the source's process has ended; its libvirt does not know yet
	over
)

// strike is a fault at the moment when a transfer's target has all of the guest and nobody knows yet.
type strike int

const (
	noStrike                     strike = iota
	strikeSource                        // the source crashes
	strikeSourceAndTargetAgent          // the source crashes, and the target's agent is killed
	strikeSourceAgentThenSource         // the source's agent is killed, and the source crashes within a second
	strikeCancel                        // a user cancels the move
	strikeSourceAndTargetLibvirt        // the source crashes, and the target's libvirt hangs
	strikeAgents                        // both agents are killed
	strikeSourceQEMU                    // the source's QEMU is killed
	strikeSourceAfterItRanOn            // the source's agent sees the transfer fail, and its host crashes before a report
	strikes                      = iota - 1
)

// transfer is the transfer of one guest by libvirt. It continues while the agents, the hosts and the network between them
// work.
type transfer struct {
	source, target *host
	uid, name, id  string
	connection     uint64
	stage          transferStage
	end            func(machine.Result)
}

// send begins a transfer.
func (s *Sim) send(h *host, a machine.Act, end func(machine.Result)) {
	order := a.Wanted.GetMigration()
	t := &transfer{source: h, target: s.hosts[order.GetTargetHost()], uid: a.Guest, name: a.Name, id: order.GetId(), end: end}
	h.cuttable[a.ID] = func() { s.breakOff(t, "it was interrupted") }
	s.transfers = append(s.transfers, t)
	s.after(s.latency(5*time.Millisecond), func() {
		if t.stage != asking {
			return
		}
		target := t.target
		switch {
		case target == nil || !target.up || target.agent == nil || s.apart(h, target) || target.expected[t.uid] != t.id:
			s.breakOff(t, "the target's tunnel refuses it")
			return
		}
		s.connections++
		t.connection = s.connections
		target.agent.Admit(target.now(), t.uid, t.id, t.connection)
		target.pump()
	})
}

// answerAdmission answers a transfer that asked for admission.
func (s *Sim) answerAdmission(h *host, a machine.Act) {
	for _, t := range s.transfers {
		if t.target != h || t.connection != a.Connection || t.stage != asking {
			continue
		}
		if a.Err != nil {
			s.after(0, func() { s.breakOff(t, a.Err.Error()) })
			return
		}
		t.stage = carrying
		s.after(s.latency(5*time.Millisecond), func() { s.carry(t) })
	}
}

func (s *Sim) carry(t *transfer) {
	if t.stage != carrying {
		return
	}
	from := t.source.copies[t.uid]
	if from == nil || from.state != domain.Running || t.target.copies[t.uid] != nil || t.target.libvirt != libvirtUp || t.source.libvirt != libvirtUp {
		s.breakOff(t, "libvirt refuses it")
		return
	}
	if from.disk != "" && s.reach(t.target, from.disk, from.diskAt) == nil {
		s.breakOff(t, "the target does not reach the volume")
		return
	}
	c := &copyOf{uid: t.uid, name: t.name, state: domain.Incoming, since: s.now, disk: from.disk, diskAt: from.diskAt, line: from.line}
	if r := t.target.records[t.uid]; r != nil {
		c.epoch = r.Epoch
	}
	t.target.copies[t.uid] = c
	t.target.event(t.uid)
	s.after(s.between(20*time.Millisecond, 3*time.Second), func() {
		if t.stage != carrying {
			return
		}
		if c := t.source.copies[t.uid]; c != nil {
			c.state = domain.Paused // for the last of its memory
			t.source.event(t.uid)
		}
		s.after(s.latency(10*time.Millisecond), func() { s.finish(t) })
	})
}

// finish makes the target whole.
func (s *Sim) finish(t *transfer) {
	to := t.target.copies[t.uid]
	if t.stage != carrying || to == nil || t.source.copies[t.uid] == nil {
		return
	}
	t.stage = finished
	to.state, to.whole, to.broken = domain.Paused, true, t.source.copies[t.uid].broken
	s.struck(t)
	t.target.event(t.uid)
	s.after(s.latency(5*time.Millisecond), func() { s.confirm(t) })
}

// struck makes the fault that the plan has asked for, at the moment when the target has all of the guest and nobody knows.
func (s *Sim) struck(t *transfer) {
	kind := s.strike
	s.strike = noStrike
	if kind != noStrike {
		t.target.finishing[t.uid] = s.now.Add(s.between(0, 4*time.Second))
	}
	crash := func(h *host) {
		h.crash()
		s.after(s.strikeFor, h.power)
	}
	kill := func(h *host) {
		h.killAgent()
		s.after(s.strikeFor, h.startAgent)
	}
	switch kind {
	case strikeSource:
		crash(t.source)
	case strikeSourceAndTargetAgent:
		kill(t.target)
		crash(t.source)
	case strikeSourceAgentThenSource:
		kill(t.source)
		s.after(s.between(0, time.Second), func() { crash(t.source) })
	case strikeCancel:
		if m := core.ActiveMoves(s.store.objects)[t.uid]; m != nil {
			s.admit(func(a *core.Admission) (core.Change, error) {
				change, _, err := a.CancelMove(m.Meta.Name)
				return change, err
			})
		}
	case strikeSourceAndTargetLibvirt:
		t.target.setLibvirt(libvirtHangs)
		s.after(s.strikeFor, func() { t.target.setLibvirt(libvirtUp) })
		crash(t.source)
	case strikeAgents:
		kill(t.target)
		kill(t.source)
	case strikeSourceQEMU:
		if c := t.source.copies[t.uid]; c != nil {
			s.died(t.source, c, "QEMU was killed")
			delete(t.source.copies, t.uid)
			t.source.event(t.uid)
		}
		t.stage = over // for the source's libvirt, a transfer that it cannot confirm has failed
		s.drop(t)
		t.end(machine.Result{Err: errBroken})
	case strikeSourceAfterItRanOn:
		if c := t.source.copies[t.uid]; c != nil {
			t.source.cutOff()
			s.runs(t.source, c)
			t.source.event(t.uid)
			t.stage = over
			s.drop(t)
			t.end(machine.Result{Err: errBroken})
			s.after(s.between(100*time.Millisecond, 3*time.Second), func() {
				crash(t.source)
				t.source.cut = false
			})
		}
	}
}

// confirm makes the source's libvirt end its copy. The agent sees the process end before libvirt does.
func (s *Sim) confirm(t *transfer) {
	if t.stage != finished {
		return
	}
	t.stage = confirmed
	c := t.source.copies[t.uid]
	if c == nil {
		s.ended(t)
		return
	}
	s.sent(t.source, c)
	delete(t.source.copies, t.uid)
	if h, life := t.source, t.source.life; h.agent != nil {
		s.after(s.latency(2*time.Millisecond), func() {
			if h.life == life && h.agent != nil && t.stage == confirmed {
				h.agent.SenderEnded(h.now(), t.uid)
				h.pump()
			}
		})
	}
	s.after(s.between(0, 400*time.Millisecond), func() { s.ended(t) })
}

// ended makes the source's libvirt report that the guest was sent.
func (s *Sim) ended(t *transfer) {
	if t.stage != confirmed {
		return
	}
	t.stage = over
	t.source.event(t.uid)
	s.drop(t)
	t.end(machine.Result{})
}

// breakOff ends a transfer that is under way. Both hypervisors clean up. A target that is whole stays whole, and the source
// either knows of it or goes on.
func (s *Sim) breakOff(t *transfer, why string) {
	if t.stage == over {
		return
	}
	s.tell(t.source.name, "transfer of %s to %s breaks off: %s", t.name, t.target.named(), why)
	was := t.stage
	if was == finished && s.chance(50) {
		s.confirm(t)
		return
	}
	if was == confirmed && s.chance(50) {
		s.ended(t)
		return
	}
	t.stage = over
	if was == carrying {
		if c := t.target.copies[t.uid]; c != nil && c.state == domain.Incoming {
			delete(t.target.copies, t.uid)
			t.target.event(t.uid)
		}
	}
	if c := t.source.copies[t.uid]; c != nil && c.state == domain.Paused && c.whole {
		s.runs(t.source, c)
		t.source.event(t.uid)
	}
	s.drop(t)
	t.end(machine.Result{Err: errBroken})
}

func (h *host) named() string {
	if h == nil {
		return "nowhere"
	}
	return h.name
}

// drop forgets a transfer, and closes its connection.
func (s *Sim) drop(t *transfer) {
	for i, other := range s.transfers {
		if other == t {
			s.transfers = append(s.transfers[:i:i], s.transfers[i+1:]...)
			break
		}
	}
	if h := t.target; t.connection != 0 && h.agent != nil {
		life := h.life
		s.after(s.latency(2*time.Millisecond), func() {
			if h.life == life && h.agent != nil {
				h.agent.Tunnel(h.now(), t.uid, t.id, false)
				h.pump()
			}
		})
	}
}

// transferOf returns the transfer of a guest in which a host's hypervisor takes part; nil: none.
func (s *Sim) transferOf(h *host, uid string) *transfer {
	for _, t := range s.transfers {
		if t.uid == uid && (t.source == h || t.target == h) && t.stage != asking {
			return t
		}
	}
	return nil
}

func (s *Sim) endTransferOf(h *host, uid, why string) {
	if t := s.transferOf(h, uid); t != nil {
		s.breakOff(t, why)
	}
}

// breakTransfers breaks off all transfers that a host takes part in.
func (s *Sim) breakTransfers(h *host, why string) {
	for _, t := range append([]*transfer(nil), s.transfers...) {
		if t.source == h || t.target == h {
			s.breakOff(t, why)
		}
	}
}
