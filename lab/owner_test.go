package lab

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"watari/internal/utmp"
)

func TestTheOwnersLoginReplacesTheOneBefore(t *testing.T) {
	other := bytes.Repeat([]byte{1}, utmp.Size)
	first := withLogin(other, utmp.Entry{Kind: utmp.UserProcess, PID: 7, Line: "pts/3", User: ownerUser, At: time.Unix(1000, 0)})
	if len(first) != 2*utmp.Size || !bytes.Equal(first[:utmp.Size], other) || first[utmp.Size] != utmp.UserProcess {
		t.Fatalf("%d bytes", len(first))
	}
	second := withLogin(first, utmp.Entry{Kind: utmp.DeadProcess})
	if len(second) != 2*utmp.Size || !bytes.Equal(second[:utmp.Size], other) || second[utmp.Size] != utmp.DeadProcess {
		t.Errorf("%d bytes, type %d", len(second), second[utmp.Size])
	}
	if third := withLogin([]byte("cut short"), utmp.Entry{PID: 1}); len(third) != utmp.Size {
		t.Errorf("%d bytes", len(third))
	}
}

// owner returns the activities of a host's owner, as the lab's status shows them.
func (l testLab) owner(host string) []OwnerActivity {
	l.t.Helper()
	s, err := l.Status()
	if err != nil {
		l.t.Fatal(err)
	}
	l.AskDaemons(l.t.Context(), s)
	for _, site := range s.Sites {
		for _, h := range site.Hosts {
			if h.Name == host {
				return h.Owner
			}
		}
	}
	l.t.Fatalf("no host %s", host)
	return nil
}

// processorTime returns the CPU time that the processes of a control group have used.
func processorTime(t *testing.T, groups hierarchies, path string) time.Duration {
	t.Helper()
	dir := filepath.Join(groups.roots[len(groups.roots)-1], path)
	word, unit := readWord(filepath.Join(dir, "cpuacct.usage")), time.Nanosecond
	if groups.v2 {
		word, unit = readWord(filepath.Join(dir, "cpu.stat")), time.Microsecond
		word, _, _ = strings.Cut(strings.TrimPrefix(word, "usage_usec "), "\n")
	}
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return time.Duration(n) * unit
}

func TestAHostHasAShareOfTheProcessorsAndAnOwner(t *testing.T) {
	groups := findHierarchies(cgroupRoot)
	if len(groups.roots) == 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("missing: control groups for the processor's time")
		}
		t.Skip("missing: control groups for the processor's time")
	}
	o := Options{Name: "owned", Sites: 1, Hosts: 2, CPUs: map[string]float64{"a1": 0.25}}
	l := up(t, o)
	for _, does := range []OwnerActivity{OwnerBusy, OwnerTypes, OwnerTypes} {
		if err := l.Owner(deadline(t), "a1", does); err != nil {
			t.Fatal(err)
		}
	}
	if got := l.owner("a1"); !slices.Equal(got, []OwnerActivity{OwnerBusy, OwnerTypes}) {
		t.Errorf("the owner: %v", got)
	}
	if got := l.owner("a2"); len(got) != 0 {
		t.Errorf("the owner of the other host: %v", got)
	}
	if out := l.must("a1", "who"); strings.Count(out, ownerUser) != 1 {
		t.Errorf("logged in: %s", out)
	}
	// A host without a limit is in a group of its own while its owner is present.
	shared := len(groups.roots) > 1 // the others share one
	if groups.alone(o.Name, "a2") == shared {
		t.Errorf("before the owner comes, the host is alone: %v", !shared)
	}
	if err := l.Owner(deadline(t), "a2", OwnerTypes); err != nil {
		t.Fatal(err)
	}
	inGroup := func() string {
		return readWord(filepath.Join(groups.roots[0], groupPath(o.Name, "a2"), "cgroup.procs"))
	}
	if inGroup() == "" {
		t.Error("the owner is present, and the host's processes are not in its group")
	}
	if err := l.Owner(deadline(t), "a2", OwnerAway); err != nil {
		t.Fatal(err)
	}
	if groups.alone(o.Name, "a2") == shared {
		t.Errorf("after the owner went away, the host is alone: %v", !shared)
	}
	// A running host that had no limit gets one.
	o.CPUs = map[string]float64{"a1": 0.25, "a2": 0.5}
	if _, err := Up(deadline(t), o); err != nil {
		t.Fatal(err)
	}
	if inGroup() == "" {
		t.Error("a running host's processes did not get the new limit")
	}
	used := func() time.Duration { return processorTime(t, groups, groupPath("owned", "a1")) }
	begun, before := time.Now(), used()
	err := waitFor(deadline(t), time.Minute, "owner to use processor time", func() bool { return used()-before > 500*time.Millisecond })
	if err != nil {
		t.Fatal(err)
	}
	// The kernel may grant one period's share at the beginning and one at the end.
	passed := time.Since(begun)
	if share := float64(used()-before) / float64(passed+200*time.Millisecond); share > 0.3 {
		t.Errorf("the host used %.2f processors in %v, its share is 0.25", share, passed)
	}
	if err := l.Owner(deadline(t), "a1", OwnerAway); err != nil {
		t.Fatal(err)
	}
	if got, who := l.owner("a1"), l.must("a1", "who"); len(got) != 0 || who != "" {
		t.Errorf("after the owner went away: %v, logged in: %s", got, who)
	}
	if err := l.Owner(deadline(t), "a1", OwnerBusy); err != nil {
		t.Fatal(err)
	}
	if err := l.HostCrash(deadline(t), "a1"); err != nil {
		t.Fatal(err)
	}
	if err := l.HostStart(deadline(t), "a1"); err != nil {
		t.Fatal(err)
	}
	if got := l.owner("a1"); len(got) != 0 {
		t.Errorf("the owner outlived a power failure: %v", got)
	}
	limit := map[bool]string{false: "cpu.cfs_quota_us", true: "cpu.max"}[groups.v2]
	if quota := readWord(filepath.Join(groups.roots[0], groupPath("owned", "a1"), limit)); !strings.HasPrefix(quota, "5000") {
		t.Errorf("the host's share after a power failure: %s", quota)
	}
	if err := Down(deadline(t), "owned", nil); err != nil {
		t.Fatal(err)
	}
	for _, root := range groups.roots {
		dir := filepath.Join(root, groupPath("owned", ""))
		if _, err := os.Stat(dir); err == nil {
			t.Errorf("left: %s", dir)
		}
	}
}

func readWord(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}
