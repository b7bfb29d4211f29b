package test

// apportion_test.go - abstract processors: guests in proportion to the hosts' speeds.

import (
	"fmt"
	"path/filepath"
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

// followTheProgram: a host that computes less for a program than its agent has measured gets fewer guests, because the guests of the
// other hosts wait.
func followTheProgram(t *testing.T) {
	limitCPUs(t, "a1=0.6,a2=0.6")
	for _, host := range []string{"b1", "b2"} {
		must(t, "host", "drain", host)
		t.Cleanup(func() { must(t, "host", "drain", "--undo", host) })
	}
	must(t, "cluster", "create", "abstract", "--abstract", "6", "--memory", "256M", "--image", imageName, "--wait")
	t.Cleanup(func() { must(t, "cluster", "delete", "abstract", "--wait") })
	settled(t, "abstract", 6)
	if got := divided(t, "abstract"); got != "a1 3, a2 3" {
		t.Errorf("the guests are divided as %s", got)
	}
	p := computes(t, "abstract")
	// The agents do not notice this limit, as they would not notice that a host's memory is slow.
	must(t, append([]string{"lab", "up", "--name", labName, "--cpus", "a1=0.2,a2=0.6"}, labShape...)...)
	until(t, 8*time.Minute, "a2 has more guests than a1", func() (bool, string) {
		got := divided(t, "abstract")
		return got == "a1 2, a2 4" || got == "a1 1, a2 5", must(t, "explain", "guest", "abstract-0")
	})
	if out := must(t, "explain", "guest", "abstract-0"); !strings.Contains(out, "times as fast as measured") {
		t.Errorf("a guest is explained so:\n%s", out)
	}
	settled(t, "abstract", 6)
	p.right(t)
}
