package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	v1 "watari/api/watariv1"
)

// mark orders what a manager wants: by term, then by generation.
type mark struct{ term, generation uint64 }

func (m mark) before(n mark) bool {
	return m.term < n.term || m.term == n.term && m.generation < n.generation
}

// guest is one guest on this host. One goroutine (run) owns its record and acts; long acts (operations) run
// beside it, at most one at a time.
type guest struct {
	agent    *Agent
	uid      string
	log      *slog.Logger
	wake     chan struct{}
	stop     context.CancelFunc
	stopped  chan struct{}
	identity *identityKeeper

	mu        sync.Mutex
	name      string
	wanted    *v1.GuestWanted
	wantedAt  mark
	seen      mark // the latest wish that a step was taken for
	record    *Record
	damaged   bool
	unread    error // why the record cannot be read now
	late      bool  // a create whose outcome is not known may still come true
	operation Operation
	upcoming  Operation // is about to begin: its record is being written
	interrupt context.CancelFunc
	ended     chan struct{} // closed when the operation is over
	prepared  *prepared
	plugged   bool
	failure   Failure
	sendDone  bool
	backoff   time.Time // nothing that failed is tried again before
	delay     time.Duration
	refused   string // why the wish is not followed
	trouble   string // why the last act failed
	notes     []string
	step      string
	progress  *v1.MigrationProgress
	stoppedAt time.Time // by a send
	resumedAt time.Time
	resuming  bool
	expect    func() // ends the expectation of an incoming migration
	expected  string
}

// prepared is what a preparation has made ready.
type prepared struct {
	epoch    uint64
	files    ImageFiles
	tap      string
	template string // empty: boot plainly
}

func (a *Agent) newGuest(uid, name string, record *Record, damaged bool, unread error) *guest {
	ctx, stop := context.WithCancel(a.ctx)
	g := &guest{agent: a, uid: uid, log: a.log.With("guest", name), wake: make(chan struct{}, 1), stop: stop,
		stopped: make(chan struct{}), record: record, damaged: damaged, unread: unread, name: name}
	g.plugged = record != nil && record.Phase != PhaseEnded // by an earlier agent
	if record != nil && record.Phase == PhaseSending {
		g.upcoming = OperationSending // until adopt knows better
	}
	g.identity = newIdentityKeeper(g)
	go g.identity.run(ctx)
	go g.run(ctx)
	return g
}

// want replaces the wish. The caller wakes the guest afterwards.
func (g *guest) want(w *v1.GuestWanted, at mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.wanted.GetEpoch() != w.GetEpoch() || g.wanted.GetRole() != w.GetRole() {
		g.backoff, g.delay = time.Time{}, 0
	}
	g.wanted, g.wantedAt = w, at
	if w.GetRole() == v1.GuestRole_GUEST_ROLE_UNSPECIFIED || w.GetRole() == v1.GuestRole_GUEST_ROLE_ABSENT {
		g.notes = nil // how it was started matters to nobody any more
	}
	if w != nil {
		g.log.Debug("wanted", "role", RoleName(w.Role), "epoch", w.Epoch, "generation", at.generation)
	}
}

func (g *guest) run(ctx context.Context) {
	defer close(g.stopped)
	if !g.awaitRecord(ctx) {
		return
	}
	g.adopt(ctx)
	timer := time.NewTimer(time.Hour)
	for {
		g.reconcile(ctx)
		g.mu.Lock()
		wait := time.Hour
		if !g.backoff.IsZero() {
			wait = max(time.Until(g.backoff), 0)
		}
		g.mu.Unlock()
		timer.Reset(wait)
		select {
		case <-ctx.Done():
			g.mu.Lock()
			ended := g.ended
			g.mu.Unlock()
			if ended != nil { // a transfer that is given up is broken off properly
				select {
				case <-ended:
				case <-time.After(3 * time.Second):
				}
			}
			return
		case <-g.wake:
		case <-timer.C:
			g.mu.Lock()
			if !time.Now().Before(g.backoff) {
				g.backoff = time.Time{}
			}
			g.mu.Unlock()
		}
	}
}

// readAgainEvery is how often a record that could not be read is tried again.
const readAgainEvery = time.Second

