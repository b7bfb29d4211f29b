package agent

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

func TestAGuestIsSent(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	o.migrate = func(context.Context, string) error {
		o.becomes(uid, domain.Paused)
		o.becomes(uid, domain.Absent)
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
		o.becomes(uid, domain.Paused)
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
		o.becomes(uid, domain.Absent)
		return domain.ErrUnavailable
	}
	o.take(guestWish(uid, outgoing, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
}

// A sent guest must not be reported as failed: the manager would then end its only copy, at the target.
func TestASentGuestHasNotFailedWhileTheHypervisorIsAway(t *testing.T) {
	for name, sendErr := range map[string]error{"confirmed": nil, "not confirmed": domain.ErrUnavailable} {
		t.Run(name, func(t *testing.T) {
			defer func(was time.Duration) { sendEndWait = was }(sendEndWait)
			sendEndWait = time.Millisecond
			o := newOutside(t)
			stop := o.start()
			defer stop()
			o.take(guestWish(uid, run, 1))
			o.awaitReady(1)
			sent := make(chan struct{})
			o.migrate = func(context.Context, string) error {
				o.mu.Lock()
				delete(o.domains, uid)
				o.down = true
				o.mu.Unlock()
				o.agent.feed((*machine.Machine).HypervisorLost)
				close(sent)
				return sendErr
			}
			o.take(guestWish(uid, outgoing, 1))
			<-sent
			if sendErr != nil { // the wait for the hypervisor was cancelled
				w := guestWish(uid, outgoing, 1)
				w.Migration.Cancel = true
				o.take(w)
			}
			o.never("it is said to be anything but on its way", func(h *v1.HostObserved) bool {
				return find(h, uid).GetCondition() != v1.GuestCondition_GUEST_CONDITION_SENDING
			})
			o.mu.Lock()
			o.down = false
			o.mu.Unlock()
			o.events <- domain.Event{At: time.Now()}
			if sendErr == nil {
				o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENT)
			} else {
				o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
			}
		})
	}
}

// libvirt's daemon hangs in the last phase of a transfer, continues, and finds that the guest was sent.
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
		o.domains[uid], o.busy, o.down = domain.Paused, true, true
		o.mu.Unlock()
		return domain.ErrUnavailable
	}
	o.take(guestWish(uid, outgoing, 1))
	o.await("the hypervisor is away", func(h *v1.HostObserved) bool { return len(h.Problems) > 0 })
	time.Sleep(100 * sendEndWait) // a wait that is too short would be over
	o.mu.Lock()
	o.down = false
	o.mu.Unlock()
	o.events <- domain.Event{At: time.Now()}
	o.await("the hypervisor is back", func(h *v1.HostObserved) bool { return len(h.Problems) == 0 })
	if g := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENDING); g == nil {
		t.Error("not reported")
	}
	o.never("it is said to be anything but on its way", func(h *v1.HostObserved) bool {
		return find(h, uid).GetCondition() != v1.GuestCondition_GUEST_CONDITION_SENDING
	})
	o.mu.Lock()
	o.busy = false
	o.mu.Unlock()
	o.becomes(uid, domain.Absent)
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
}

// A transfer whose domain disappears before its call returns is never reported as failed.
func TestATransferThatSucceedsIsNeverSaidToHaveFailed(t *testing.T) {
	o := newOutside(t)
	o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	ended := make(chan struct{})
	o.migrate = func(context.Context, string) error { <-ended; return nil }
	o.take(guestWish(uid, outgoing, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENDING)
	failed := make(chan bool)
	go func() {
		for {
			h, _ := o.agent.Observed()
			switch find(h, uid).GetCondition() {
			case v1.GuestCondition_GUEST_CONDITION_SEND_FAILED:
				failed <- true
				return
			case v1.GuestCondition_GUEST_CONDITION_SENT:
				failed <- false
				return
			}
		}
	}()
	o.becomes(uid, domain.Absent)
	close(ended)
	if <-failed {
		t.Error("it was said to have failed")
	}
}

func TestATransferIsBrokenOffBeforeTheAgentEnds(t *testing.T) {
	o := newOutside(t)
	stop := o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	brokenOff := make(chan struct{})
	o.migrate = func(ctx context.Context, _ string) error {
		<-ctx.Done()
		time.Sleep(100 * time.Millisecond) // libvirt needs time
		close(brokenOff)
		return ctx.Err()
	}
	o.take(guestWish(uid, outgoing, 1))
	o.await("the transfer", func(*v1.HostObserved) bool { return o.count("migrate "+uid) == 1 })
	stop()
	select {
	case <-brokenOff:
	default:
		t.Error("the agent ended first")
	}
}

// receive brings an incoming guest to the point at which it has arrived completely.
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
	o.becomes(uid, domain.Incoming)
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_RECEIVING)
	o.becomes(uid, domain.Paused)
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

// A source may keep its connections open after the guest has arrived. They are closed before the guest runs.
func TestASourceHasNoConnectionToAGuestThatRuns(t *testing.T) {
	o := newOutside(t)
	o.start()
	receive(o)
	o.take(guestWish(uid, run, 2))
	o.awaitReady(2)
	o.mu.Lock()
	defer o.mu.Unlock()
	if drop, resume := slices.Index(o.log, "drop m"), slices.Index(o.log, "resume "+uid); drop < 0 || drop > resume {
		t.Errorf("done: %v", o.log)
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
	keeper.trusted = time.Now().Add(-time.Second) // as if the agent had been silent for that long
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
	// A restarted guest has an agent that has never answered.
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
	o.becomes(uid, domain.Incoming)
	o.awaitCondition(uid, 2, v1.GuestCondition_GUEST_CONDITION_RECEIVING)
	o.mu.Lock()
	delete(o.active, "m")
	o.mu.Unlock()
	o.becomes(uid, domain.Absent)
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
	if o.state(uid) != domain.Absent || len(o.expected) != 0 {
		t.Errorf("left: %v, %v", o.domains, o.expected)
	}
}
