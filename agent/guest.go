package agent

// guest.go - the agent's own state of one guest: sockets, connections, figures. The machine has the rest.

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// guest is the agent's own state of one guest. The acts of a guest run one at a time, except that Prepare, Start and
// Send run concurrently with others.
type guest struct {
	agent          *Agent
	uid, name      string
	log            *slog.Logger
	identity       *identityKeeper
	end            context.CancelFunc
	wantedIdentity *v1.Identity // the identity that the keeper gives the guest

	prepared   prepared // written by Prepare, read by Start, which follows it
	admits     string   // the migration by which the guest comes, or came, in; empty: none, or its connections are closed
	stopExpect func()   // used by AllowIncoming, DisallowIncoming and Forget; nil: no migration is expected
}

// prepared is the result of Prepare.
type prepared struct {
	volume   string // the socket at which the guest's volume is served; empty: it has no volume
	files    ImageFiles
	tap      string
	template string // empty: boot without a template
}

func (a *Agent) newGuest(uid, name string) *guest {
	ctx, end := context.WithCancel(a.ctx)
	g := &guest{agent: a, uid: uid, name: name, log: a.log.With("guest", name), end: end}
	g.identity = newIdentityKeeper(g)
	go g.identity.run(ctx)
	return g
}

// setStep sets the text that tells users what the agent is doing.
func (g *guest) setStep(format string, args ...any) {
	a := g.agent
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.machine.SetStep(time.Now(), g.uid, fmt.Sprintf(format, args...)) {
		a.publishLocked()
	}
}

// identityOf returns the identity to give a guest; nil: none now.
func (a *Agent) identityOf(uid string) *v1.Identity {
	a.mu.Lock()
	defer a.mu.Unlock()
	view, _ := a.machine.Guest(uid)
	return view.Identity
}

// restoreOf returns the id of the restore that brought a guest here from a checkpoint; empty: none did.
func (a *Agent) restoreOf(uid string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	view, _ := a.machine.Guest(uid)
	if view.Record == nil {
		return ""
	}
	return view.Record.Restore
}

// missing reports whether the hypervisor answers and its last listing has no domain of the guest.
func (a *Agent) missing(uid string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	state, current := a.machine.Domain(uid)
	return current && state == domain.Absent
}

// localGuests returns the guests whose addresses this host routes to their taps. Such a guest has the grant for this
// host, or the manager already routes its address here.
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
