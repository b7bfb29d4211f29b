package agent

// driver.go - feeds the machine, and begins its acts.

import (
	"context"
	"time"

	"watari/agent/machine"
)

// feed gives the machine an input, and begins the acts that the machine returns.
func (a *Agent) feed(input func(m *machine.Machine, now time.Time)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.machine.Clock(a.leases.clock())
	input(a.machine, time.Now())
	a.keepGuestsLocked()
	if a.ctx.Err() != nil {
		return // the agent ends: begin no act
	}
	for _, act := range a.machine.Acts() {
		a.beginLocked(act)
	}
	wait := time.Hour
	if wake := a.machine.Wake(); !wake.IsZero() {
		wait = max(time.Until(wake), 0)
	}
	a.timer.Reset(wait)
	a.publishLocked()
}

// keepGuestsLocked makes a.guests have exactly the guests that the machine knows.
func (a *Agent) keepGuestsLocked() {
	known := map[string]bool{}
	for _, view := range a.machine.Guests() {
		known[view.UID] = true
		g := a.guests[view.UID]
		if g != nil && g.name == "" && view.Name != "" {
			g.end() // a guest without a name has only had its record read
			g = nil
		}
		if g == nil {
			g = a.newGuest(view.UID, view.Name)
			a.guests[view.UID] = g
		}
		if g.wantedIdentity != view.Identity {
			g.wantedIdentity = view.Identity
			g.identity.expect(view.Identity)
		}
	}
	for uid, g := range a.guests {
		if !known[uid] {
			g.end()
			delete(a.guests, uid)
		}
	}
}

// beginLocked begins an act. Acts run concurrently.
func (a *Agent) beginLocked(act machine.Act) {
	switch act.Kind {
	case machine.ApplyOrders:
		a.applyOrders(act.Orders)
		return
	case machine.AnswerAdmission:
		if answer := a.waiting[act.Connection]; answer != nil {
			answer <- act.Err // never blocks: the channel has capacity
			delete(a.waiting, act.Connection)
		}
		return
	case machine.Interrupt:
		if cut := a.running[act.Of]; cut != nil {
			cut()
		}
		return
	}
	ctx, cut := context.WithCancel(a.ctx)
	a.running[act.ID] = cut
	g := a.guests[act.Guest]
	a.acting.Add(1)
	go func() {
		defer a.acting.Done()
		defer cut()
		begun := time.Now()
		result := a.carryOut(ctx, g, act)
		a.logAct(g, act, result, time.Since(begun))
		a.feed(func(m *machine.Machine, now time.Time) {
			delete(a.running, act.ID)
			m.Ended(now, act.ID, result)
		})
	}()
}

func (a *Agent) logAct(g *guest, act machine.Act, result machine.Result, took time.Duration) {
	log, attributes := a.log, []any{"act", act.Kind, "took", took}
	if g != nil {
		log = g.log
	}
	if r := act.Record; r != nil {
		attributes = append(attributes, "phase", r.Phase, "epoch", r.Epoch, "outcome", r.Outcome)
	}
	if act.Term != 0 {
		attributes = append(attributes, "term", act.Term)
	}
	switch {
	case result.Err == nil:
		log.Debug("acted", attributes...)
	case act.Kind == machine.List || act.Kind == machine.ReadTerm || result.Cut:
		// The first two are retried every second or two, and the report shows their cause as a problem.
		log.Debug("an act failed", append(attributes, "error", result.Err)...)
	default:
		log.Warn("an act failed", append(attributes, "error", result.Err)...)
	}
}

// admit asks the machine whether the tunnel may admit a connection of a transfer. It returns nil when the record that admits
// it is on disk.
func (a *Agent) admit(uid, migration string) error {
	answer := make(chan error, 1)
	a.feed(func(m *machine.Machine, now time.Time) {
		a.connections++
		a.waiting[a.connections] = answer
		m.Admit(now, uid, migration, a.connections)
	})
	select {
	case err := <-answer:
		return err
	case <-a.ctx.Done():
		return a.ctx.Err()
	}
}

// tunnelChanged tells the machine whether a transfer's tunnel is open. It reads the tunnel's state under the lock, so
// that the machine's last input is the newest state.
func (a *Agent) tunnelChanged(uid, migration string) {
	a.feed(func(m *machine.Machine, now time.Time) { m.Tunnel(now, uid, migration, a.tunnels.Active(migration)) })
}
