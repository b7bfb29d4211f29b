package main

// guest.go - a simulated guest on one host: its start, moves and end.

import (
	"math/rand/v2"
	"time"

	v1 "watari/api/watariv1"
)

// guest is a copy of a guest on a host, with one epoch.
type guest struct {
	uid, name, cluster string
	epoch              uint64
	condition          v1.GuestCondition
	ready, ending      bool
	migration          string // uid of its current move
	stopped, resumed   int64  // Unix time, ns
	begun              time.Time
}

func (g *guest) report(boot string) *v1.GuestObserved {
	o := &v1.GuestObserved{
		Uid: g.uid, Name: g.name, Epoch: g.epoch, Condition: g.condition, Ready: g.ready, MigrationId: g.migration, BootId: boot,
		StoppedUnixNs: g.stopped, ResumedUnixNs: g.resumed,
	}
	switch g.condition {
	case v1.GuestCondition_GUEST_CONDITION_RUNNING, v1.GuestCondition_GUEST_CONDITION_SENDING,
		v1.GuestCondition_GUEST_CONDITION_RECEIVING, v1.GuestCondition_GUEST_CONDITION_RECEIVED:
		o.Process = true
		o.CpuTimeNs, o.MemoryBytes = uint64(time.Since(g.begun)), 200<<20+rand.Uint64N(50<<20)
	}
	return o
}

// setReady updates the fleet's count of ready guests.
func (h *host) setReady(g *guest, ready bool) {
	if ready != g.ready {
		g.ready = ready
		h.fleet.ready.Add(map[bool]int64{true: 1, false: -1}[ready])
	}
}

// after changes a guest later, if it still exists with the same epoch.
func (h *host) after(d time.Duration, g *guest, change func()) {
	time.AfterFunc(d*3/4+rand.N(d/2), func() {
		h.mu.Lock()
		if h.guests[g.uid] == g {
			change()
		}
		h.mu.Unlock()
		h.changed()
	})
}

// order carries out the order for one guest. The caller holds h.mu.
func (h *host) order(w *v1.GuestWanted) {
	g := h.guests[w.Uid]
	switch w.Role {
	case v1.GuestRole_GUEST_ROLE_RUN:
		h.run(w, g)
	case v1.GuestRole_GUEST_ROLE_ABSENT:
		if g != nil && g.epoch <= w.Epoch && !g.ending {
			g.ending = true
			h.setReady(g, false)
			h.after(endTime, g, func() { delete(h.guests, g.uid) })
		}
	case v1.GuestRole_GUEST_ROLE_INCOMING:
		if g != nil && g.epoch >= w.Epoch {
			return
		}
		g = h.begin(w)
		h.after(reserveTime, g, func() { g.condition = v1.GuestCondition_GUEST_CONDITION_RESERVED })
	case v1.GuestRole_GUEST_ROLE_OUTGOING:
		if g != nil && g.epoch == w.Epoch && g.condition == v1.GuestCondition_GUEST_CONDITION_RUNNING {
			h.send(w, g)
		}
	}
}

// begin makes a new copy.
func (h *host) begin(w *v1.GuestWanted) *guest {
	if old := h.guests[w.Uid]; old != nil {
		h.setReady(old, false)
	}
	g := &guest{uid: w.Uid, name: w.Name, cluster: w.Cluster, epoch: w.Epoch, condition: v1.GuestCondition_GUEST_CONDITION_STARTING,
		migration: w.GetMigration().GetId(), begun: time.Now()}
	h.guests[w.Uid] = g
	return g
}

func (h *host) run(w *v1.GuestWanted, g *guest) {
	switch {
	case g == nil || g.epoch < w.Epoch:
		g = h.begin(w)
		h.fleet.told(w.Cluster, w.Uid)
		h.after(startTime, g, func() {
			g.condition = v1.GuestCondition_GUEST_CONDITION_RUNNING
			h.after(readyTime, g, func() { h.setReady(g, !g.ending) })
		})
	case g.epoch == w.Epoch && g.condition == v1.GuestCondition_GUEST_CONDITION_RECEIVED && g.resumed == 0:
		g.resumed = time.Now().UnixNano()
		h.after(resumeTime, g, func() {
			g.condition = v1.GuestCondition_GUEST_CONDITION_RUNNING
			h.setReady(g, !g.ending)
		})
	}
}

// send moves a guest's memory to the host that the order names.
func (h *host) send(w *v1.GuestWanted, g *guest) {
	g.condition, g.migration = v1.GuestCondition_GUEST_CONDITION_SENDING, w.Migration.GetId()
	target, migration := h.fleet.names[w.Migration.GetTargetHost()], g.migration
	go func() { // avoids a deadlock: the target has its own lock and may be sending to this host
		target.receive(g.uid, migration, v1.GuestCondition_GUEST_CONDITION_RECEIVING)
		time.Sleep(transferTime*3/4 + rand.N(transferTime/2))
		target.receive(g.uid, migration, v1.GuestCondition_GUEST_CONDITION_RECEIVED)
		h.mu.Lock()
		if h.guests[g.uid] == g {
			g.condition, g.stopped = v1.GuestCondition_GUEST_CONDITION_SENT, time.Now().UnixNano()
			h.setReady(g, false)
		}
		h.mu.Unlock()
		h.changed()
	}()
}

// receive sets the condition of the copy that a move has brought to this host.
func (h *host) receive(uid, migration string, condition v1.GuestCondition) {
	h.mu.Lock()
	if g := h.guests[uid]; g != nil && g.migration == migration {
		g.condition = condition
	}
	h.mu.Unlock()
	h.changed()
}
