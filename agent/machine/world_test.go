package machine

// world_test.go - a small world around a machine: a disk, a hypervisor, and acts that are carried out one by one. It fails
// the test as soon as an act breaks a rule.

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// world outlives machines: crash puts another one in its place.
type world struct {
	t   *testing.T
	m   *Machine
	now time.Time

	boot    string
	term    uint64
	disk    map[string]*Record
	domains map[string]domain.State
	acts    []Act           // returned by Acts, and not ended
	started map[string]bool // "uid epoch"
	over    map[string]bool // "uid epoch": the machine knows that its end is on disk
	done    []string        // acts that were done, in order

	landed     bool  // the last record is on disk, though its write failed
	unforked   bool  // the template cannot be restored
	full       bool  // the disk accepts no writes
	unreadable bool  // no record can be read
	down       error // the hypervisor does not answer
	fails      map[Kind]Result
	creating   []string
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, now: time.Unix(1_000_000, 0), boot: "b1", disk: map[string]*Record{}, domains: map[string]domain.State{},
		started: map[string]bool{}, over: map[string]bool{}, fails: map[Kind]Result{}}
	w.crash()
	return w
}

// crash replaces the machine by a new one. The old machine's acts are never ended.
func (w *world) crash() {
	w.acts, w.landed = nil, false
	loaded := Loaded{Term: w.term, Records: map[string]*Record{}}
	if !w.unreadable {
		maps.Copy(loaded.Records, w.disk)
	}
	for _, r := range loaded.Records {
		w.note(r)
	}
	w.m = New(w.now, Config{Host: "here", BootID: w.boot}, loaded)
	w.collect()
}

// note records that an epoch has ended.
func (w *world) note(r *Record) {
	if r.Phase == PhaseEnded {
		w.over[fmt.Sprint(r.UID, " ", r.Epoch)] = true
	}
}

// collect fetches the machine's new acts, and checks each.
func (w *world) collect() []Act {
	acts := w.m.Acts()
	for _, a := range acts {
		if why := w.unsafe(a); why != "" {
			w.t.Errorf("%s: %s; done: %s", actText(a), why, strings.Join(w.done, ", "))
		}
	}
	w.acts = append(w.acts, acts...)
	return acts
}

// unsafe returns the rule that an act breaks.
func (w *world) unsafe(a Act) string {
	r := w.disk[a.Guest]
	switch a.Kind {
	case Start:
		if r == nil || r.Phase != PhaseStarted || r.Epoch != a.Wanted.Epoch {
			return "started before its record is on disk"
		}
		if key := fmt.Sprint(a.Guest, " ", r.Epoch); w.started[key] {
			return "an epoch is started twice"
		}
	case Restore:
		if r == nil || r.Phase != PhaseReserved || r.Epoch != a.Wanted.Epoch {
			return "restored before its record is on disk"
		}
	case Resume:
		if r == nil || r.Phase != PhaseStarted {
			return "resumed before its record is on disk"
		}
	case Send:
		if r == nil || r.Phase != PhaseSending {
			return "sent before its record is on disk"
		}
	case AnswerAdmission:
		if a.Err == nil && !w.landed && (r == nil || r.Phase != PhaseReceiving && r.Phase != PhaseReceived) {
			return "a byte is let in before that is on disk"
		}
	case AllowIncoming:
		if a.Migration == "" {
			return "any transfer would be admitted"
		}
	case WriteRecord:
		if known := w.m.guests[a.Guest].record; known != nil && a.Record.Epoch < known.Epoch {
			return "an older epoch replaces a newer one"
		}
		if w.over[fmt.Sprint(a.Guest, " ", a.Record.Epoch)] && a.Record.Phase != PhaseEnded {
			return "an ended epoch comes to life"
		}
	case ApplyOrders:
		if a.Orders.Term > w.term {
			return "orders are in force before their term is on disk"
		}
	}
	return ""
}

