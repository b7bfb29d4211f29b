package core

// rollback.go - detects that a manager's state is older than what hosts have seen, because an older copy was restored.

import (
	"fmt"
	"slices"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// Shown is a stamp that a host showed. The caller has verified the authority's signature.
type Shown struct {
	Host  string
	Stamp *v1.Stamp
}

// Evidence is a stamp that cannot come from this state.
type Evidence struct {
	Shown
	// Reason completes "this manager's state": "does not know term 7 (...)".
	Reason string
}

// String is a sentence for people.
func (e Evidence) String() string {
	return fmt.Sprintf("host %s took up orders of term %d (%s) at revision %d, and this manager's state %s",
		e.Host, e.Stamp.GetTerm(), e.Stamp.GetId(), e.Stamp.GetRevision(), e.Reason)
}

// RolledBack returns the stamps that prove that the state was rolled back, in the order of shown. terms are all terms
// in the state. Terms are compared by their random ids, because equal numbers prove nothing.
//
// A manager computes orders only from objects in which its own term is the last. So every order of a term has a
// revision before the next term began. Therefore two histories that part after a term began differ in the beginning or
// in the id of the next term.
func RolledBack(terms []*v1.Term, shown ...Shown) []Evidence {
	var found []Evidence
	for _, s := range shown {
		if reason := contradicts(terms, s.Stamp); reason != "" {
			found = append(found, Evidence{s, reason})
		}
	}
	return found
}

// contradicts returns how a stamp contradicts the terms; empty: it does not.
func contradicts(terms []*v1.Term, s *v1.Stamp) string {
	if s == nil {
		return ""
	}
	at := slices.IndexFunc(terms, func(t *v1.Term) bool { return t.GetId() == s.GetId() })
	if at < 0 || terms[at].GetNumber() != s.GetTerm() {
		return "does not know that term"
	}
	term := terms[at]
	var next *v1.Term
	for _, t := range terms {
		if t.GetRevision() > term.GetRevision() && (next == nil || t.GetRevision() < next.GetRevision()) {
			next = t
		}
	}
	switch {
	case s.GetRevision() < term.GetRevision():
		return fmt.Sprintf("has that term begin later, at revision %d", term.GetRevision())
	case next != nil && s.GetRevision() >= next.GetRevision():
		return fmt.Sprintf("has that term end before, at revision %d", next.GetRevision())
	}
	return ""
}

// Hold returns a manager's hold with the evidence that was found, and the new part of that evidence: the first stamp of a
// host, or a stamp that differs from the host's stamp in the hold. hold is the present one and stays as it is; nil: none.
func Hold(hold *v1.Hold, found []Evidence) (update *v1.Hold, fresh []Evidence) {
	update = proto.CloneOf(hold)
	if update == nil {
		update = &v1.Hold{Meta: &v1.Meta{Name: HoldName}}
	}
	for _, e := range found {
		at := slices.IndexFunc(update.Evidence, func(x *v1.ShownStamp) bool { return x.Host == e.Host })
		switch {
		case at < 0:
			update.Evidence = append(update.Evidence, &v1.ShownStamp{Host: e.Host, Stamp: e.Stamp})
		case proto.Equal(update.Evidence[at].Stamp, e.Stamp):
			continue
		default:
			update.Evidence[at].Stamp = e.Stamp
		}
		fresh = append(fresh, e)
	}
	return update, fresh
}

// Unanswered removes the stamps that earlier recoveries have dealt with: the stamps of hosts that took part and earlier
// stamps of the same term, and a vouched host's stamps of terms up to that of its recovery.
func Unanswered(hold *v1.Hold, shown ...Shown) []Shown {
	return slices.DeleteFunc(slices.Clone(shown), func(s Shown) bool {
		answered := slices.ContainsFunc(hold.GetAnswered(), func(a *v1.ShownStamp) bool {
			return a.GetHost() == s.Host && a.GetStamp().GetId() == s.Stamp.GetId() && a.GetStamp().GetTerm() == s.Stamp.GetTerm() &&
				s.Stamp.GetRevision() <= a.GetStamp().GetRevision()
		})
		return answered || slices.ContainsFunc(hold.GetVouched(), func(v *v1.VouchedHost) bool {
			return v.GetHost() == s.Host && s.Stamp.GetTerm() <= v.GetTerm()
		})
	})
}

// HighestTerm returns the highest term number that was shown.
func HighestTerm(shown ...Shown) (highest uint64) {
	for _, s := range shown {
		highest = max(highest, s.Stamp.GetTerm())
	}
	return highest
}
