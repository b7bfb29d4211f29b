// Migrate measures live migrations under an MPI ping-pong: the longest stall that MPI sees, and the total time. It
// compares Watari with a bare `virsh migrate --live` of the same guest over the same taps and routes, with TLS. It also
// compares four guests that move together with four that move one after the other. It writes
// build/reports/bench-migrate.json.
//
// With -whole, the hosts are two whole hosts with guests under KVM, and one guest moves. The report is
// bench-migrate-kvm.json.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"watari/bench/report"
	"watari/bench/system"
)

type migrateReport struct {
	report.Header
	StallRatio    report.Stat `json:"stall_ratio"`    // Watari / virsh, longest MPI exchange during a move
	TotalRatio    report.Stat `json:"total_ratio"`    // Watari / virsh, from command to return
	TogetherRatio report.Stat `json:"together_ratio"` // four at once / sum of four single moves
	// TogetherBound is the share of the processors that single moves use: concurrent moves that do the same work cannot take
	// less than that share of the time.
	TogetherBound report.Stat   `json:"together_bound"`
	OneByOne      []phase       `json:"one_by_one"`
	AtOnce        []phase       `json:"at_once"`
	MPIStall      report.Stat   `json:"mpi_stall_ms"`
	PeerStall     report.Stat   `json:"peer_mpi_stall_ms"`
	Total         report.Stat   `json:"total_s"`
	PeerTotal     report.Stat   `json:"peer_total_s"`
	StallSizes    []int         `json:"mpi_stall_bytes"` // of the message that was exchanged in each stall of mpi_stall_ms: 8 or 1 MiB
	PeerSizes     []int         `json:"peer_mpi_stall_bytes"`
	Downtime      report.Stat   `json:"downtime_ms"`
	Sending       report.Stat   `json:"sending_ms"`       // of downtime_ms: QEMU's last pass; the rest is the hand-over
	PeerDowntime  report.Stat   `json:"peer_downtime_ms"` // as reported by libvirt
	FarTotal      report.Stat   `json:"far_total_s"`      // to the other site
	PeerFarTotal  report.Stat   `json:"peer_far_total_s"`
	FarRatio      report.Stat   `json:"far_total_ratio"`
	FarDowntime   report.Stat   `json:"far_downtime_ms"`
	FarSending    report.Stat   `json:"far_sending_ms"`
	Sent          report.Stat   `json:"far_sent_mib"`
	Far           []farPhase    `json:"far"` // of Watari's moves
	Goals         []report.Goal `json:"goals"`
}

// window is the time of one move by the wall clock.
type window struct {
	begin, end time.Time
	total      float64 // s, from command to return
	downtime   float64 // ms
	sending    float64 // ms of it, of Watari's moves
}

// farPhase is a move to the other site.
type farPhase struct {
	phase
	Before float64 `json:"before_switch_s"` // of Seconds: from the move's turn until routes were switched. The target makes room, and gets the memory
	After  float64 `json:"after_switch_s"`  // then, until the command returned
}

type guest struct {
	Meta          struct{ Name, UID string }
	Host, Address string
	Ready         bool
}

type migration struct {
	State      string
	Message    string
	DowntimeMs float64
	SendingMs  float64
	Progress   struct{ TransferredBytes string }
	Started    time.Time
	Switched   time.Time
}

func main() {
	runs := flag.Int("runs", 8, "repetitions: each is two moves by Watari and two by virsh")
	far := flag.Bool("far", false, "only the moves between sites; no report is written")
	whole := flag.Bool("whole", false, "hosts that are whole machines, with guests under KVM")
	flag.Parse()
	measure := func(runs int) error { return bench(runs, *far) }
	if *whole {
		measure = benchWhole
	}
	if err := measure(*runs); err != nil {
		fmt.Fprintln(os.Stderr, "bench-migrate:", err)
		os.Exit(1)
	}
}

// patience is the time limit for agents to reconnect and for programs to start.
var patience = time.Minute

func compile() error {
	if out, err := exec.Command("mpicc", "-O2", "-Wall", "-o", "build/bin/pingpong", "bench/migrate/pingpong/pingpong.c").CombinedOutput(); err != nil {
		return fmt.Errorf("compile the ping-pong: %w: %s", err, out)
	}
	return nil
}

// benchWhole measures on whole hosts.
func benchWhole(runs int) error {
	r := migrateReport{Header: report.NewHeader("bench-migrate-kvm", "make bench-kvm")}
	patience = 10 * time.Minute
	if err := compile(); err != nil {
		return err
	}
	s, err := system.UpWhole("bench-migrate")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return err
	}
	if err := takeSocat(s); err != nil {
		return err
	}
	if err := r.single(s, runs); err != nil {
		return err
	}
	r.tell()
	const out = "build/reports/bench-migrate-kvm.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

