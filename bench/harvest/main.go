// Harvest measures the effect of guests on the owner of a lent machine: how soon they begin to leave after the first key,
// and how long an interactive program of the owner waits for the CPU, with guests that leave, with guests that no policy
// limits, and without guests. It writes build/reports/bench-harvest.json.
//
// All hosts of a lab are on one machine. To keep the owner's host from waiting for the others, all its processes are pinned
// to one processor, and those of the other host, of the manager and of this program to the others.
package main

import (
	"bufio"
	"context"
	"crypto/sha256"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"watari/bench/report"
	"watari/bench/system"
)

type harvestReport struct {
	report.Header
	FirstPage report.Stat   `json:"first_page_s"` // from the owner's login to the first page on the wire
	Gone      report.Stat   `json:"gone_s"`       // from the owner's login until both guests have left
	Alone     report.Stat   `json:"alone_p99_ms"` // an interactive loop of the owner, without guests
	Leaving   report.Stat   `json:"leaving_p99_ms"`
	Unbounded report.Stat   `json:"unbounded_p99_ms"` // beside guests, without a policy
	Ratio     report.Stat   `json:"leaving_by_alone"`
	Without   report.Stat   `json:"unbounded_by_alone"`
	Goals     []report.Goal `json:"goals"`
}

const (
	lab    = "bench-harvest"
	lent   = "a1" // the owner's host
	other  = "a2"
	guests = 2
	// span is the duration of the loop.
	span = 25 * time.Second
	// beat is the period of the loop's work. The work takes about a millisecond.
	beat = 10 * time.Millisecond
	// aPage is more than the agent and WireGuard send in a tick, and less than a guest's first megabyte.
	aPage = 64 << 10
)

const policy = `
owners:
- match: host.name == "a1"
  busy:
  - when: host.terminal_idle < duration("10s")
  idle:
    when: host.terminal_idle > duration("10s")
    for: 3s
harvest:
  throttle: {weight: 1, cpu: 25%, stop_after: 20s}
`

func main() {
	runs := flag.Int("runs", 3, "repetitions")
	loop := flag.Bool("loop", false, "internal: be the owner's program")
	watch := flag.Bool("watch", false, "internal: watch what the host sends")
	flag.Parse()
	switch {
	case *loop:
		interact()
		return
	case *watch:
		watchSent()
		return
	}
	if err := bench(*runs); err != nil {
		fmt.Fprintln(os.Stderr, "bench-harvest:", err)
		os.Exit(1)
	}
}

// interact is the owner's program: each beat it has some work to do, and prints when the work was due and how late it was
// done, in nanoseconds.
func interact() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	work := make([]byte, 64<<10)
	rounds := 1
	for begun := time.Now(); ; rounds++ { // as many rounds as take a millisecond
		sha256.Sum256(work)
		if time.Since(begun) > time.Millisecond {
			break
		}
	}
	due := time.Now()
	for end := due.Add(span); due.Before(end); {
		due = due.Add(beat)
		time.Sleep(time.Until(due))
		for range rounds {
			sha256.Sum256(work)
		}
		fmt.Fprintln(out, due.UnixNano(), time.Since(due).Nanoseconds())
	}
}

// watchSent prints, every two milliseconds, how much the network's interface has sent.
func watchSent() {
	for end := time.Now().Add(span); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		text, err := os.ReadFile("/proc/self/net/dev")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		for line := range strings.Lines(string(text)) {
			if name, rest, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "eth0" {
				fmt.Println(time.Now().UnixNano(), strings.Fields(rest)[8])
			}
		}
	}
}

// pair is a line of these programs' output.
type pair struct {
	at    time.Time
	value float64
}

func pairs(out string) (list []pair) {
	for line := range strings.Lines(out) {
		var at int64
		var value float64
		if n, _ := fmt.Sscan(line, &at, &value); n == 2 {
			list = append(list, pair{time.Unix(0, at), value})
		}
	}
	return list
}

// p99 returns the 99th percentile, in ms, of the loop's lateness until a time.
func p99(list []pair, until time.Time) (float64, error) {
	var late []float64
	for _, p := range list {
		if p.at.Before(until) {
			late = append(late, p.value/1e6)
		}
	}
	if len(late) < 100 {
		return 0, fmt.Errorf("the owner's loop ran %d times only", len(late))
	}
	slices.Sort(late)
	return late[int(math.Ceil(0.99*float64(len(late))))-1], nil
}

