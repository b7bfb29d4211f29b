package sim

// acts.go - the effects of an agent's acts on the host.

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"watari/agent/domain"
	"watari/agent/machine"
)

var (
	errFull      = errors.New("no space left on device")
	errTable     = errors.New("the process table cannot be read")
	errHyper     = errors.New("libvirt cannot be reached")
	errLibvirt   = errors.New("libvirt failed")
	errReset     = errors.New("the virtual machine would have to be reset")
	errInput     = errors.New("input/output error")
	errCut       = errors.New("interrupted")
	errLease     = errors.New("its lease has ended")
	errDuplicate = errors.New("a domain of that name exists")
)

// libvirtTimeout is how long an agent waits for a call of libvirt that hangs.
const libvirtTimeout = 10 * time.Second

// carryOut does an act. The effect comes after a delay. After another delay the agent learns how the act ended, if that
// agent still lives.
func (h *host) carryOut(a machine.Act) {
	life := h.life
	end := func(r machine.Result) { h.ended(life, a.ID, r) }
	switch a.Kind {
	case machine.KeepTerm:
		h.onDisk(2*time.Millisecond, func(ok bool) {
			if !ok && !h.takesTerms {
				end(machine.Result{Err: errFull})
				return
			}
			h.term, h.stamp = a.Term, a.Stamp
			end(machine.Result{})
		}, false)
	case machine.ReadTerm:
		h.sim.after(h.sim.latency(time.Millisecond), func() {
			if h.termUnreadable() {
				end(machine.Result{Err: errInput})
				return
			}
			end(machine.Result{Term: h.term, Stamp: h.stamp})
		})
	case machine.ApplyOrders:
		h.followVolumes(a.Orders)
		h.followCheckpoints(a.Orders.GetCheckpoints())
		if n := a.Orders.GetNetwork(); n != nil {
			h.sim.after(h.sim.latency(5*time.Millisecond), func() {
				if h.life == life {
					h.network = max(h.network, n.Generation)
					if now := [2]uint64{a.Orders.Term, n.Generation}; h.net == nil || slices.Compare(now[:], h.netOf[:]) >= 0 {
						h.net, h.netOf = n, now
					}
					h.report()
				}
			})
		}
	case machine.List:
		h.list(a, end)
	case machine.ReadRecord:
		h.sim.after(h.sim.latency(time.Millisecond), func() { end(h.readRecord(a.Guest)) })
	case machine.WriteRecord:
		h.onDisk(2*time.Millisecond, func(ok bool) {
			if !ok {
				end(machine.Result{Err: errFull})
				return
			}
			record := *a.Record
			if was := h.records[a.Guest]; record.RanOn && (was == nil || !was.RanOn || was.Epoch != record.Epoch) {
				h.sim.outdate(h, a.Guest, record.Migration)
			}
			h.records[a.Guest] = &record
			h.sim.tell(h.name, "record of %s: epoch %d %s %s", a.Name, record.Epoch, record.Phase, record.Outcome)
			end(machine.Result{})
		}, a.Vital)
	case machine.Prepare:
		h.prepare(a, end)
	case machine.Start:
		h.start(a, end)
	case machine.Restore:
		h.restore(a, end)
	case machine.Send:
		h.sim.send(h, a, end)
	case machine.Busy:
		h.busy(a, end, h.sim.now.Add(time.Minute))
	case machine.Resume:
		h.resume(a, end)
	case machine.Destroy:
		h.destroy(a, end)
	case machine.Confirm:
		h.sim.after(h.sim.latency(time.Millisecond), func() {
			if h.sim.faulty && h.sim.chance(1) {
				end(machine.Result{Err: errTable})
				return
			}
			var pids []int
			if h.copies[a.Guest] != nil {
				pids = []int{1}
			}
			end(machine.Result{PIDs: pids})
		})
	case machine.AllowIncoming:
		h.expected[a.Guest] = a.Migration
		h.sim.after(0, func() { end(machine.Result{}) })
	case machine.DisallowIncoming:
		delete(h.expected, a.Guest)
		h.sim.after(0, func() { end(machine.Result{}) })
	case machine.AnswerAdmission:
		h.sim.answerAdmission(h, a)
	case machine.Forget:
		delete(h.expected, a.Guest)
		h.sim.after(h.sim.latency(2*time.Millisecond), func() { end(machine.Result{Unplugged: true}) })
	case machine.Interrupt:
		if cut := h.cuttable[a.Of]; cut != nil {
			h.sim.after(h.sim.latency(time.Millisecond), cut)
		}
	case machine.Route:
		h.sim.after(h.sim.latency(2*time.Millisecond), func() { end(machine.Result{}) })
	default: // Explain, Plug
		h.sim.after(h.sim.latency(time.Millisecond), func() { end(machine.Result{}) })
	}
}