// do carries out an act.
func (w *world) do(a Act) Result {
	w.done = append(w.done, actText(a))
	if r, fails := w.fails[a.Kind]; fails {
		return r
	}
	switch a.Kind {
	case KeepTerm:
		if w.full {
			return Result{Err: syscall.ENOSPC}
		}
		w.term = a.Term
	case ReadTerm:
		if w.unreadable {
			return Result{Err: errors.New("it cannot be read now")}
		}
		return Result{Term: w.term}
	case List:
		r := Result{Err: w.down, Creating: w.creating}
		for _, uid := range slices.Sorted(maps.Keys(w.domains)) {
			r.Domains = append(r.Domains, domain.Info{UID: uid, Name: uid, State: w.domains[uid]})
		}
		return r
	case ReadRecord:
		if w.unreadable {
			return Result{Err: errors.New("it cannot be read now")}
		}
		return Result{Record: w.disk[a.Guest]}
	case WriteRecord:
		if w.full {
			return Result{Err: syscall.ENOSPC}
		}
		w.disk[a.Guest], w.landed = a.Record, false
		w.note(a.Record)
	case Explain:
		return Result{Message: a.Record.Message + ": explained"}
	case Start:
		if w.unforked && !a.Plain {
			return Result{Err: errors.New("damaged"), Unforked: true}
		}
		if _, here := w.domains[a.Guest]; here {
			return Result{Err: errors.New("there is one of that name")}
		}
		w.started[fmt.Sprint(a.Guest, " ", a.Wanted.Epoch)] = true
		w.domains[a.Guest] = domain.Running
	case Restore:
		if _, here := w.domains[a.Guest]; here {
			return Result{Err: errors.New("there is one of that name")}
		}
		w.domains[a.Guest] = domain.Paused
	case Resume:
		w.domains[a.Guest] = domain.Running
	case Destroy, Send:
		delete(w.domains, a.Guest)
	case Forget:
		return Result{Unplugged: true}
	}
	return Result{}
}

// step carries out the oldest act and ends it; false: there is none.
func (w *world) step() bool {
	if len(w.acts) == 0 {
		return false
	}
	w.end(w.acts[0])
	return true
}

func (w *world) end(a Act) {
	w.acts = slices.DeleteFunc(w.acts, func(b Act) bool { return b.ID == a.ID })
	w.now = w.now.Add(time.Millisecond)
	w.m.Ended(w.now, a.ID, w.do(a))
	w.collect()
}

// run carries out acts until none is left, and advances time up to a limit.
func (w *world) run(limit time.Duration) {
	end := w.now.Add(limit)
	for n := 0; ; n++ {
		if n > 20000 {
			w.t.Fatalf("it goes on for ever, lastly with %v", w.done[len(w.done)-10:])
		}
		if w.step() {
			continue
		}
		wake := w.m.Wake()
		if wake.IsZero() || wake.After(end) {
			return
		}
		if wake.After(w.now) {
			w.now = wake
		}
		w.m.Tick(w.now)
		w.collect()
	}
}

func (w *world) take(orders *v1.HostWanted) error {
	err := w.m.Take(w.now, orders)
	w.collect()
	return err
}

// becomes changes a domain as the hypervisor would.
func (w *world) becomes(uid string, state domain.State) {
	w.domains[uid] = state
	if state == domain.Absent {
		delete(w.domains, uid)
	}
	w.m.DomainEvent(w.now, uid, w.now)
	w.collect()
}

// condition returns the host's report of a guest.
func (w *world) condition(uid string) string {
	for _, g := range w.m.Report(w.now).Guests {
		if g.Uid == uid {
			return fmt.Sprint(g.Epoch, " ", strings.TrimPrefix(g.Condition.String(), "GUEST_CONDITION_"))
		}
	}
	return "nothing"
}

func actText(a Act) string {
	text := string(a.Kind)
	if a.Guest != "" {
		text += " " + strings.TrimLeft(a.Guest, "0")
	}
	switch {
	case a.Kind == KeepTerm:
		text += fmt.Sprint(" ", a.Term)
	case a.Kind == WriteRecord:
		text += " " + recordName(a.Record)
		if a.Vital {
			text += ", vital"
		}
	case a.Kind == Busy && a.Patience != "":
		text += " " + string(a.Patience)
	case a.Plain:
		text += " plain"
	case a.Kind == List && len(a.Late) > 0:
		text += " late"
	case a.Kind == AnswerAdmission && a.Err != nil:
		text += fmt.Sprintf(" refused: %v", a.Err)
	}
	return text
}

const guestUID = "00000001"

func orders(generation uint64, guests ...*v1.GuestWanted) *v1.HostWanted {
	return &v1.HostWanted{Term: 1, Generation: generation, Guests: guests}
}

func wish(role v1.GuestRole, epoch uint64) *v1.GuestWanted {
	w := &v1.GuestWanted{Uid: guestUID, Name: "md-1", Cluster: "md", Role: role, Epoch: epoch}
	if role == incoming || role == outgoing {
		w.Migration = &v1.MigrationOrder{Id: "m", SourceHost: "there", TargetHost: "elsewhere"}
	}
	return w
}

// restoreWish returns orders to restore a guest from a checkpoint.
func restoreWish(epoch uint64) *v1.GuestWanted {
	w := wish(run, epoch)
	w.Role, w.Restore = incoming, &v1.RestoreOrder{Id: "r", CheckpointId: "c"}
	return w
}