func bench(runs int) error {
	if runtime.NumCPU() < 2 {
		return fmt.Errorf("this needs two processors: one for the owner's host, and one for all else")
	}
	r := harvestReport{Header: report.NewHeader("bench-harvest", "make bench-harvest")}
	s, err := system.UpSite(lab)
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return err
	}
	if err := install(s); err != nil {
		return err
	}
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go pin(ctx)
	var first, gone, alone, leaving, unbounded []float64
	for run := range runs {
		fmt.Printf("== run %d of %d\n", run+1, runs)
		one, err := measure(s)
		if err != nil {
			return err
		}
		first, gone = append(first, one.first), append(gone, one.gone)
		alone, leaving, unbounded = append(alone, one.alone), append(leaving, one.leaving), append(unbounded, one.unbounded)
	}
	r.FirstPage, r.Gone = report.Summarize("s", first...), report.Summarize("s", gone...)
	r.Alone, r.Leaving, r.Unbounded = report.Summarize("ms", alone...), report.Summarize("ms", leaving...), report.Summarize("ms", unbounded...)
	r.Ratio, r.Without = report.Ratios(leaving, alone), report.Ratios(unbounded, alone)
	r.Goals = []report.Goal{report.AtMost("first page after the owner's login, s", r.FirstPage.Median, 1),
		report.AtMost("p99 of the owner's loop, guests leaving / no guests", r.Ratio.Median, 1.2)}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nfirst page sent\t%s\nboth guests gone\t%s\n", r.FirstPage, r.Gone)
	fmt.Fprintf(w, "p99 of the owner's loop: no guests\t%s\nguests leaving\t%s\t%s times\nguests that no policy bounds\t%s\t%s times\n", r.Alone, r.Leaving, r.Ratio, r.Unbounded, r.Without)
	w.Flush()
	const out = "build/reports/bench-harvest.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

// program is the path of this program on the lent host, which may not have this program's own directory.
const program = "/tmp/bench-harvest"

// install copies this program to the lent host.
func install(s *system.System) error {
	self, err := os.Open("/proc/self/exe")
	if err != nil {
		return err
	}
	defer self.Close()
	if err := s.WriteTo(lent, self, program); err != nil {
		return err
	}
	_, err = s.OnHost(lent, "chmod 755 "+program)
	return err
}

type result struct{ first, gone, alone, leaving, unbounded float64 }

// measure measures once, in the order: guests that stay, guests that leave, no guests.
func measure(s *system.System) (r result, err error) {
	steps := [][]string{
		{"host", "drain", other},
		{"cluster", "create", "bh", "--guests", strconv.Itoa(guests), "--memory", "256M", "--image", s.Image, "--wait"},
		{"host", "drain", other, "--undo"},
		{"run", "bh", "--detach", "--", "sh", "-c", "while :; do :; done"},
	}
	for _, step := range steps {
		if _, err := s.Watari(step...); err != nil {
			return r, err
		}
	}
	defer s.Watari("cluster", "delete", "bh", "--wait")
	time.Sleep(5 * time.Second) // the programs start
	list, err := ownersLoop(s)
	if err != nil {
		return r, err
	}
	if r.unbounded, err = p99(list, time.Now()); err != nil {
		return r, err
	}
	if err := leave(s, &r); err != nil {
		return r, err
	}
	if list, err = ownersLoop(s); err != nil {
		return r, err
	}
	r.alone, err = p99(list, time.Now())
	return r, err
}