// onDisk writes to disk after a delay, unless the disk is full or the host has lost power. A write that is under way when
// the agent is killed may still be made.
func (h *host) onDisk(usual time.Duration, written func(ok bool), vital bool) {
	powers := h.powers
	h.sim.after(h.sim.latency(usual), func() {
		if !h.up || h.powers != powers {
			return
		}
		ok := !h.full
		if !ok && vital && h.setAside > 0 {
			h.setAside--
			ok = true
		}
		written(ok)
	})
}

// termUnreadable tells whether the agent's reads of its term fail now.
func (h *host) termUnreadable() bool { return h.sim.faulty && h.sim.unreadable[h.name+"/term"] }

func (h *host) readRecord(uid string) machine.Result {
	if h.sim.faulty && h.sim.unreadable[h.name+"/"+uid] {
		return machine.Result{Err: errInput}
	}
	if r := h.records[uid]; r != nil {
		record := *r
		return machine.Result{Record: &record}
	}
	return machine.Result{}
}

// fate is how a libvirt call ended for its caller.
type fate struct {
	err       error
	uncertain bool
}

// call makes a libvirt call. If libvirt hangs, the caller gives up after libvirtTimeout, and the effect comes when libvirt
// goes on.
func (h *host) call(usual time.Duration, do func() error, end func(fate), over ...func()) {
	powers, told := h.powers, false
	answer := func(f fate) {
		if !told {
			told = true
			end(f)
		}
	}
	var attempt func()
	attempt = func() {
		if !h.up || h.powers != powers {
			return
		}
		if h.libvirt == libvirtHangs {
			h.waiting = append(h.waiting, attempt)
			h.sim.after(libvirtTimeout, func() { answer(fate{errHyper, true}) })
			return
		}
		for _, f := range over {
			f()
		}
		switch {
		case h.libvirt == libvirtDown:
			answer(fate{err: errHyper})
		case h.sim.faulty && h.sim.chance(2):
			answer(fate{err: errLibvirt})
		default:
			err := do()
			if h.sim.faulty && h.sim.chance(1) { // the call was made, and the answer is lost
				answer(fate{errHyper, true})
				return
			}
			answer(fate{err: err})
		}
	}
	h.sim.after(h.sim.latency(usual), attempt)
}

// setLibvirt changes the state of libvirt. Calls that hung are made when libvirt goes on.
func (h *host) setLibvirt(state libvirtState) {
	if !h.up || h.libvirt == state {
		return
	}
	h.sim.tell(h.name, "libvirt: %s", []string{"goes on", "is down", "hangs"}[state])
	h.libvirt = state
	if state == libvirtUp {
		waiting := h.waiting
		h.waiting = nil
		for _, call := range waiting { // in any order
			h.sim.after(h.sim.between(0, 5*time.Second), call)
		}
	} else if h.agent != nil {
		h.agent.HypervisorLost(h.now())
		h.pump()
	}
}

func (h *host) list(a machine.Act, end func(machine.Result)) {
	var r machine.Result
	h.call(2*time.Millisecond, func() error {
		for _, c := range h.live() {
			if !c.hidden {
				r.Domains = append(r.Domains, domain.Info{UID: c.uid, Name: c.name, State: c.state})
			}
		}
		for _, uid := range a.Late {
			if h.creating(uid) {
				r.Creating = append(r.Creating, uid)
			}
		}
		return nil
	}, func(f fate) {
		if f.err != nil {
			r = machine.Result{Err: f.err}
		}
		h.sim.after(h.sim.latency(time.Millisecond), func() { end(r) })
	})
}

// creating tells whether libvirt is creating a guest's domain.
func (h *host) creating(uid string) bool {
	return h.sim.creates[fmt.Sprint(h.name, "/", h.powers, "/", uid)] > 0
}

// makes tells whether libvirt is creating any guest's domain.
func (h *host) makes() bool {
	for key, n := range h.sim.creates {
		if n > 0 && strings.HasPrefix(key, fmt.Sprint(h.name, "/", h.powers, "/")) {
			return true
		}
	}
	return false
}

