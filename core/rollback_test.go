package core

import (
	"math"
	"strings"
	"testing"

	v1 "watari/api/watariv1"
)

func begunTerm(number uint64, id string, revision int64) *v1.Term {
	return &v1.Term{Number: number, Id: id, Revision: revision}
}

func shows(host string, number uint64, id string, revision int64) Shown {
	return Shown{host, &v1.Stamp{Term: number, Id: id, Revision: revision}}
}

func TestRolledBack(t *testing.T) {
	// Term 1 began at revision 10, 2 at 50, and 3, which is in force, at 90.
	terms := []*v1.Term{begunTerm(3, "c", 90), begunTerm(1, "a", 10), begunTerm(2, "b", 50)}
	for name, c := range map[string]struct {
		shown Shown
		want  string // part of the reason; empty: no evidence
	}{
		"no stamp":                                 {Shown{Host: "h"}, ""},
		"the term in force":                        {shows("h", 3, "c", 120), ""},
		"an earlier term":                          {shows("h", 1, "a", 49), ""},
		"a term at its first revision":             {shows("h", 2, "b", 50), ""},
		"an unknown term of a higher number":       {shows("h", 9, "x", 120), "does not know"},
		"an unknown term of the same number":       {shows("h", 3, "x", 91), "does not know"},
		"an unknown term of a lower number":        {shows("h", 2, "x", 51), "does not know"},
		"a known term at the next one's":           {shows("h", 2, "b", 90), "end before, at revision 90"},
		"a known term after the next one's":        {shows("h", 1, "a", 400), "end before, at revision 50"},
		"a known term before it began":             {shows("h", 3, "c", 89), "begin later"},
		"a known id of another number":             {shows("h", 7, "b", 60), "does not know"},
		"no id":                                    {shows("h", 3, "", 95), "does not know"},
		"the highest numbers there are":            {shows("h", math.MaxUint64, "c", math.MaxInt64), "does not know"},
		"a negative revision":                      {shows("h", 3, "c", math.MinInt64), "begin later"},
		"a term without a next one, much later":    {shows("h", 3, "c", math.MaxInt64), ""},
		"a known term of the last revision it had": {shows("h", 2, "b", 89), ""},
	} {
		found := RolledBack(terms, c.shown)
		switch {
		case c.want == "" && len(found) > 0:
			t.Errorf("%s: %v", name, found)
		case c.want != "" && (len(found) != 1 || !strings.Contains(found[0].String(), c.want) || !strings.Contains(found[0].String(), "host h")):
			t.Errorf("%s: %v", name, found)
		}
	}
	if found := RolledBack(nil, shows("h", 1, "a", 1), Shown{}); len(found) != 1 {
		t.Errorf("a state without terms: %v", found)
	}
	if found := RolledBack(nil); found != nil {
		t.Errorf("nothing was shown: %v", found)
	}
}

// A copy is taken at revision 60, in term 2, and put back when the real history is further. Even if little was written in
// between, the two histories are told apart as soon as a host has taken up an order that rests on the difference.
func TestEveryLostRevisionIsNoticed(t *testing.T) {
	for lost := int64(61); lost < 70; lost++ {
		restored := []*v1.Term{begunTerm(1, "a", 10), begunTerm(2, "b", 50), begunTerm(3, "new", 61)}
		if len(RolledBack(restored, shows("h", 2, "b", lost))) != 1 {
			t.Errorf("orders of revision %d, which the restored state does not have, are not noticed", lost)
		}
		if len(RolledBack(restored, shows("h", 2, "b", 60))) != 0 {
			t.Error("orders of a revision that the copy has are taken for evidence")
		}
	}
}

func TestWhatARecoveryAnsweredIsNoNewEvidence(t *testing.T) {
	hold := &v1.Hold{Answered: []*v1.ShownStamp{{Host: "h1", Stamp: &v1.Stamp{Term: 9, Id: "x", Revision: 80}}},
		Vouched: []*v1.VouchedHost{{Host: "h2", Term: 10}}}
	for name, c := range map[string]struct {
		shown Shown
		left  bool
	}{
		"what it showed":                 {shows("h1", 9, "x", 80), false},
		"earlier of that term":           {shows("h1", 9, "x", 70), false},
		"later of that term":             {shows("h1", 9, "x", 81), true},
		"another term":                   {shows("h1", 8, "y", 70), true},
		"the same, by another host":      {shows("h3", 9, "x", 80), true},
		"a vouched host":                 {shows("h2", 9, "x", 95), false},
		"a vouched host of a later term": {shows("h2", 11, "z", 95), true},
	} {
		if got := len(Unanswered(hold, c.shown)) == 1; got != c.left {
			t.Errorf("%s: left %v", name, got)
		}
	}
	if len(Unanswered(nil, shows("h1", 9, "x", 80))) != 1 {
		t.Error("without a hold nothing is answered")
	}
	if HighestTerm(shows("h1", 9, "x", 80), Shown{}, shows("h", 11, "z", 1)) != 11 || HighestTerm() != 0 {
		t.Error("the highest term")
	}
}
