package main

import (
	"os"
	"slices"
	"strings"
	"testing"
)

const columns = "round,rail,mpi,peer,size,metric,unit,median,best\n"

func TestFiguresOfGuestsGoToTheirWays(t *testing.T) {
	ways := append([]*way{{path: whole, rail: "udp", mpi: debianOpenMPI, carrier: "pm"}}, guestWays()...)
	told := columns + "1,tcp,Open MPI,tcp BTL,8,latency,us,500,400\n1,ivshmem,Open MPI,pm,8,latency,us,2.5,2\n" +
		"1,udp,Open MPI,pm,8,latency,us,600,500\n1,ivshmem,,memcpy,1048576,bandwidth,MB/s,2000,2500\n2,tcp,Open MPI,tcp BTL,8,latency,us,700,300\n"
	if reason, up, err := readGuests(strings.NewReader(told), ways, 2); reason != "" || !up || err != nil {
		t.Fatalf("reason %q, up %v: %v", reason, up, err)
	}
	tcp := find(ways, twoGuests, debianOpenMPI, "tcp BTL")
	if got := tcp.figures[keys[0]]; !slices.Equal(got, []float64{500, 700}) || tcp.best[keys[0]] != 300 {
		t.Errorf("tcp: %v, best %v", got, tcp.best[keys[0]])
	}
	if got := find(ways, twoGuests, debianOpenMPI, "pm"); got.rail != "ivshmem" || got.best[keys[0]] != 2 {
		t.Errorf("%s: %v", got.name(), got.best)
	}
	if got := find(ways, twoGuests, "", "memcpy").figures[keys[1]]; !slices.Equal(got, []float64{2000}) {
		t.Errorf("memcpy: %v", got)
	}
	if ways[0].figures != nil {
		t.Errorf("figures of guests are those of a cable: %v", ways[0].figures)
	}
	if script := hitScript("x.svg", ways); script != "" {
		t.Errorf("curves of nothing: %s", script)
	}
	var r result
	r.guestGoal(ways)
	if len(r.Goals) != 1 || !r.Goals[0].Met || r.Goals[0].Value != 200 {
		t.Errorf("goals %v", r.Goals)
	}
}

func TestCurvesOfHitsArePlottedBySize(t *testing.T) {
	ways := guestWays()
	told := columns + "1,verbs,,write-hits-0,4096,bandwidth,MB/s,3,4\n1,verbs,,write-hits-0,65536,bandwidth,MB/s,5,6\n" +
		"1,verbs,,write-hits-0,1048576,bandwidth,MB/s,9,9\n1,verbs,,ib_send_bw,1048576,bandwidth,MB/s,4,5\n"
	if _, _, err := readGuests(strings.NewReader(told), ways, 1); err != nil {
		t.Fatal(err)
	}
	script := hitScript("x.svg", ways)
	for _, want := range []string{"4096 3 3 3\n65536 5 5 5\n1048576 9 9 9\n", "title 'write-hits-0'", "set output 'x.svg'"} {
		if !strings.Contains(script, want) {
			t.Errorf("no %q in %s", want, script)
		}
	}
	if strings.Contains(script, "ib_send_bw") {
		t.Errorf("a curve of one size: %s", script)
	}
}

func TestLinesThatAreNoFiguresAreRefused(t *testing.T) {
	for _, line := range []string{"1,tcp", "1,shm,Open MPI,pm,8,latency,us,1,1", "1,udp,Open MPI,pm,16,latency,us,1,1", "1,udp,Open MPI,pm,8,latency,us,,"} {
		if _, _, err := readGuests(strings.NewReader(columns+line+"\n"), guestWays(), 1); err == nil {
			t.Errorf("%q is taken", line)
		}
	}
}

// script has measureGuests run this in place of pm/bench/guests.
func script(t *testing.T, text string) *bench {
	t.Chdir(t.TempDir())
	if err := os.MkdirAll("pm/bench", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile("pm/bench/guests", []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return &bench{skipped: map[string]string{}}
}

func TestWhereNoGuestsAreToBeHadThePathIsSkipped(t *testing.T) {
	for text, want := range map[string]string{
		"echo mmdebstrap is missing; exit 77":               "mmdebstrap is missing",
		"echo guests: no image >&2; exit 125":               "guests: no image",
		"echo " + strings.TrimSpace(columns) + "\nexit 125": "",
		"exit 1": "",
	} {
		b := script(t, text)
		err := b.measureGuests(t.Context(), guestWays(), 1)
		if b.skipped[twoGuests] != want || (err == nil) != (want != "") {
			t.Errorf("%s: skipped for %q: %v", text, b.skipped[twoGuests], err)
		}
	}
}
