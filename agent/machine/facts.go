package machine

// facts.go - the facts of each guest, from which a manager that has lost the guest's objects makes them again.

import (
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// Facts are a guest's facts within its record.
type Facts struct{ *v1.GuestFacts }

// MarshalJSON writes protobuf's JSON.
func (f Facts) MarshalJSON() ([]byte, error) { return protojson.Marshal(f.GuestFacts) }

// UnmarshalJSON reads protobuf's JSON. Facts that cannot be read are dropped: the record is good without them.
func (f *Facts) UnmarshalJSON(text []byte) error {
	facts := &v1.GuestFacts{}
	if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, facts) == nil {
		f.GuestFacts = facts
	}
	return nil
}

// factsOf returns the facts in an order; nil: the order is an older manager's, and has none.
func factsOf(w *v1.GuestWanted) *Facts {
	if w.GetFacts() == nil {
		return nil
	}
	return &Facts{w.Facts}
}

// known returns a record's facts; nil: it has none.
func (r *Record) known() *v1.GuestFacts {
	if r == nil || r.Facts == nil {
		return nil
	}
	return r.Facts.GuestFacts
}

// withFacts adds the facts to a record without facts, if d has no other action. Such a guest was started by an agent or
// a manager of an earlier version.
func withFacts(o Observed, d Decision) Decision {
	r, w := o.Record, o.Wanted
	if len(d.Actions) > 0 || d.Problem != "" || o.Operation != OperationNone || w.GetFacts() == nil || r == nil ||
		r.Epoch != w.Epoch || r.Phase != PhaseStarted || proto.Equal(r.known(), w.Facts) {
		return d
	}
	next := *r
	next.Facts = factsOf(w)
	return act(Action{Kind: ActionRecord, Record: &next})
}
