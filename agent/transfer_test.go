package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func TestAGuestIsSent(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.migrate = func(context.Context, string) error {
		o.becomes(uid, DomainPaused)
		o.becomes(uid, DomainAbsent)
		return nil
	}
	o.take(guestWish(uid, outgoing, 1))
	g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENT)
	if g.MigrationId != "m" || g.StoppedUnixNs == 0 {
		t.Errorf("reported %v", g)
	}
}

func TestASendThatFailsLeavesTheGuestAndRunResumesIt(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.migrate = func(context.Context, string) error {
		o.becomes(uid, DomainPaused)
		return errors.New("the target died")
	}
	o.tunnelErr = errors.New("reach host there: no route to host")
	o.take(guestWish(uid, outgoing, 1))
	g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SEND_FAILED)
	if !strings.Contains(g.Message, "the target died (reach host there: no route to host)") {
		t.Errorf("message %q", g.Message)
	}
	o.take(guestWish(uid, run, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_RUNNING)
	if o.count("resume "+uid) != 1 {
		t.Errorf("done: %v", o.log)
	}
}

func TestASendIsCancelled(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.migrate = func(ctx context.Context, _ string) error { <-ctx.Done(); return ctx.Err() }
	w := guestWish(uid, outgoing, 1)
	o.take(w)
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENDING)
	w = guestWish(uid, outgoing, 1)
	w.Migration.Cancel = true
	o.take(w)
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SEND_FAILED)
	o.take(guestWish(uid, run, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_RUNNING)
}

func TestASendWhoseAnswerIsLostIsGoneNotSent(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.migrate = func(context.Context, string) error {
		o.becomes(uid, DomainAbsent)
		return ErrUncertain
	}
	o.take(guestWish(uid, outgoing, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
}

// What is sent must not be said to have failed, for then its only copy, the target's, would be ended.
func TestASentGuestHasNotFailedWhileTheHypervisorIsAway(t *testing.T) {
	for name, sendErr := range map[string]error{"confirmed": nil, "not confirmed": ErrUncertain} {
		t.Run(name, func(t *testing.T) {
			o := newOutside(t)
			o.start()
			o.take(guestWish(uid, run, 1))
			o.awaitReady(1)
			sent := make(chan struct{})
			o.migrate = func(context.Context, string) error {
				o.mu.Lock()
				delete(o.domains, uid)
				o.down = true
				o.mu.Unlock()
				o.agent.domains.lost()
				close(sent)
				return sendErr
			}
			o.take(guestWish(uid, outgoing, 1))
			<-sent
			g := o.agent.guest(uid)
			if sendErr == nil {
				o.await("the end of the operation", func(*v1.HostObserved) bool {
					g.mu.Lock()
					defer g.mu.Unlock()
					return g.operation == OperationNone
				})
			} else { // as after sendEndWait
				g.mu.Lock()
				g.operation = OperationNone
				g.mu.Unlock()
			}
			if r := g.report(); r.Condition != v1.GuestCondition_GUEST_CONDITION_SENDING {
				t.Errorf("reported %v", r)
			}
			o.mu.Lock()
			o.down = false
			o.mu.Unlock()
			o.events <- DomainEvent{At: time.Now()}
			if sendErr == nil {
				o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENT)
			} else {
				o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
			}
		})
	}
}

// libvirt's daemon hung in the last phase of a transfer, goes on, and finds that the guest was sent.
func TestASendHasNotFailedWhileTheHypervisorIsStillAtIt(t *testing.T) {
	defer func(was time.Duration) { sendEndWait = was }(sendEndWait)
	sendEndWait = time.Millisecond
	o := newOutside(t)
	stop := o.start()
	defer stop()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.migrate = func(context.Context, string) error {
		o.mu.Lock()
		o.domains[uid], o.busy, o.down = DomainPaused, true, true
		o.mu.Unlock()
		return ErrUncertain
	}
	o.take(guestWish(uid, outgoing, 1))
	o.await("the hypervisor is away", func(h *v1.HostObserved) bool { return len(h.Problems) > 0 })
	time.Sleep(100 * sendEndWait) // for a wait that is too short to be over
	o.mu.Lock()
	o.down = false
	o.mu.Unlock()
	o.events <- DomainEvent{At: time.Now()}
	o.await("the hypervisor is back", func(h *v1.HostObserved) bool { return len(h.Problems) == 0 })
	if g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENDING); g == nil {
		t.Error("not reported")
	}
	o.agent.refresh(t.Context())
	if g := o.agent.guest(uid).report(); g.Condition != v1.GuestCondition_GUEST_CONDITION_SENDING {
		t.Errorf("reported %v", g)
	}
	o.mu.Lock()
	o.busy = false
	o.mu.Unlock()
	o.becomes(uid, DomainAbsent)
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
}

