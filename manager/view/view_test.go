package view

import (
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/core"
)

// nobody reports no connected host.
type nobody struct{}

func (nobody) Observed(string) (*v1.HostObserved, time.Time, bool) { return nil, time.Time{}, false }

func TestAllHostsAreAsEachOfThem(t *testing.T) {
	s := core.NoObjects()
	for _, name := range []string{"b1", "a1", "a2"} {
		s.Hosts[name] = &v1.Host{Meta: &v1.Meta{Name: name}, Draining: name == "a2"}
	}
	for name, host := range map[string]string{"md-1": "a1", "md-0": "a1", "lu-0": "a2", "lu-1": ""} {
		s.Guests[name] = &v1.Guest{Meta: &v1.Meta{Name: name}, Host: host}
	}
	all := Hosts(s, nobody{})
	if len(all) != 3 || all[0].Meta.Name != "a1" || len(all[0].Guests) != 2 || all[0].Guests[0] != "md-0" || all[2].Meta.Name != "b1" {
		t.Fatalf("%v", all)
	}
	for _, h := range all {
		if one := Host(s, nobody{}, h.Meta.Name); !proto.Equal(h, one) {
			t.Errorf("got  %v\nwant %v", h, one)
		}
	}
	if Host(s, nobody{}, "c1") != nil {
		t.Error("there is a host c1")
	}
}

func TestAHostIsDrainedWhenNothingThatCanLeaveIsOnIt(t *testing.T) {
	h := &v1.Host{Draining: true, Volumes: []*v1.HostVolume{{Name: "data"}, {Name: "old", Stays: true}}}
	if state := hostState(h, true, false); state != v1.HostState_HOST_STATE_DRAINING {
		t.Errorf("with a volume that moves: %v", state)
	}
	h.Volumes = h.Volumes[1:]
	if state := hostState(h, true, true); state != v1.HostState_HOST_STATE_DRAINING {
		t.Errorf("with the process of a guest that has moved: %v", state)
	}
	if state := hostState(h, true, false); state != v1.HostState_HOST_STATE_DRAINED {
		t.Errorf("with a volume that stays: %v", state)
	}
}
