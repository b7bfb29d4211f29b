package test

// apportion_test.go - abstract processors: guests in proportion to the hosts' speeds.

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// limitCPUs limits the CPU time of the lab's hosts until the test ends.
func limitCPUs(t *testing.T, limits string) {
	t.Helper()
	set := func(limits string) {
		must(t, append([]string{"lab", "up", "--name", labName, "--cpus", limits}, labShape...)...)
		for _, host := range hosts { // an agent reads its limit when it starts
			mustKill(t, host, "watari-agent --manager")
		}
		hostsReady(t)
	}
	t.Cleanup(func() { set("none") })
	set(limits)
}

// divided returns how many guests of a cluster each host has: "a1 2, a2 1".
func divided(t *testing.T, cluster string) string {
	t.Helper()
	n := map[string]int{}
	for _, g := range guestsOf(t, cluster) {
		n[g.Host]++
	}
	var parts []string
	for _, host := range hosts {
		if n[host] > 0 {
			parts = append(parts, fmt.Sprint(host, " ", n[host]))
		}
	}
	return strings.Join(parts, ", ")
}

func TestAbstractProcessors(t *testing.T) {
	full(t)
	t.Run("by the hosts' speeds", followTheSpeeds)
	t.Run("by the program's progress", followTheProgram)
}

// followTheSpeeds: abstract processors are placed by the hosts' speeds, and placed again when a host disappears and comes back,
// while a program runs.
func followTheSpeeds(t *testing.T) {
	limitCPUs(t, "a1=0.8,a2=0.4,b1=0.4,b2=0.4")
	must(t, "host", "drain", "b2")
	t.Cleanup(func() { must(t, "host", "drain", "--undo", "b2") })
	must(t, "cluster", "create", "abstract", "--abstract", "4", "--memory", "256M", "--image", imageName, "--wait")
	t.Cleanup(func() { must(t, "cluster", "delete", "abstract", "--wait") })
	settled(t, "abstract", 4)
	if got := divided(t, "abstract"); got != "a1 2, a2 1, b1 1" {
		t.Errorf("the guests are divided as %s", got)
	}
	refused(t, []string{"--abstract 4 and --guests exclude each other"}, "cluster", "create", "no", "--abstract", "4", "--guests", "3", "--image", imageName)
	dir := t.TempDir()
	melt := func(name string) string {
		log := filepath.Join(dir, name)
		must(t, meltOf("abstract", name, "40", "--collect", "log.lammps:"+log)...)
		return table(t, log)
	}
	alone := melt("abstract-alone")
	unmarked := mark(t, "abstract-0", "abstract-1", "abstract-2", "abstract-3")
	var moved string
	done := make(chan struct{})
	go func() { defer close(done); moved = melt("abstract-moved") }()
	computing(t, time.Minute, "abstract-moved")
	must(t, "host", "drain", "b1", "--wait")
	if got := divided(t, "abstract"); got != "a1 3, a2 1" {
		t.Errorf("without b1 the guests are divided as %s:\n%s", got, must(t, "explain", "guest", "abstract-0"))
	}
	must(t, "host", "drain", "--undo", "b1")
	<-done
	if moved != alone {
		t.Errorf("the answers differ:\n%s\n---\n%s", alone, moved)
	}
	until(t, 3*time.Minute, "b1 gets its part again", func() (bool, string) {
		return strings.Contains(divided(t, "abstract"), "b1 1"), must(t, "explain", "guest", "abstract-0")
	})
	settled(t, "abstract", 4)
	if out := must(t, "explain", "guest", "abstract-0"); !strings.Contains(out, "in proportion to the hosts' speeds") || !strings.Contains(out, "wanted") {
		t.Errorf("a guest is explained so:\n%s", out)
	}
	noneRestarted(t, unmarked)
}

// followTheProgram: the guests of other hosts wait for those of a host that computes less for a program than its agent has measured, and
// the manager learns that. Under emulation, a program must compute much between its messages to show it, and too little of the waiting
// is seen for four guests to be divided otherwise.
func followTheProgram(t *testing.T) {
	limitCPUs(t, "a1=0.9,a2=0.9")
	for _, host := range []string{"b1", "b2"} {
		must(t, "host", "drain", host)
		t.Cleanup(func() { must(t, "host", "drain", "--undo", host) })
	}
	must(t, "cluster", "create", "abstract", "--abstract", "4", "--memory", "256M", "--image", imageName, "--wait")
	t.Cleanup(func() { must(t, "cluster", "delete", "abstract", "--wait") })
	until(t, 4*time.Minute, "the hosts have as many guests each", func() (bool, string) { // agents that have just begun use much of so little
		return divided(t, "abstract") == "a1 2, a2 2", must(t, "explain", "guest", "abstract-0")
	})
	settled(t, "abstract", 4)
	text, err := os.ReadFile("../examples/melt/in.melt")
	if err != nil {
		t.Fatal(err)
	}
	input := filepath.Join(t.TempDir(), "in.large")
	large := strings.NewReplacer("0 8 0 8 0 8", "0 20 0 20 0 20", "thermo          10", "thermo          1").Replace(string(text))
	if err := os.WriteFile(input, []byte(large), 0o644); err != nil {
		t.Fatal(err)
	}
	melts := func(name, steps string, more ...string) {
		begin := append([]string{"run", "abstract", "--name", name, "--stage", input}, more...)
		must(t, append(begin, "--", "lmp", "-in", "in.large", "-var", "steps", steps)...)
	}
	log := filepath.Join(t.TempDir(), "log.lammps")
	melts("abstract-short", "3", "--collect", "log.lammps:"+log)
	melts("abstract-program", endless, "--detach")
	p := &program{"abstract", "abstract-program"}
	until(t, 2*time.Minute, "the program writes its table", func() (bool, string) { return len(p.lines()) > 1, "" })
	// The agents do not notice this limit, as they would not notice that a host's memory is slow.
	must(t, append([]string{"lab", "up", "--name", labName, "--cpus", "a1=0.4,a2=0.9"}, labShape...)...)
	until(t, 10*time.Minute, "a1 is slower for the program, and a2 faster", func() (bool, string) {
		out := must(t, "explain", "guest", "abstract-0")
		paces := regexp.MustCompile(`(a[12]): .* computes there (\S+) times as fast as measured`).FindAllStringSubmatch(out, -1)
		return len(paces) == 2 && paces[0][1] == "a1" && paces[0][2] < "1" && paces[1][1] == "a2" && paces[1][2] > "1", out
	})
	settled(t, "abstract", 4)
	if lines := strings.Join(p.goesOn(t), ""); !strings.HasPrefix(lines, table(t, log)) {
		t.Errorf("the program says\n%s, and an undisturbed one\n%s", lines, table(t, log))
	}
	must(t, "run", "cancel", p.name)
}