// A report that began before the end of a transfer and is finished after it.
func TestAReportThatIsInterruptedByTheEndOfATransferIsOfOneMoment(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	ended := make(chan struct{})
	o.migrate = func(context.Context, string) error { <-ended; return nil }
	o.take(guestWish(uid, outgoing, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENDING)
	defer close(ended)
	g := o.agent.guest(uid)
	g.mu.Lock()
	reported := make(chan *v1.GuestObserved)
	go func() { reported <- g.report() }()
	time.Sleep(50 * time.Millisecond) // it waits for the lock; a report that has not come so far proves nothing
	o.agent.domains.set(uid, "", DomainAbsent)
	g.operation = OperationNone
	g.mu.Unlock()
	if r := <-reported; r.Condition == v1.GuestCondition_GUEST_CONDITION_SEND_FAILED {
		t.Errorf("reported %v", r)
	}
}

// receive brings an incoming guest to the point where all of it is here.
func receive(o *outside) {
	o.t.Helper()
	o.take(guestWish(uid, incoming, 2))
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_RESERVED)
	o.mu.Lock()
	e, ok := o.expected["m"]
	o.active["m"] = true
	o.mu.Unlock()
	if !ok || e.Source != "there" {
		o.t.Fatalf("the tunnel expects %v", o.expected)
	}
	if err := e.Admit(); err != nil {
		o.t.Fatal(err)
	}
	e.Changed()
	o.becomes(uid, DomainIncoming)
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_RECEIVING)
	o.becomes(uid, DomainPaused)
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_RECEIVED)
}

func TestAReceivedGuestRunsOnlyUnderTheGrant(t *testing.T) {
	o := newOutside(t)
	o.start()
	receive(o)
	if o.count("resume "+uid) != 0 {
		t.Fatalf("before the grant: %v", o.log)
	}
	o.take(guestWish(uid, run, 2))
	o.awaitReady(2)
	route, resume := slices.Index(o.log, "route "+uid), slices.Index(o.log, "resume "+uid)
	if o.count("resume "+uid) != 1 || route < 0 || route > resume {
		t.Errorf("done: %v", o.log)
	}
	if h, _ := o.agent.Observed(); find(h, uid).ResumedUnixNs == 0 {
		t.Error("when it was resumed is not reported")
	}
}

func TestAGuestThatMovedIsReadyUnlessItsAgentStaysSilent(t *testing.T) {
	o := newOutside(t)
	o.start()
	receive(o)
	o.mu.Lock()
	o.mute = true
	o.mu.Unlock()
	o.take(guestWish(uid, run, 2))
	g := o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_RUNNING)
	if !g.Ready {
		t.Error("it goes on and is not taken to be ready")
	}
	keeper := o.agent.guest(uid).identity
	keeper.mu.Lock()
	keeper.trusted = time.Now().Add(-time.Second) // as if its agent had been silent for that long
	keeper.mu.Unlock()
	ready := func(want bool) func(*v1.HostObserved) bool {
		return func(h *v1.HostObserved) bool { return find(h, uid).Ready == want }
	}
	o.await("not ready", ready(false))
	o.mu.Lock()
	o.mute = false
	o.mu.Unlock()
	o.await("ready", ready(true))
	if o.identity.GetEpoch() != 2 {
		t.Errorf("identity: %v", o.identity)
	}
	// One that is started anew has an agent that was never heard of.
	o.mu.Lock()
	o.mute = true
	o.mu.Unlock()
	o.take(guestWish(uid, run, 3))
	if g := o.awaitCondition(uid, 3, v1.GuestCondition_GUEST_CONDITION_RUNNING); g.Ready {
		t.Error("it is ready before its agent has answered")
	}
}

func TestAReceivedGuestOutlivesItsAgent(t *testing.T) {
	o := newOutside(t)
	stop := o.start()
	receive(o)
	stop()
	o.start()
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_RECEIVED)
	o.take(guestWish(uid, run, 2))
	o.awaitReady(2)
}

func TestATransferThatBreaksOffIsGone(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, incoming, 2))
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_RESERVED)
	o.mu.Lock()
	e := o.expected["m"]
	o.active["m"] = true
	o.mu.Unlock()
	if err := e.Admit(); err != nil {
		t.Fatal(err)
	}
	o.becomes(uid, DomainIncoming)
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_RECEIVING)
	o.mu.Lock()
	delete(o.active, "m")
	o.mu.Unlock()
	o.becomes(uid, DomainAbsent)
	e.Changed()
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_GONE)
	if err := e.Admit(); err == nil {
		t.Error("the tunnel would let it in again")
	}
}

func TestAGuestForWhichThereIsNoMemoryIsNotReserved(t *testing.T) {
	o := newOutside(t)
	o.free = 100 << 20
	o.start()
	o.take(guestWish(uid, incoming, 2))
	g := o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_FAILED)
	if !strings.Contains(g.Message, "256 MiB of memory are needed, 100 MiB are available") {
		t.Errorf("message %q", g.Message)
	}
}

func TestAnUnwantedCopyIsTakenAway(t *testing.T) {
	o := newOutside(t)
	o.start()
	receive(o)
	o.take(guestWish(uid, absent, 2))
	o.await("nothing of it", func(h *v1.HostObserved) bool { return find(h, uid) == nil && h.Generation == generation })
	if o.state(uid) != DomainAbsent || len(o.expected) != 0 {
		t.Errorf("left: %v, %v", o.domains, o.expected)
	}
}
