package view

import (
	"testing"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

func TestHaltedNamesGuestsThatAPersonHasToStart(t *testing.T) {
	guests := map[string]*v1.Guest{}
	for _, g := range []*v1.Guest{
		{Meta: &v1.Meta{Name: "md-0"}, Cluster: "md", Host: "a1"},
		{Meta: &v1.Meta{Name: "md-1"}, Cluster: "md", Message: "no host for it"},
		{Meta: &v1.Meta{Name: "lu-0"}, Cluster: "lu", Stopped: true},
	} {
		guests[g.Meta.Name] = g
	}
	s := &store.Snapshot{Guests: guests}
	if got := Halted(s, "md"); got != "" {
		t.Errorf("guests that run or will: %q", got)
	}
	guests["md-2"] = &v1.Guest{Meta: &v1.Meta{Name: "md-2"}, Cluster: "md", Failure: "its QEMU ended; watari guest start md-2 tries again"}
	guests["md-3"] = &v1.Guest{Meta: &v1.Meta{Name: "md-3"}, Cluster: "md", Host: "a1", Stopped: true}
	want := "guest md-2 is failed: its QEMU ended; watari guest start md-2 tries again; " +
		"guest md-3 is stopped; `watari guest start md-3` starts it"
	if got := Halted(s, "md"); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestARunsFilesAreNotThoseOfALaterClusterOfTheSameName(t *testing.T) {
	s := &store.Snapshot{
		Clusters: map[string]*v1.Cluster{"md": {Meta: &v1.Meta{Name: "md", Uid: "u2"}}},
		Guests:   map[string]*v1.Guest{"md-0": {Meta: &v1.Meta{Name: "md-0"}, Cluster: "md"}},
	}
	for uid, want := range map[string]string{"u1": "", "u2": "md-0"} {
		run := &v1.Run{Spec: &v1.RunSpec{Cluster: "md"}, ClusterUid: uid}
		if head, _ := RunHead(s, run); head != want {
			t.Errorf("run of %s: head %q, want %q", uid, head, want)
		}
	}
}
