package machine

import (
	"errors"
	"strings"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

// ofTerm returns orders of a term.
func ofTerm(term uint64, id string, revision int64) *v1.HostWanted {
	w := &v1.HostWanted{Term: term, Generation: uint64(revision)}
	if id != "" {
		w.Stamp = &v1.Stamp{Term: term, Id: id, Revision: revision}
	}
	return w
}

// writes returns the acts that write a term.
func writes(m *Machine) (acts []Act) {
	for _, a := range m.Acts() {
		if a.Kind == KeepTerm {
			acts = append(acts, a)
		}
	}
	return acts
}

// write returns the only act that writes a term now.
func write(t *testing.T, m *Machine) Act {
	t.Helper()
	acts := writes(m)
	if len(acts) != 1 {
		t.Fatalf("%d writes of a term at once: %v", len(acts), acts)
	}
	return acts[0]
}

var termTime = time.Unix(1_000_000, 0)

func shown(m *Machine) *v1.Stamp { return m.Report(termTime).Stamp }

func TestTheLatestStampIsShownAndWritten(t *testing.T) {
	m := New(termTime, Config{Host: "here"}, Loaded{Term: 4})
	if err := m.Take(termTime, ofTerm(5, "x", 10)); err != nil {
		t.Fatal(err)
	}
	a := write(t, m)
	if a.Term != 5 || a.Stamp.GetRevision() != 10 || shown(m) != nil {
		t.Fatalf("%v; shown before it is on disk: %v", a, shown(m))
	}
	// A newer stamp of the term comes during the write. One write is under way at a time.
	m.Take(termTime, ofTerm(5, "x", 20))
	if len(writes(m)) > 0 {
		t.Error("two writes at once: the older one could overwrite the newer one")
	}
	m.Ended(termTime, a.ID, Result{})
	if b := write(t, m); b.Term != 5 || b.Stamp.GetRevision() != 20 || shown(m).GetRevision() != 20 {
		t.Errorf("%v, shown %v", b, shown(m))
	}
	// A failure to write a stamp stops no orders, and does not delay a newer term.
	m = New(termTime, Config{Host: "here"}, Loaded{Term: 5, Stamp: ofTerm(5, "x", 20).Stamp})
	m.Take(termTime, ofTerm(5, "x", 30))
	a = write(t, m)
	if shown(m).GetRevision() != 30 || m.taken.generation != 30 {
		t.Error("orders wait for a stamp of their term")
	}
	m.Take(termTime, ofTerm(6, "y", 40))
	if len(writes(m)) > 0 {
		t.Error("the new term is written beside the stamp of the old one")
	}
	m.Ended(termTime, a.ID, Result{Err: errors.New("no space")})
	if a = write(t, m); a.Term != 6 || m.taken.term != 5 {
		t.Error(a, m.taken)
	}
	m.Ended(termTime, a.ID, Result{})
	if m.taken.term != 6 || shown(m).GetId() != "y" {
		t.Error(m.taken, shown(m))
	}
}

func TestOrdersOfAnotherTermOfTheSameNumberAreRefused(t *testing.T) {
	begin := func() *Machine {
		return New(termTime, Config{Host: "here"}, Loaded{Term: 5, Stamp: ofTerm(5, "mine", 10).Stamp})
	}
	for name, c := range map[string]struct {
		orders *v1.HostWanted
		says   []string // empty: the orders are taken
	}{
		"another id":       {ofTerm(5, "theirs", 20), []string{"term 5 (theirs)", "term 5 (mine)"}},
		"no stamp":         {ofTerm(5, "", 20), []string{"without a stamp", "term 5 (mine)"}},
		"a lower term":     {ofTerm(4, "x", 20), []string{"term 4", "term 5"}},
		"the same":         {ofTerm(5, "mine", 20), nil},
		"a higher term":    {ofTerm(6, "theirs", 20), nil},
		"an old manager's": {ofTerm(6, "", 20), nil},
	} {
		m := begin()
		err := m.Take(termTime, c.orders)
		if errors.Is(err, ErrStale) != (len(c.says) > 0) {
			t.Errorf("%s: %v", name, err)
		}
		for _, text := range c.says {
			if problems := strings.Join(m.Report(termTime).Problems, "\n"); !strings.Contains(problems, text) {
				t.Errorf("%s: %q is not among the problems: %s", name, text, problems)
			}
		}
	}
	// Also orders of a term whose write is under way.
	m := begin()
	m.Take(termTime, ofTerm(6, "first", 20))
	if err := m.Take(termTime, ofTerm(6, "second", 30)); !errors.Is(err, ErrStale) {
		t.Error(err)
	}
	// An agent of a version without stamps took orders of the same term.
	m = New(termTime, Config{Host: "here"}, Loaded{Term: 5})
	if err := m.Take(termTime, ofTerm(5, "mine", 10)); err != nil || shown(m).GetId() != "mine" {
		t.Error(err, shown(m))
	}
}

// reread makes a machine read its term again, and sets the result.
func reread(t *testing.T, m *Machine, now time.Time, r Result) {
	t.Helper()
	m.Acts()
	if wake := m.Wake(); wake.IsZero() || wake.After(now) {
		t.Fatalf("the term is not read again at %v but at %v", now, wake)
	}
	m.Tick(now)
	for _, a := range m.Acts() {
		if a.Kind == ReadTerm {
			m.Ended(now, a.ID, r)
			return
		}
	}
	t.Fatal("the term is not read again")
}

func TestNoOrdersAreInForceWhileTheTermOnDiskIsNotKnown(t *testing.T) {
	unread := errors.New("too many open files")
	onDisk := Result{Term: 5, Stamp: ofTerm(5, "mine", 10).Stamp}
	for name, c := range map[string]struct {
		orders []*v1.HostWanted
		disk   Result
		force  mark // mark afterwards
		writes uint64
		says   string
	}{
		"of an older term":            {[]*v1.HostWanted{ofTerm(4, "old", 90)}, onDisk, mark{}, 0, "term 5 has begun"},
		"of the term":                 {[]*v1.HostWanted{ofTerm(5, "mine", 20)}, onDisk, mark{5, 20}, 5, ""},
		"of another of the number":    {[]*v1.HostWanted{ofTerm(5, "theirs", 20)}, onDisk, mark{}, 0, "of another manager"},
		"of a newer term":             {[]*v1.HostWanted{ofTerm(6, "next", 30)}, onDisk, mark{}, 6, ""},
		"of an older and a newer one": {[]*v1.HostWanted{ofTerm(4, "old", 90), ofTerm(5, "mine", 20)}, onDisk, mark{5, 20}, 5, ""},
		"none":                        {nil, onDisk, mark{}, 0, ""},
		"and there is no term":        {[]*v1.HostWanted{ofTerm(4, "first", 1)}, Result{}, mark{}, 4, ""},
	} {
		m := New(termTime, Config{Host: "here"}, Loaded{TermUnread: unread})
		for _, w := range c.orders {
			m.Take(termTime, w)
		}
		if n := len(writes(m)); n > 0 || m.Ordered() {
			t.Errorf("%s: %d writes, in force: %v", name, n, m.taken)
		}
		if problems := strings.Join(m.Report(termTime).Problems, "\n"); !strings.Contains(problems, unread.Error()) {
			t.Errorf("%s: not reported: %s", name, problems)
		}
		now := termTime.Add(readAgainEvery)
		reread(t, m, now, Result{Err: unread})
		now = now.Add(readAgainEvery)
		reread(t, m, now, c.disk)
		written := uint64(0)
		for _, a := range writes(m) {
			written = a.Term
		}
		problems := strings.Join(m.Report(now).Problems, "\n")
		if m.taken != c.force || written != c.writes || strings.Contains(problems, unread.Error()) || !strings.Contains(problems, c.says) {
			t.Errorf("%s: in force %v, written %d, problems %q", name, m.taken, written, problems)
		}
	}
}