// wan is the shape of the WAN between the sites for far.
const wan = "20ms,200mbit"

func bench(runs int, far bool) error {
	r := migrateReport{Header: report.NewHeader("bench-migrate", "make bench-migrate")}
	if err := compile(); err != nil {
		return err
	}
	s, err := system.Up("bench-migrate", "")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return err
	}
	if !far {
		if err := r.single(s, runs); err != nil {
			return err
		}
		if err := r.together(s, (runs+1)/2); err != nil {
			return err
		}
	}
	if _, err := s.Watari("lab", "wan", "set", "--name", "bench-migrate", wan); err != nil {
		return err
	}
	if err := r.far(s, (runs+1)/2); err != nil || far {
		return err
	}
	r.Goals = []report.Goal{report.AtMost("guest stopped, ms, against 1.3 times virsh's", r.Downtime.Median, 1.3*r.PeerDowntime.Median),
		report.AtMost("stall, Watari / virsh", r.StallRatio.Median, 0.4),
		report.AtMost("total, Watari / virsh", r.TotalRatio.Median, 1.3),
		report.AtMost("total over "+wan+", Watari / virsh", r.FarRatio.Median, 0.5),
		report.AtMost("together / sum of single moves", r.TogetherRatio.Median, 0.4)}
	r.tell()
	fmt.Printf("four together / one by one %s; no less than %s by the work alone\n", r.TogetherRatio, r.TogetherBound)
	const out = "build/reports/bench-migrate.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

// tell prints the results for one guest.
func (r *migrateReport) tell() {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nlongest MPI exchange, ms\tWatari %s\tvirsh %s\tratio %s\n", r.MPIStall, r.PeerStall, r.StallRatio)
	fmt.Fprintf(w, "total, s\tWatari %s\tvirsh %s\tratio %s\n", r.Total, r.PeerTotal, r.TotalRatio)
	fmt.Fprintf(w, "\tby a message of 1 MiB in %s\tin %s\t(the others by one of 8 bytes)\n", large(r.StallSizes), large(r.PeerSizes))
	fmt.Fprintf(w, "guest stopped, ms\tWatari %s\tvirsh %s\n", r.Downtime, r.PeerDowntime)
	fmt.Fprintf(w, "of these for sending\tWatari %s\n", r.Sending)
	if len(r.FarTotal.Runs) > 0 {
		fmt.Fprintf(w, "over %s: total, s\tWatari %s\tvirsh %s\tratio %s\n", wan, r.FarTotal, r.PeerFarTotal, r.FarRatio)
		fmt.Fprintf(w, "over %s: guest stopped, ms, of these for sending; MiB sent\tWatari %s, %s; %s\n", wan, r.FarDowntime, r.FarSending, r.Sent)
	}
	w.Flush()
}

// single moves one of two guests back and forth between the hosts of a site while they exchange messages.
func (r *migrateReport) single(s *system.System, runs int) error {
	if _, err := s.Watari("cluster", "create", "bm", "--guests", "2", "--memory", "256M", "--image", s.Image, "--site", "a", "--spread", "host", "--wait"); err != nil {
		return err
	}
	defer s.Watari("cluster", "delete", "bm", "--wait")
	if _, err := s.Watari("run", "bm", "--name", "pingpong", "--detach", "--stage", "build/bin/pingpong", "--", "./pingpong", "7200"); err != nil {
		return err
	}
	if err := exchanging(s); err != nil {
		return err
	}
	var ours, peers []window
	for i := range runs {
		if err := reached(s, "bm-1"); err != nil {
			return err
		}
		for range 2 {
			w, m, err := ourMove(s, "bm-1", other)
			if err != nil {
				return err
			}
			time.Sleep(apart)
			ours = append(ours, w)
			fmt.Printf("Watari, run %d: %.2f s, stopped %.0f ms\n", i+1, w.total, m.DowntimeMs)
		}
		ws, err := peerMoves(s, "bm-1", other)
		if err != nil {
			return err
		}
		for _, w := range ws {
			fmt.Printf("virsh, run %d: %.2f s, stopped %.0f ms\n", i+1, w.total, w.downtime)
		}
		peers = append(peers, ws...)
	}
	if err := reached(s, "bm-1"); err != nil {
		return err
	}
	time.Sleep(3 * time.Second) // lets output that the program wrote while the agents were stopped arrive
	out, err := s.Watari("run", "logs", "pingpong")
	if err != nil {
		return err
	}
	if _, err := s.Watari("run", "cancel", "pingpong"); err != nil {
		return err
	}
	offset, err := clockOffset(s)
	if err != nil {
		return err
	}
	ourStalls, ourSizes, err := stalls(out, ours, offset)
	if err != nil {
		return err
	}
	peerStalls, peerSizes, err := stalls(out, peers, offset)
	if err != nil {
		return err
	}
	r.StallSizes, r.PeerSizes, r.Sending = ourSizes, peerSizes, report.Summarize("ms", sendings(ours)...)
	r.MPIStall, r.PeerStall = report.Summarize("ms", ourStalls...), report.Summarize("ms", peerStalls...)
	r.Total, r.PeerTotal = report.Summarize("s", totals(ours)...), report.Summarize("s", totals(peers)...)
	r.StallRatio, r.TotalRatio = report.Ratios(ourStalls, peerStalls), report.Ratios(totals(ours), totals(peers))
	r.Downtime, r.PeerDowntime = report.Summarize("ms", downtimes(ours)...), report.Summarize("ms", downtimes(peers)...)
	return nil
}

