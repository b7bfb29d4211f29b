package agent

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// guest is what the agent keeps of one guest beside the machine. Acts on it are carried out one at a time, but Prepare,
// Start and Send run beside others.
type guest struct {
	agent     *Agent
	uid, name string
	log       *slog.Logger
	identity  *identityKeeper
	end       context.CancelFunc
	told      *v1.Identity // what the identity keeper goes by

	prepared   prepared // written by Prepare, read by Start, which follows it
	stopExpect func()   // nil: nothing is expected; of Expect, Unexpect and Forget
}

// prepared is what a preparation has made ready.
type prepared struct {
	files    ImageFiles
	tap      string
	template string // empty: boot plainly
}

func (a *Agent) newGuest(uid, name string) *guest {
	ctx, end := context.WithCancel(a.ctx)
	g := &guest{agent: a, uid: uid, name: name, log: a.log.With("guest", name), end: end}
	g.identity = newIdentityKeeper(g)
	go g.identity.run(ctx)
	return g
}

// setStep says what is being done, for people who wait.
func (g *guest) setStep(format string, args ...any) {
	a := g.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.machine.SetStep(time.Now(), g.uid, fmt.Sprintf(format, args...)) {
		a.publishLocked()
	}
}

// identityOf is what a guest is to be told that it is; nil: nothing now.
func (a *Agent) identityOf(uid string) *v1.Identity {
	a.mu.Lock()
	defer a.mu.Unlock()
	view, _ := a.machine.Guest(uid)
	return view.Identity
}

// missing tells whether the hypervisor answers, and did not list a domain the last time.
func (a *Agent) missing(uid string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	state, current := a.machine.Domain(uid)
	return current && state == domain.Absent
}

// localGuests are those whose addresses are to be routed to their taps: they hold the grant, or the manager
// already routes their address here.
func (a *Agent) localGuests() []machine.Tap {
	here := a.networks.routedHere(a.config.Name)
	a.mu.Lock()
	defer a.mu.Unlock()
	var local []machine.Tap
	for _, g := range a.machine.Guests() {
		if g.Plugged && (g.Wanted.GetRole() == v1.GuestRole_GUEST_ROLE_RUN || here(g.Tap.Address)) {
			local = append(local, g.Tap)
		}
	}
	return local
}
