package api

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

func TestEventsOfAnEarlierOwnersObjectsAreNotTold(t *testing.T) {
	at := func(second int64) *timestamppb.Timestamp { return timestamppb.New(time.Unix(second, 0)) }
	snap := &store.Snapshot{
		Users:  map[string]*v1.User{"ann": {Meta: &v1.Meta{Name: "ann", Created: at(10)}}},
		Guests: map[string]*v1.Guest{"md-0": {Meta: &v1.Meta{Name: "md-0", Owner: "ann", Created: at(20)}}},
	}
	ann := caller{name: "ann"}
	for _, c := range []struct {
		event *v1.Event
		told  bool
	}{
		{&v1.Event{Kind: "guest", Name: "md-0", Actor: "manager", At: at(20)}, true},
		{&v1.Event{Kind: "guest", Name: "md-0", Actor: "bob", At: at(19)}, false},
		{&v1.Event{Kind: "cluster", Name: "gone", Actor: "ann", At: at(15)}, true},
		{&v1.Event{Kind: "cluster", Name: "gone", Actor: "ann", At: at(9)}, false}, // of another user ann
		{&v1.Event{Kind: "user", Name: "ann", Actor: "admin", At: at(10)}, true},
		{&v1.Event{Kind: "user", Name: "ann", Actor: "admin", At: at(9)}, false},
	} {
		if got := concerns(ann, snap, c.event); got != c.told {
			t.Errorf("%v: told %v", c.event, got)
		}
		if !concerns(caller{name: "root", admin: true}, snap, c.event) {
			t.Errorf("%v is not told to an administrator", c.event)
		}
	}
}