// exchanging waits until the ping-pong runs.
func exchanging(s *system.System) error {
	deadline := time.Now().Add(patience)
	for time.Now().Before(deadline) {
		if out, err := s.Watari("run", "logs", "pingpong"); err == nil && strings.Contains(out, "start ") {
			return nil
		}
		time.Sleep(200 * time.Millisecond)
	}
	return fmt.Errorf("the ping-pong did not begin within %v", patience)
}

func totals(windows []window) []float64 {
	var t []float64
	for _, w := range windows {
		t = append(t, w.total)
	}
	return t
}

func downtimes(windows []window) []float64 {
	var t []float64
	for _, w := range windows {
		t = append(t, w.downtime)
	}
	return t
}

func sendings(windows []window) []float64 {
	var t []float64
	for _, w := range windows {
		t = append(t, w.sending)
	}
	return t
}

// large says in how many stalls a large message was exchanged.
func large(sizes []int) string {
	n := 0
	for _, size := range sizes {
		if size > 8 {
			n++
		}
	}
	return fmt.Sprintf("%d of %d", n, len(sizes))
}

// far moves an idle guest to the other site and back.
func (r *migrateReport) far(s *system.System, runs int) error {
	if _, err := s.Watari("cluster", "create", "bf", "--guests", "1", "--memory", "512M", "--image", s.Image, "--site", "a", "--wait"); err != nil {
		return err
	}
	defer s.Watari("cluster", "delete", "bf", "--wait")
	home := ""
	away := func(host string) string {
		if host[0] == 'a' {
			home = host
			return "b1"
		}
		return home
	}
	for range 2 { // the other site gets the image, and the hosts become WireGuard peers
		if _, _, err := ourMove(s, "bf-0", away); err != nil {
			return err
		}
	}
	var ours, peers []window
	var sent []float64
	for i := range runs {
		if err := reached(s, "bf-0"); err != nil {
			return err
		}
		for range 2 {
			var w window
			var m migration
			p, err := profiled(func() (err error) {
				w, m, err = ourMove(s, "bf-0", away)
				return err
			})
			if err != nil {
				return err
			}
			time.Sleep(apart)
			f := farPhase{p, m.Switched.Sub(m.Started).Seconds(), w.end.Sub(m.Switched).Seconds()}
			r.Far = append(r.Far, f)
			bytes, err := strconv.ParseFloat(m.Progress.TransferredBytes, 64)
			if err != nil {
				return err
			}
			ours, sent = append(ours, w), append(sent, bytes/(1<<20))
			fmt.Printf("Watari, run %d over %s: stopped %.0f ms; %.2f s before routes were switched, %.2f s after that; %s\n", i+1, wan, m.DowntimeMs, f.Before, f.After, p)
		}
		ws, err := peerMoves(s, "bf-0", away)
		if err != nil {
			return err
		}
		for _, w := range ws {
			fmt.Printf("virsh, run %d over %s: %.2f s, stopped %.0f ms\n", i+1, wan, w.total, w.downtime)
		}
		peers = append(peers, ws...)
	}
	r.FarTotal, r.PeerFarTotal = report.Summarize("s", totals(ours)...), report.Summarize("s", totals(peers)...)
	r.FarRatio, r.FarDowntime = report.Ratios(totals(ours), totals(peers)), report.Summarize("ms", downtimes(ours)...)
	r.FarSending = report.Summarize("ms", sendings(ours)...)
	r.Sent = report.Summarize("MiB", sent...)
	return reached(s, "bf-0")
}

