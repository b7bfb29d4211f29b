package session

import (
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

func TestFiguresOfLoadAreNoChange(t *testing.T) {
	before := &v1.HostObserved{Load: &v1.HostLoad{CpuBusy: 1}, Generation: 3, Guests: []*v1.GuestObserved{
		{Uid: "u1", Ready: true, CpuTimeNs: 1, MemoryBytes: 2}, {Uid: "u2", CpuTimeNs: 3, MemoryBytes: 4}}}
	for name, c := range map[string]struct {
		change func(*v1.HostObserved)
		same   bool
	}{
		"nothing":         {func(*v1.HostObserved) {}, true},
		"load":            {func(o *v1.HostObserved) { o.Load = &v1.HostLoad{CpuBusy: 2} }, true},
		"processor time":  {func(o *v1.HostObserved) { o.Guests[1].CpuTimeNs, o.Guests[0].CpuTimeNs = 9, 8 }, true},
		"memory":          {func(o *v1.HostObserved) { o.Guests[0].MemoryBytes, o.Load = 9, nil }, true},
		"generation":      {func(o *v1.HostObserved) { o.Generation++ }, false},
		"a guest's state": {func(o *v1.HostObserved) { o.Guests[1].Ready, o.Guests[1].CpuTimeNs = true, 9 }, false},
		"another guest":   {func(o *v1.HostObserved) { o.Guests = append(o.Guests, &v1.GuestObserved{Uid: "u3"}) }, false},
		"fewer guests":    {func(o *v1.HostObserved) { o.Guests = o.Guests[:1] }, false},
		"other guest":     {func(o *v1.HostObserved) { o.Guests[0].Uid = "u0" }, false},
	} {
		now := proto.CloneOf(before)
		c.change(now)
		kept := proto.CloneOf(now)
		if got := sameButFigures(now, before); got != c.same {
			t.Errorf("%s: same %v, want %v", name, got, c.same)
		}
		if !proto.Equal(now, kept) {
			t.Errorf("%s: the report was changed to %v", name, now)
		}
	}
	if sameButFigures(before, nil) {
		t.Error("a first report is no change")
	}
}