// awaitRecord reads a record that could not be read, again and again; false: ctx ended first.
func (g *guest) awaitRecord(ctx context.Context) bool {
	for {
		g.mu.Lock()
		unread := g.unread
		g.mu.Unlock()
		if unread == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-time.After(readAgainEvery):
		}
		r, err := g.agent.records.LoadOne(g.uid)
		g.mu.Lock()
		switch {
		case errors.Is(err, ErrUnreadable):
			g.unread = err
		case err != nil:
			g.notes, g.unread = []string{err.Error()}, nil
			g.damaged = g.agent.records.Damaged(g.uid)
		default:
			g.record, g.unread = r, nil
			g.plugged = r != nil && r.Phase != PhaseEnded
		}
		g.mu.Unlock()
		g.agent.publish()
	}
}

// reconcile steps and acts until nothing is left to do now.
func (g *guest) reconcile(ctx context.Context) {
	for ctx.Err() == nil {
		o, at := g.observe()
		d := Step(o)
		g.mu.Lock()
		if o.Domain != DomainUnknown {
			g.seen = at
		}
		changed := g.refused != d.Problem
		g.refused = d.Problem
		g.mu.Unlock()
		if changed && d.Problem != "" {
			g.log.Warn("not followed", "reason", d.Problem)
		}
		if len(d.Actions) == 0 || o.Backoff {
			break
		}
		if err := g.act(ctx, o, d.Actions); err != nil && ctx.Err() == nil {
			g.failed(err)
			break
		}
		g.mu.Lock()
		g.trouble, g.delay = "", 0
		g.mu.Unlock()
		g.agent.publish()
	}
	g.expectIncoming()
	g.identity.poke()
	g.agent.publish()
}

// failed notes why an act failed and when to try again.
func (g *guest) failed(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.delay = min(max(2*g.delay, 500*time.Millisecond), 10*time.Second)
	g.backoff = time.Now().Add(g.delay)
	g.trouble = err.Error()
	g.log.Error("act", "error", err, "again_in", g.delay)
}

// observe is what the next step depends on.
func (g *guest) observe() (Observed, mark) {
	g.mu.Lock()
	defer g.mu.Unlock()
	o, _ := g.observedLocked()
	if o.Stale {
		o.Domain = DomainUnknown
	}
	return o, g.wantedAt
}

// observedLocked looks at the domain after it has been made sure that no operation ends meanwhile: beside an older state
// of the domain, one that has just been sent would look like one that is here still.
func (g *guest) observedLocked() (Observed, DomainInfo) {
	info, current := g.agent.domains.get(g.uid)
	o := Observed{Host: g.agent.config.Name, Wanted: g.wanted, Record: g.record, Damaged: g.damaged,
		Domain: info.State, Stale: !current, Operation: g.operation, Failure: g.failure, SendDone: g.sendDone,
		Backoff: !g.backoff.IsZero(), Unread: g.unread}
	switch {
	case g.late && o.Domain == DomainAbsent:
		o.Domain = DomainStarting
	case current:
		g.late = false // it came
	}
	boot := g.agent.config.Info.GetBootId()
	o.EarlierBoot = g.record != nil && g.record.BootID != "" && boot != "" && g.record.BootID != boot
	if g.prepared != nil {
		o.Prepared = g.prepared.epoch
	}
	if g.record != nil && (g.record.Phase == PhaseReserved || g.record.Phase == PhaseReceiving) {
		o.Tunnel = g.agent.tunnels.Active(g.record.Migration)
	}
	return o, info
}

// report is what the manager is told; nil: nothing of the guest is here.
func (g *guest) report() *v1.GuestObserved {
	ready := g.identity.ready()
	g.mu.Lock()
	defer g.mu.Unlock()
	o, info := g.observedLocked()
	if o.Operation == OperationNone {
		o.Operation = g.upcoming
	}
	r, ok := Describe(o)
	if !ok {
		return nil
	}
	if r.Condition == v1.GuestCondition_GUEST_CONDITION_RESERVED && g.expected == "" {
		r.Condition = v1.GuestCondition_GUEST_CONDITION_STARTING // the tunnel would refuse it yet
	}
	observed := &v1.GuestObserved{Uid: g.uid, Name: g.name, Epoch: r.Epoch, Condition: r.Condition, Message: r.Message, BootId: g.record.bootID(),
		MigrationId: r.Migration, CpuTimeNs: info.CPUTimeNS, MemoryBytes: info.MemoryBytes, Step: g.step, OutOfMemory: g.identity.outOfMemory()}
	switch r.Condition {
	case v1.GuestCondition_GUEST_CONDITION_RUNNING, v1.GuestCondition_GUEST_CONDITION_SENDING,
		v1.GuestCondition_GUEST_CONDITION_SEND_FAILED:
		observed.Ready = ready
	}
	if observed.Message == "" {
		observed.Message = g.trouble
	}
	if r.Migration != "" {
		observed.Progress = g.progress
	}
	if r.Condition == v1.GuestCondition_GUEST_CONDITION_GONE && g.record != nil {
		observed.LastLines = g.record.LastLines
	}
	if !g.stoppedAt.IsZero() {
		observed.StoppedUnixNs = g.stoppedAt.UnixNano()
	}
	if !g.resumedAt.IsZero() {
		observed.ResumedUnixNs = g.resumedAt.UnixNano()
	}
	return observed
}