// clockOffset returns how far the clock of the guest that writes the log is ahead of this machine's clock. In guests of
// emulated machines it is several seconds.
func clockOffset(s *system.System) (time.Duration, error) {
	begun := time.Now()
	out, err := s.Watari("guest", "exec", "bm-0", "--", "date", "+%s.%N")
	if err != nil {
		return 0, err
	}
	between := begun.Add(time.Since(begun) / 2)
	seconds, err := strconv.ParseFloat(strings.TrimSpace(out), 64)
	if err != nil {
		return 0, fmt.Errorf("the clock of guest bm-0: %w", err)
	}
	return time.UnixMicro(int64(seconds * 1e6)).Sub(between), nil
}

// stalls returns the longest exchange in ms during or just after each window, and the size of its message in bytes. The log's
// clock is ahead by offset. Each window has one, because a guest is paused for longer than the shortest exchange that the
// ping-pong logs.
func stalls(log string, windows []window, offset time.Duration) (longest []float64, sizes []int, err error) {
	longest, sizes = make([]float64, len(windows)), make([]int, len(windows))
	for line := range strings.Lines(log) {
		words := strings.Fields(line)
		if len(words) != 4 || words[0] != "stall" {
			continue
		}
		end, _ := strconv.ParseFloat(words[1], 64)
		ms, _ := strconv.ParseFloat(words[3], 64)
		size, _ := strconv.Atoi(words[2])
		ended := time.UnixMicro(int64(end * 1e6)).Add(-offset)
		began := ended.Add(-time.Duration(ms * float64(time.Millisecond)))
		for i, w := range windows {
			if ended.After(w.begin) && began.Before(w.end.Add(time.Second)) {
				if ms > longest[i] {
					longest[i], sizes[i] = ms, size
				}
			}
		}
	}
	if slices.Contains(longest, 0) {
		return nil, nil, fmt.Errorf("the ping-pong tells of no stall in some moves: %v", longest)
	}
	return longest, sizes, nil
}

func find(s *system.System, name string) (guest, error) {
	var list []guest
	if err := s.JSON(&list, "guest", "list"); err != nil {
		return guest{}, err
	}
	for _, g := range list {
		if g.Meta.Name == name {
			return g, nil
		}
	}
	return guest{}, fmt.Errorf("there is no guest %s", name)
}

func other(host string) string {
	if host == "a1" {
		return "a2"
	}
	return "a1"
}

// apart is the pause between moves, so that their windows do not overlap.
const apart = 1500 * time.Millisecond

// ourMove moves a guest to another host.
func ourMove(s *system.System, name string, away func(string) string) (window, migration, error) {
	var m migration
	g, err := find(s, name)
	if err != nil {
		return window{}, m, err
	}
	w := window{begin: time.Now()}
	if err := s.JSON(&m, "migrate", name, "--to", away(g.Host)); err != nil {
		return w, m, err
	}
	w.end, w.downtime, w.sending = time.Now(), m.DowntimeMs, m.SendingMs
	w.total = w.end.Sub(w.begin).Seconds()
	return w, m, nil
}

// together moves the four guests of a cluster one after the other, and then back all at once.
func (r *migrateReport) together(s *system.System, runs int) error {
	if _, err := s.Watari("cluster", "create", "bt", "--guests", "4", "--memory", "256M", "--image", s.Image, "--site", "a", "--spread", "host", "--wait"); err != nil {
		return err
	}
	defer s.Watari("cluster", "delete", "bt", "--wait")
	var at, one, bound []float64
	for i := range runs {
		oneByOne, err := profiled(func() error {
			for g := range 4 {
				if _, err := s.Watari("migrate", fmt.Sprintf("bt-%d", g), "--to", []string{"b1", "b2"}[g%2]); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
		atOnce, err := profiled(func() error {
			errs := make([]error, 4)
			var wait sync.WaitGroup
			for g := range 4 {
				wait.Go(func() {
					_, errs[g] = s.Watari("migrate", fmt.Sprintf("bt-%d", g), "--to", []string{"a1", "a2"}[g%2])
				})
			}
			wait.Wait()
			return errors.Join(errs...)
		})
		if err != nil {
			return err
		}
		one, at = append(one, oneByOne.Seconds), append(at, atOnce.Seconds)
		bound = append(bound, oneByOne.Busy/float64(runtime.NumCPU()))
		r.OneByOne, r.AtOnce = append(r.OneByOne, oneByOne), append(r.AtOnce, atOnce)
		fmt.Printf("four guests, run %d: one after the other %s\n", i+1, oneByOne)
		fmt.Printf("four guests, run %d: together %s\n", i+1, atOnce)
	}
	r.TogetherRatio, r.TogetherBound = report.Ratios(at, one), report.Summarize("", bound...)
	return nil
}
