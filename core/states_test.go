package core

import (
	"testing"
	"time"

	v1 "watari/api/watariv1"
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
	s := &Objects{Guests: guests}
	if got := Halted(GuestsOf(s, "md")); got != "" {
		t.Errorf("guests that run or will: %q", got)
	}
	guests["md-2"] = &v1.Guest{Meta: &v1.Meta{Name: "md-2"}, Cluster: "md", Failure: "its QEMU ended; watari guest start md-2 tries again"}
	guests["md-3"] = &v1.Guest{Meta: &v1.Meta{Name: "md-3"}, Cluster: "md", Host: "a1", Stopped: true}
	want := "guest md-2 is failed: its QEMU ended; watari guest start md-2 tries again; " +
		"guest md-3 is stopped; `watari guest start md-3` starts it"
	if got := Halted(GuestsOf(s, "md")); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestARunsFilesAreNotThoseOfALaterClusterOfTheSameName(t *testing.T) {
	s := &Objects{
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

// nobody is a Reports without a connected host.
type nobody struct{}

func (nobody) Observed(string) (*v1.HostObserved, time.Time, bool) { return nil, time.Time{}, false }

func TestAClusterSaysWhatItsGuestsAre(t *testing.T) {
	guest := func(name string, stopped bool) *v1.Guest {
		return &v1.Guest{Meta: &v1.Meta{Name: name}, Cluster: "md", Stopped: stopped}
	}
	for name, c := range map[string]struct {
		guests  []*v1.Guest
		state   v1.ClusterState
		message string
	}{
		"just made": {[]*v1.Guest{guest("md-0", false)}, v1.ClusterState_CLUSTER_STATE_STARTING, "md-0: pending: waits for a host to be chosen"},
		"stopped": {[]*v1.Guest{guest("md-0", true), guest("md-1", true)}, v1.ClusterState_CLUSTER_STATE_STOPPED,
			"all its guests are stopped; `watari guest start GUEST` starts one"},
		"one is wanted": {[]*v1.Guest{guest("md-0", true), guest("md-1", false)}, v1.ClusterState_CLUSTER_STATE_STARTING,
			"md-1: pending: waits for a host to be chosen"},
	} {
		s := &Objects{Clusters: map[string]*v1.Cluster{"md": {Meta: &v1.Meta{Name: "md"}}}, Guests: map[string]*v1.Guest{}}
		for _, g := range c.guests {
			s.Guests[g.Meta.Name] = g
		}
		if got := StatusOf(nobody{}, nil, s.Clusters["md"], GuestsOf(s, "md")); got.State != c.state || got.Message != c.message {
			t.Errorf("%s: %v: %s", name, got.State, got.Message)
		}
	}
}