// problems are for the host's list.
func (g *guest) problems() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	list := append([]string(nil), g.notes...)
	if g.unread != nil {
		list = append(list, g.unread.Error())
	}
	if g.refused != "" {
		list = append(list, g.refused)
	}
	if g.trouble != "" {
		list = append(list, fmt.Sprintf("guest %s: %s", g.name, g.trouble))
	}
	return list
}

// note adds a line to the host's problems, once.
func (g *guest) note(format string, a ...any) {
	line := fmt.Sprintf("guest %s: ", g.name) + fmt.Sprintf(format, a...)
	g.log.Warn(line)
	g.mu.Lock()
	g.notes = []string{line}
	g.mu.Unlock()
}

// setStep says what is being done, for people who wait.
func (g *guest) setStep(format string, a ...any) {
	step := fmt.Sprintf(format, a...)
	g.mu.Lock()
	changed := g.step != step
	g.step = step
	g.mu.Unlock()
	if changed {
		g.agent.publish()
	}
}

// forksLike tells whether the guest is wanted here, forked from the template that guests like spec are forked from.
func (g *guest) forksLike(spec Spec) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	w := g.wanted
	return w.GetRole() == v1.GuestRole_GUEST_ROLE_RUN && !w.NoFork && w.GetImage().GetDigest() == spec.ImageDigest &&
		w.GetShape().GetVcpus() == spec.VCPUs && w.GetShape().GetMemoryBytes() == spec.MemoryBytes
}

// idle tells whether the guest's goroutines can end: nothing is wanted of it and nothing of it is here.
func (g *guest) idle() bool {
	info, current := g.agent.domains.get(g.uid)
	g.mu.Lock()
	defer g.mu.Unlock()
	return current && info.State == DomainAbsent && g.wanted == nil && g.operation == OperationNone && !g.plugged && g.unread == nil &&
		(g.record == nil || g.record.Outcome == OutcomeForgotten)
}

// begin runs a long act beside the guest's goroutine.
func (g *guest) begin(ctx context.Context, kind Operation, work func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	g.mu.Lock()
	g.operation, g.interrupt, g.ended, g.step = kind, cancel, ended, ""
	g.mu.Unlock()
	go func() {
		defer close(ended)
		defer cancel()
		err := work(ctx)
		g.mu.Lock()
		g.operation, g.interrupt, g.ended, g.step = OperationNone, nil, nil, ""
		g.mu.Unlock()
		if err != nil && !errors.Is(err, context.Canceled) {
			g.log.Warn("operation failed", "operation", kind, "error", err)
		}
		poke(g.wake)
	}()
}

// local is the guest as the overlay is to route it to its tap; false: not now.
func (g *guest) local() (NetworkGuest, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if !g.plugged {
		return NetworkGuest{}, false
	}
	return g.networkGuestLocked(), true
}

func (g *guest) networkGuestLocked() NetworkGuest {
	n := NetworkGuest{UID: g.uid}
	if id := g.wanted.GetIdentity(); id != nil {
		n.Cluster, n.Address, n.MAC, n.Prefix = g.wanted.Cluster, id.Address, id.Mac, id.Prefix
	} else if r := g.record; r != nil {
		n.Cluster, n.Address, n.MAC, n.Prefix = r.Cluster, r.Address, r.MAC, r.Prefix
	}
	return n
}

func (g *guest) role() v1.GuestRole {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.wanted.GetRole()
}
