package agent

// evidence_test.go - what the agent reports of a guest's end, and what it must not report of a guest that only seems to have
// ended.

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// never fails the test if the host reports something within a while.
func (o *outside) never(what string, found func(*v1.HostObserved) bool) {
	o.t.Helper()
	end := time.After(5 * lateCreate)
	for {
		observed, changed := o.agent.Observed()
		if found(observed) {
			o.t.Fatalf("%s: %v", what, observed)
		}
		select {
		case <-changed:
		case <-end:
			return
		}
	}
}

func ended(h *v1.HostObserved) bool {
	switch find(h, uid).GetCondition() {
	case v1.GuestCondition_GUEST_CONDITION_GONE, v1.GuestCondition_GUEST_CONDITION_FAILED, v1.GuestCondition_GUEST_CONDITION_SENT:
		return true
	}
	return false
}

func TestOrdersForAnotherBootAreRefused(t *testing.T) {
	o := newOutside(t)
	o.bootID = "second"
	o.start()
	w := &v1.HostWanted{Term: 7, Generation: 1, BootId: "first", Guests: []*v1.GuestWanted{guestWish(uid, run, 1)}}
	if err := o.agent.Take(w); !errors.Is(err, machine.ErrStale) {
		t.Errorf("orders for the boot before: %v", err)
	}
	if term, _, err := o.agent.readTerm(); o.agent.guest(uid) != nil || term != 0 || err != nil {
		t.Error("something of them was taken up")
	}
	w.BootId = "second"
	if err := o.agent.Take(w); err != nil {
		t.Error(err)
	}
	o.awaitReady(1)
	if g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_RUNNING); g.BootId != "second" {
		t.Errorf("it began in boot %q", g.BootId)
	}
}

// After the failure, the manager gives the grant to another host. A restarted agent may get the order again, and must not
// start the guest because of that order, even if it could start it now.
func TestAFailedEpochIsNotStartedByARepeatedOrder(t *testing.T) {
	for name, c := range map[string]struct {
		fails, heals func(*outside)
	}{
		"before anything of it existed": {
			func(o *outside) { o.confinement = &v1.Confinement{User: "root", SecurityModel: "apparmor"} },
			func(o *outside) { o.confinement = nil },
		},
		"when it was booted": {
			func(o *outside) {
				o.boot = func(context.Context, domain.Spec) error { return errors.New("no such machine") }
			},
			func(o *outside) { o.boot = nil },
		},
	} {
		t.Run(name, func(t *testing.T) {
			o := newOutside(t)
			c.fails(o)
			stop := o.start()
			o.take(guestWish(uid, run, 1))
			o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_FAILED)
			stop()
			booted := o.count("boot " + uid)
			c.heals(o)
			o.start()
			o.take(guestWish(uid, run, 1))
			o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_FAILED)
			if o.count("boot "+uid) != booted {
				t.Errorf("an epoch that had failed was started: %v", o.log)
			}
		})
	}
}

func TestARecordOfAnEarlierBootIsGone(t *testing.T) {
	o := newOutside(t)
	o.bootID = "first"
	stop := o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	stop()
	o.mu.Lock()
	o.bootID, o.down = "second", true // the hypervisor does not answer yet
	delete(o.domains, uid)
	o.mu.Unlock()
	o.start()
	if g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE); g.BootId != "first" || g.Process {
		t.Errorf("reported %v", g)
	}
	o.mu.Lock()
	o.down = false
	o.mu.Unlock()
	o.events <- domain.Event{}
	o.take(guestWish(uid, run, 1))
	o.await("taken up", func(h *v1.HostObserved) bool { return h.Generation == generation })
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
	if o.count("boot "+uid) != 1 {
		t.Errorf("started again: %v", o.log)
	}
}

// libvirt may carry out a request late. The guest may then run, so its absence proves nothing.
func TestACreateThatEndsLateIsNoEnd(t *testing.T) {
	o := newOutside(t)
	o.boot = func(context.Context, domain.Spec) error { return domain.ErrUnavailable }
	o.creating = true
	stop := o.start()
	o.take(guestWish(uid, run, 1))
	o.await("asked for", func(*v1.HostObserved) bool { return o.count("boot "+uid) == 1 })
	o.never("an end is told while libvirt is at it", ended)
	// A restarted agent does not know more.
	stop()
	lateCreate = time.Minute
	o.start()
	o.take(guestWish(uid, absent, 1))
	o.await("told to end it", func(h *v1.HostObserved) bool { return find(h, uid) != nil })
	o.becomes(uid, domain.Running)
	o.await("it is ended", func(h *v1.HostObserved) bool {
		return find(h, uid) == nil && o.state(uid) == domain.Absent && h.Generation == generation
	})
}

func TestAProcessTableThatCannotBeReadIsNoProofOfAnEnd(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.mu.Lock()
	o.processesErr = errors.New("the process table could not be read whole")
	o.mu.Unlock()
	o.becomes(uid, domain.Absent)
	o.await("the problem", func(h *v1.HostObserved) bool {
		return find(h, uid).GetProcess() && strings.Contains(strings.Join(h.Problems, ";"), "could not be read whole")
	})
	o.never("an end is told", ended)
	o.mu.Lock()
	o.processesErr = nil
	o.mu.Unlock()
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
}

func TestARemovedHostEndsItsGuestsAtOnce(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.agent.Evict()
	o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && o.state(uid) == domain.Absent })
	o.agent.Evict()
	if n := o.count("destroy " + uid); n != 1 {
		t.Errorf("it was ended %d times", n)
	}
}