func (h *host) prepare(a machine.Act, end func(machine.Result)) {
	done, life := false, h.life
	finish := func(r machine.Result) {
		if !done {
			done = true
			end(r)
		}
	}
	h.cuttable[a.ID] = func() { finish(machine.Result{Err: errCut, Cut: true, Unplugged: true}) }
	var attempt func()
	attempt = func() {
		switch {
		case done || h.life != life:
		case a.Wanted.GetRestore() != nil && (h.sim.short > 0 || h.lacks(a.Wanted.Restore, a.Guest)):
			finish(machine.Result{Err: errFull, Final: true, Unplugged: true})
		case a.Wanted.GetRestore() != nil && !h.hasAll(a.Wanted.Restore, a.Guest):
			h.sim.after(100*time.Millisecond, attempt) // until the checkpoint's files are here
		case h.sim.faulty && h.sim.chance(3):
			finish(machine.Result{Err: errLibvirt, Unplugged: true})
		case h.sim.faulty && h.sim.chance(2):
			finish(machine.Result{Err: errFull, Final: true, Unplugged: true})
		default:
			finish(machine.Result{})
		}
	}
	h.sim.after(h.sim.latency(50*time.Millisecond), attempt)
}

// start creates the domain.
func (h *host) start(a machine.Act, end func(machine.Result)) {
	key := fmt.Sprint(h.name, "/", h.powers, "/", a.Guest)
	h.sim.checkStart(h, a)
	if !h.allowed(a.Guest) {
		h.sim.after(0, func() { end(machine.Result{Err: errLease}) })
		return
	}
	h.sim.creates[key]++
	h.call(100*time.Millisecond, func() error {
		if h.copies[a.Guest] != nil {
			return errDuplicate
		}
		c := &copyOf{uid: a.Guest, name: a.Name, epoch: a.Wanted.Epoch, state: domain.Running, whole: true}
		if err := h.opens(c, a.Wanted.Volume); err != nil {
			return err
		}
		h.sim.begins(h, c)
		return nil
	}, func(f fate) {
		r := machine.Result{Err: f.err, Uncertain: f.uncertain}
		if f.err != nil && !f.uncertain && !a.Plain && h.sim.chance(30) {
			r.Unforked = true
		}
		end(r)
	}, func() { h.sim.creates[key]-- })
}

func (h *host) busy(a machine.Act, end func(machine.Result), until time.Time) {
	powers := h.powers
	h.sim.after(h.sim.latency(2*time.Millisecond), func() {
		if !h.up || h.powers != powers {
			return
		}
		busy := h.sim.transferOf(h, a.Guest) != nil || h.sim.now.Before(h.finishing[a.Guest])
		switch {
		case h.libvirt != libvirtUp:
			end(machine.Result{Err: errHyper})
		case busy && a.Patience == machine.UntilDone && h.sim.now.Before(until):
			h.busy(a, end, until)
		default:
			end(machine.Result{Busy: busy})
		}
	})
}

func (h *host) resume(a machine.Act, end func(machine.Result)) {
	if !h.allowed(a.Guest) {
		h.sim.after(0, func() { end(machine.Result{Err: errLease}) })
		return
	}
	h.call(5*time.Millisecond, func() error {
		c := h.copies[a.Guest]
		switch {
		case c == nil || c.hidden:
			return errLibvirt
		case c.state == domain.Running:
			return nil
		case c.state != domain.Paused:
			return errLibvirt
		case c.broken:
			return errReset
		}
		if r := h.records[a.Guest]; r != nil {
			c.epoch = r.Epoch
		}
		h.sim.runs(h, c)
		h.event(a.Guest)
		return nil
	}, func(f fate) { end(machine.Result{Err: f.err, Broken: errors.Is(f.err, errReset)}) })
}

// destroy ends a copy. If libvirt hangs, it may do so much later, but does not end a domain that was started since: when libvirt goes
// on, it looks up the domains of waiting calls first, and an agent that looks one up does nothing with it after it has given up.
func (h *host) destroy(a machine.Act, end func(machine.Result)) {
	seen := h.copies[a.Guest]
	h.call(10*time.Millisecond, func() error {
		if c := h.copies[a.Guest]; c != nil && c == seen {
			h.sim.endTransferOf(h, a.Guest, "a domain was ended")
			h.sim.destroyed(h, c)
			delete(h.copies, a.Guest)
			h.event(a.Guest)
		}
		return nil
	}, func(f fate) { end(machine.Result{Err: f.err}) })
}

// event tells the agent that a domain has changed.
func (h *host) event(uid string) {
	life := h.life
	at := h.now()
	h.sim.after(h.sim.latency(time.Millisecond), func() {
		if h.life == life && h.agent != nil && h.libvirt == libvirtUp {
			h.agent.DomainEvent(h.now(), uid, at)
			h.pump()
		}
	})
}