// leave makes the owner come back, and waits until the guests have left.
func leave(s *system.System, r *result) error {
	file := filepath.Join(os.TempDir(), "bench-harvest-policy.yaml")
	if err := os.WriteFile(file, []byte(policy), 0o600); err != nil {
		return err
	}
	defer os.Remove(file)
	if _, err := s.Watari("policy", "apply", file); err != nil {
		return err
	}
	defer s.Watari("policy", "rollback")
	defer s.Watari("lab", "owner", "--name", lab, lent, "away")
	sent, loop := make(chan string, 1), make(chan []pair, 1)
	go func() {
		out, _ := s.OnHost(lent, "exec "+program+" -watch")
		sent <- out
	}()
	time.Sleep(time.Second)
	go func() {
		list, _ := ownersLoop(s)
		loop <- list
	}()
	time.Sleep(time.Second)
	if _, err := s.Watari("lab", "owner", "--name", lab, lent, "types"); err != nil {
		return err
	}
	stamp, err := s.OnHost(lent, "stat -c %.9Y /run/utmp")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseFloat(strings.TrimSpace(stamp), 64)
	if err != nil {
		return fmt.Errorf("when the owner logged in: %w", err)
	}
	back := time.Unix(0, int64(seconds*1e9))
	deadline := time.Now().Add(3 * time.Minute)
	for away := false; !away; time.Sleep(200 * time.Millisecond) {
		var list []struct{ Host, State string }
		if err := s.JSON(&list, "guest", "list", "bh"); err != nil {
			return err
		}
		away = len(list) == guests
		for _, g := range list {
			away = away && g.Host == other && strings.HasSuffix(g.State, "_RUNNING")
		}
		if !away && time.Now().After(deadline) {
			return fmt.Errorf("the guests have not left: %v", list)
		}
	}
	left, err := arrived(s)
	if err != nil {
		return err
	}
	r.gone = left.Sub(back).Seconds()
	counts := pairs(<-sent)
	r.first = firstPage(counts, back)
	if math.IsNaN(r.first) {
		return fmt.Errorf("nothing was sent: %d looks at the interface, the guests were gone after %.1f s", len(counts), r.gone)
	}
	r.leaving, err = p99(slices.DeleteFunc(<-loop, func(p pair) bool { return p.at.Before(back) }), left)
	return err
}

// arrived returns the end of the last guest's move in the manager's record. Polling the guests would be inaccurate: two
// emulated guests keep the other host's processor busy, and there the polling command got no CPU time for 20 s.
func arrived(s *system.System) (last time.Time, err error) {
	var moves []struct {
		Source, State string
		Ended         time.Time
	}
	if err := s.JSON(&moves, "migrate", "list", "--all"); err != nil {
		return last, err
	}
	for _, m := range moves {
		if m.Source == lent && strings.HasSuffix(m.State, "_DONE") && m.Ended.After(last) {
			last = m.Ended
		}
	}
	if last.IsZero() {
		return last, fmt.Errorf("no guest has moved from %s: %v", lent, moves)
	}
	return last, nil
}

// firstPage returns the seconds from a time until the interface has sent more than aPage; NaN: it has not.
func firstPage(counts []pair, back time.Time) float64 {
	base := math.NaN()
	for _, c := range counts {
		switch {
		case c.at.Before(back):
			base = c.value
		case math.IsNaN(base):
			base = c.value
		case c.value-base > aPage:
			return c.at.Sub(back).Seconds()
		}
	}
	return math.NaN()
}

// ownersLoop runs the owner's program on the lent host.
func ownersLoop(s *system.System) ([]pair, error) {
	out, err := s.OnHost(lent, "exec setpriv --reuid=1000 --regid=1000 --clear-groups "+program+" -loop")
	if err != nil {
		return nil, err
	}
	return pairs(out), nil
}

// pin keeps all processes of the lent host on the first processor, and those of the other host, of the manager and of this
// program on the others, until ctx ends.
func pin(ctx context.Context) {
	self := strconv.Itoa(os.Getpid())
	for ctx.Err() == nil {
		threads, _ := filepath.Glob("/proc/[0-9]*/task/[0-9]*")
		for _, thread := range threads {
			tid, _ := strconv.Atoi(filepath.Base(thread))
			groups, err := os.ReadFile(filepath.Join(thread, "cgroup"))
			if err != nil {
				continue
			}
			command, _ := os.ReadFile(filepath.Join(filepath.Dir(filepath.Dir(thread)), "cmdline"))
			var want, have unix.CPUSet
			switch {
			case strings.Contains(string(groups), "/watari-lab/"+lab+"/"+lent):
				want.Set(0)
			case strings.Contains(string(groups), "/watari-lab/"+lab+"/"), strings.Contains(string(command), "/watari-"+lab+"/"),
				filepath.Base(filepath.Dir(filepath.Dir(thread))) == self: // child processes inherit the affinity
				for cpu := 1; cpu < runtime.NumCPU(); cpu++ {
					want.Set(cpu)
				}
			default:
				continue
			}
			if unix.SchedGetaffinity(tid, &have) == nil && have != want {
				_ = unix.SchedSetaffinity(tid, &want) // kernel threads refuse
			}
		}
		time.Sleep(100 * time.Millisecond)
	}
}
