package machine

// term.go - the managers' terms. A term is on disk before its orders are in force, so that after a crash the host still
// refuses an older manager's orders.

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	v1 "watari/api/watariv1"
)

// ErrStale is the error for orders that are refused for good.
var ErrStale = errors.New("they are not meant for this host as it is now")

// keepAgainAfter is the pause before a term that could not be written is written again. The machine has to retry by
// itself: the manager does not repeat its orders, and the disk's error may be temporary.
const keepAgainAfter = 2 * time.Second

// terms is the term in force, and the orders that wait until their term is on disk.
type terms struct {
	term    uint64         // in force, and on disk
	stamp   *v1.Stamp      // of the latest orders in force; nil: they have none
	held    *v1.HostWanted // the latest orders of a newer term; nil: none
	keeping uint64         // the KeepTerm act under way; 0: none. One at a time: an older term must not overwrite a newer one
	kept    uint64         // the term that this act writes
	written *v1.Stamp      // the stamp that this act writes
	retry   time.Time      // when to write a newer term again; zero: never

	// unread is why the term on disk is not known; nil: it is known. Until it is known, no orders are in force, since orders
	// may be of an older term.
	unread    error
	reading   uint64    // the act that reads it; 0: none
	readAgain time.Time // when it is read again; zero: never
}

// check returns an error if orders must be refused.
func (m *Machine) check(w *v1.HostWanted) error {
	if w.BootId != "" && w.BootId != m.config.BootID {
		return fmt.Errorf("%w: orders for boot %s of the host were refused, which is in boot %s", ErrStale, w.BootId, m.config.BootID)
	}
	newest, stamp := m.terms.term, m.terms.stamp
	if held := m.terms.held; held != nil {
		newest, stamp = held.Term, held.Stamp
	}
	switch {
	case w.Term < newest:
		m.refused = fmt.Sprintf("a manager of term %d gave orders, but term %d has begun; they were refused", w.Term, newest)
	case w.Term == newest && stamp != nil && w.Stamp.GetId() != stamp.Id:
		m.refused = fmt.Sprintf("a manager of term %d (%s) gave orders, but term %d (%s) of another manager had begun here; they were refused "+
			"until a higher term begins", w.Term, cmp.Or(w.Stamp.GetId(), "without a stamp"), newest, stamp.Id)
	default:
		return nil
	}
	return fmt.Errorf("%w: %s", ErrStale, m.refused)
}

// hold holds back orders of a newer term until the term is on disk; false: the term of w is in force already. While the
// term on disk is not known, it holds back all orders: the manager does not send them again.
func (m *Machine) hold(w *v1.HostWanted) bool {
	t := &m.terms
	if t.unread != nil {
		t.holdNewest(w)
		return true
	}
	if w.Term <= t.term {
		return false
	}
	t.holdNewest(w)
	if t.keeping == 0 {
		m.keepTerm()
	}
	return true
}

func (t *terms) holdNewest(w *v1.HostWanted) {
	if t.held == nil || t.held.Term < w.Term || t.held.Generation <= w.Generation {
		t.held = w
	}
}

// keepStamp writes the stamp of orders that are in force, if it is the latest. The orders do not wait for the write, and do
// not depend on its success: their term is on disk.
func (m *Machine) keepStamp(s *v1.Stamp) {
	t := &m.terms
	if s == nil || t.stamp != nil && s.Revision <= t.stamp.Revision {
		return
	}
	t.stamp = s
	if t.keeping == 0 {
		m.keepTerm()
	}
}

func (m *Machine) keepTerm() {
	t := &m.terms
	t.retry, t.kept, t.written = time.Time{}, t.term, t.stamp
	if t.held != nil {
		t.kept, t.written = t.held.Term, t.held.Stamp
	}
	t.keeping = m.act(nil, Act{Kind: KeepTerm, Term: t.kept, Stamp: t.written})
}

func (m *Machine) termKept(err error) {
	t := &m.terms
	t.keeping = 0
	if t.kept == t.term { // a stamp of the term in force
		if t.held != nil || err == nil && t.stamp != t.written {
			m.keepTerm()
		}
		return
	}
	if err != nil {
		m.refused = fmt.Sprintf("orders of the manager were refused, for its term could not be written: %v", err)
		t.retry = m.now.Add(keepAgainAfter)
		return
	}
	t.term, t.stamp = t.kept, t.written
	if t.held.Term > t.term { // orders of a newer term have come meanwhile
		m.keepTerm()
		return
	}
	held := t.held
	t.held = nil
	m.applyOrders(held)
}

// termRead handles the term that was read from disk, and then takes the orders that waited for it.
func (m *Machine) termRead(o Result) {
	t := &m.terms
	t.reading = 0
	if o.Err != nil {
		t.unread, t.readAgain = o.Err, m.now.Add(readAgainEvery)
		return
	}
	t.unread, t.term, t.stamp = nil, o.Term, o.Stamp
	held := t.held
	t.held = nil
	if held != nil && m.check(held) == nil && !m.hold(held) {
		m.applyOrders(held)
	}
}

func (m *Machine) tickTerm() {
	t := &m.terms
	if !t.retry.IsZero() && !m.now.Before(t.retry) {
		m.keepTerm()
	}
	if !t.readAgain.IsZero() && !m.now.Before(t.readAgain) {
		t.readAgain = time.Time{}
		t.reading = m.act(nil, Act{Kind: ReadTerm})
	}
}
