package machine

import (
	"testing"

	"google.golang.org/protobuf/proto"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

func someFacts() *v1.GuestFacts {
	return &v1.GuestFacts{Owner: "ann", Index: 3, Cluster: &v1.ClusterFacts{Name: "md", Uid: "u", Mtu: 1420}, StartedEpoch: 4}
}

func TestTheRecordOfAGuestThatAnEarlierVersionStartedTakesUpTheFacts(t *testing.T) {
	wanted := &v1.GuestWanted{Uid: "u", Name: "md-3", Role: v1.GuestRole_GUEST_ROLE_RUN, Epoch: 4, Facts: someFacts()}
	old := &Record{UID: "u", Name: "md-3", Epoch: 4, Phase: PhaseStarted}
	o := Observed{Host: "a1", Wanted: wanted, Record: old, Domain: domain.Running}
	d := Step(o)
	if len(d.Actions) != 1 || d.Actions[0].Kind != ActionRecord || !proto.Equal(d.Actions[0].Record.known(), someFacts()) || d.Actions[0].Record.Phase != PhaseStarted {
		t.Fatalf("%+v", d)
	}
	o.Record = d.Actions[0].Record
	if d := Step(o); len(d.Actions) > 0 {
		t.Errorf("it is written again: %+v", d)
	}
	o.Record, o.Wanted = old, proto.CloneOf(wanted)
	o.Wanted.Epoch = 3
	if d := Step(o); len(d.Actions) > 0 {
		t.Errorf("facts of another epoch: %+v", d)
	}
}
