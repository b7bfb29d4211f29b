package main

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

const columns = "round,rail,mpi,peer,size,metric,unit,median,best\n"

func TestFiguresOfGuestsGoToTheirWays(t *testing.T) {
	variants := append([]*variant{{path: whole, rail: "udp", mpi: debianOpenMPI, carrier: "pm"}}, guestVariants()...)
	told := columns + "1,tcp,Open MPI,tcp BTL,8,latency,us,500,400\n1,ivshmem,Open MPI,pm,8,latency,us,2.5,2\n" +
		"1,udp,Open MPI,pm,8,latency,us,600,500\n1,ivshmem,,memcpy,1048576,bandwidth,MB/s,2000,2500\n2,tcp,Open MPI,tcp BTL,8,latency,us,700,300\n"
	if reason, up, err := readGuests(strings.NewReader(told), variants, 2); reason != "" || !up || err != nil {
		t.Fatalf("reason %q, up %v: %v", reason, up, err)
	}
	tcp := find(variants, twoGuests, debianOpenMPI, "tcp BTL")
	if got := tcp.figures[keys[0]]; !slices.Equal(got, []float64{500, 700}) || tcp.best[keys[0]] != 300 {
		t.Errorf("tcp: %v, best %v", got, tcp.best[keys[0]])
	}
	if got := find(variants, twoGuests, debianOpenMPI, "pm"); got.rail != "ivshmem" || got.best[keys[0]] != 2 {
		t.Errorf("%s: %v", got.name(), got.best)
	}
	if got := find(variants, twoGuests, "", "memcpy").figures[keys[1]]; !slices.Equal(got, []float64{2000}) {
		t.Errorf("memcpy: %v", got)
	}
	if variants[0].figures != nil {
		t.Errorf("figures of guests are those of a cable: %v", variants[0].figures)
	}
	if script := curveScript("x.svg", variants); script != "" {
		t.Errorf("curves of nothing: %s", script)
	}
	var r result
	r.guestGoal(variants)
	if len(r.Goals) != 1 || !r.Goals[0].Met || r.Goals[0].Value != 200 {
		t.Errorf("goals %v", r.Goals)
	}
}

// curveFigures is pm/bench/guests's output for two turns.
const curveFigures = columns + "1,verbs,,write-hits-0,4096,bandwidth,MB/s,3,4\n1,verbs,,write-hits-0,65536,bandwidth,MB/s,5,6\n" +
	"1,verbs,,write-hits-0,1048576,bandwidth,MB/s,9,9\n1,verbs,,ib_send_bw,1048576,bandwidth,MB/s,4,5\n" +
	"1,verbs,,write,4,bandwidth,MB/s,0.5,1\n1,verbs,,write,4096,bandwidth,MB/s,6,7\n1,verbs,,write,1048576,bandwidth,MB/s,9,9\n" +
	"2,verbs,,write-hits-0,4096,bandwidth,MB/s,2,3\n2,verbs,,write,4096,bandwidth,MB/s,8,9\n"

func TestCurvesArePlottedBySizeWithTheirSpread(t *testing.T) {
	variants := guestVariants()
	if _, _, err := readGuests(strings.NewReader(curveFigures), variants, 1); err != nil {
		t.Fatal(err)
	}
	script := curveScript("x.svg", variants)
	for _, want := range []string{"4096 2.5 2 3\n65536 5 5 5\n1048576 9 9 9\n", "4 0.5 0.5 0.5\n4096 7 6 8\n", "title 'write-hits-0'", "set output 'x.svg'"} {
		if !strings.Contains(script, want) {
			t.Errorf("no %q in %s", want, script)
		}
	}
	if strings.Contains(script, "ib_send_bw") {
		t.Errorf("a curve of one size: %s", script)
	}
	bars := barScript("x.svg", variants, []panel{{twoGuests, bandwidthTitle, eachDecade, keys[1]}})
	if strings.Contains(bars, "write-hits-0") || !strings.Contains(bars, "ib_send_bw") {
		t.Errorf("curves among the bars: %s", bars)
	}
}

func TestCurvesAreReportedAndComparedWithRemoteWrite(t *testing.T) {
	variants := (&bench{}).variants()
	if _, _, err := readGuests(strings.NewReader(curveFigures), variants, 1); err != nil {
		t.Fatal(err)
	}
	var told []string
	for _, line := range newResult(variants, nil, map[string]string{whole: "-", lossy: "-"}).Rows {
		told = append(told, fmt.Sprint(line.Rail, " ", line.Peer, " ", line.Size, " ", line.Metric, " ", line.Value, " ", line.Spread.Runs, " ", line.RatioOf.Runs))
	}
	want := []string{"verbs ib_send_bw 1048576 bandwidth 4 [4] [2.25]", "verbs write 4 bandwidth 0.5 [0.5] []", "verbs write 4096 bandwidth 7 [6 8] []",
		"verbs write 1048576 bandwidth 9 [9] []", "verbs write-hits-0 4096 bandwidth 2.5 [3 2] [2 4]", "verbs write-hits-0 65536 bandwidth 5 [5] []",
		"verbs write-hits-0 1048576 bandwidth 9 [9] [1]"}
	if !slices.Equal(told, want) {
		t.Errorf("rows %q, not %q", told, want)
	}
}

func TestOfGuestsOnlyThatIsAskedForOfWhichFiguresAreWanted(t *testing.T) {
	if got, want := guestTurns(guestVariants(), 5), "5 memory ivshmem,udp udp tcp verbs,udp:3 verbs:2 curves:3"; strings.Join(got, " ") != want {
		t.Errorf("all: %q, not %q", got, want)
	}
	variants := []*variant{{path: oneMachine, carrier: "pm"}, find(guestVariants(), twoGuests, "", "write-hits-50"), find(guestVariants(), twoGuests, "", "message")}
	if got := guestTurns(variants, 2); !slices.Equal(got, []string{"2", "curves:3"}) {
		t.Errorf("curves: %q", got)
	}
}

func TestLinesThatAreNoFiguresAreRefused(t *testing.T) {
	for _, line := range []string{"1,tcp", "1,shm,Open MPI,pm,8,latency,us,1,1", "1,udp,Open MPI,pm,16,latency,us,1,1", "1,udp,Open MPI,pm,8,latency,us,,"} {
		if _, _, err := readGuests(strings.NewReader(columns+line+"\n"), guestVariants(), 1); err == nil {
			t.Errorf("%q is taken", line)
		}
	}
}

// script returns a bench whose measureGuests runs this script instead of pm/bench/guests.
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
		err := b.measureGuests(t.Context(), guestVariants(), guestVariants(), 1)
		if b.skipped[twoGuests] != want || (err == nil) != (want != "") {
			t.Errorf("%s: skipped for %q: %v", text, b.skipped[twoGuests], err)
		}
	}
}
