// Start measures how long guests take to start, from nothing to a finished mpirun over four guests: forked from a
// template, booted normally, and as a stock Debian booted by libvirt until ssh answers. It also measures the first
// cluster with an image on hosts that have neither the image nor a template: with hosts that fetch these from each
// other, and without. It writes build/reports/bench-start.json.
//
// With -whole, the hosts are two whole hosts with guests under KVM, and only the starts of two guests are measured. The
// report is bench-start-kvm.json.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"watari/bench/report"
	"watari/bench/system"
)

type startReport struct {
	report.Header
	Forked report.Stat   `json:"forked_s"`
	Plain  report.Stat   `json:"plain_s"`
	Peer   report.Stat   `json:"peer_s"`
	Ratio  report.Stat   `json:"ratio"`       // peer / forked
	Ours   report.Stat   `json:"plain_ratio"` // plain / forked
	First  *firstReport  `json:"first_cluster,omitempty"`
	Hosts  *hostsReport  `json:"first_cluster_of_a_site,omitempty"`
	Goals  []report.Goal `json:"goals"`
}

// hosts lists the hosts; each runs one guest.
var hosts = []string{"a1", "a2", "b1", "b2"}

func main() {
	runs := flag.Int("runs", 3, "repetitions of each, in turn")
	only := flag.String("only", "", "measure one part alone: first, the first cluster with sharing and without; hosts, with sharing on one and on many hosts; later, the other starts")
	whole := flag.Bool("whole", false, "hosts that are whole machines, with guests under KVM")
	flag.Parse()
	measure := func() error { return bench(*runs, *only) }
	if *whole {
		measure = func() error { return benchWhole(*runs) }
	}
	if err := measure(); err != nil {
		fmt.Fprintln(os.Stderr, "bench-start:", err)
		os.Exit(1)
	}
}

func bench(runs int, only string) error {
	r := startReport{Header: report.NewHeader("bench-start", "make bench-start")}
	if only == "" || only == "later" {
		if err := buildPeer(); err != nil {
			return err
		}
	}
	s, err := system.Up("bench-start", "")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return err
	}
	if only == "" || only == "later" {
		if err := r.later(s, runs); err != nil {
			return err
		}
	}
	if only == "" || only == "first" {
		if r.First, err = measureFirst(s, runs); err != nil {
			return err
		}
		r.Goals = append(r.Goals, report.AtMost("first cluster, sharing on / off", r.First.Ratio.Median, 0.6))
	}
	if only == "" || only == "hosts" {
		if r.Hosts, err = measureHosts(s, runs); err != nil {
			return err
		}
		r.Goals = append(r.Goals, report.AtMost(fmt.Sprintf("first cluster, %d hosts / 1", manyHosts), r.Hosts.Ratio.Median, 1.5))
	}
	const out = "build/reports/bench-start.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

// benchWhole measures on whole hosts.
func benchWhole(runs int) error {
	r := startReport{Header: report.NewHeader("bench-start-kvm", "make bench-kvm")}
	hosts = []string{"a1", "a2"}
	if err := buildPeer(); err != nil {
		return err
	}
	s, err := system.UpWhole("bench-start")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return err
	}
	if err := takePeer(s); err != nil {
		return err
	}
	if err := r.later(s, runs); err != nil {
		return err
	}
	r.Goals = nil // the goals are not for hosts that are virtual machines
	const out = "build/reports/bench-start-kvm.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

// later measures clusters on hosts that have the image and a template of it.
func (r *startReport) later(s *system.System, runs int) error {
	fmt.Println("== templates: one guest on each host, not measured")
	if _, err := start(s, "--spread", "host"); err != nil {
		return err
	}
	var forked, plain, peer []float64
	for i := range runs {
		for _, variant := range []struct {
			name  string
			start func() (time.Duration, error)
			into  *[]float64
		}{
			{"forked", func() (time.Duration, error) { return start(s, "--spread", "host") }, &forked},
			{"plain", func() (time.Duration, error) { return start(s, "--spread", "host", "--no-fork") }, &plain},
			{"peer", func() (time.Duration, error) { return startPeer(s, hosts) }, &peer},
		} {
			took, err := variant.start()
			if err != nil {
				return fmt.Errorf("%s, run %d: %w", variant.name, i+1, err)
			}
			fmt.Printf("%s, run %d: %.2f s\n", variant.name, i+1, took.Seconds())
			*variant.into = append(*variant.into, took.Seconds())
		}
	}
	r.Forked, r.Plain, r.Peer = report.Summarize("s", forked...), report.Summarize("s", plain...), report.Summarize("s", peer...)
	r.Ratio, r.Ours = report.Ratios(peer, forked), report.Ratios(plain, forked)
	r.Goals = []report.Goal{report.AtLeast("peer / forked", r.Ratio.Median, 8), report.AtLeast("plain / forked", r.Ours.Median, 3), report.AtMost("forked, s", r.Forked.Median, 5)}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nforked, until mpirun has ended\t%s\nbooted plainly, until mpirun has ended\t%s\npeer, until ssh answers\t%s\npeer / forked\t%s\nplain / forked\t%s\n", r.Forked, r.Plain, r.Peer, r.Ratio, r.Ours)
	w.Flush()
	return nil
}

// start measures from nothing to a finished mpirun hostname over all guests. It does not count their removal.
func start(s *system.System, how ...string) (time.Duration, error) {
	begin := time.Now()
	args := append([]string{"cluster", "create", "bs", "--guests", fmt.Sprint(len(hosts)), "--memory", "512M", "--image", s.Image, "--wait"}, how...)
	if _, err := s.Watari(args...); err != nil {
		return 0, err
	}
	out, err := s.Watari("run", "bs", "--", "hostname")
	if err != nil {
		return 0, err
	}
	took := time.Since(begin)
	for i := range hosts {
		if name := fmt.Sprintf("bs-%d", i); !strings.Contains(out, name) {
			return 0, fmt.Errorf("mpirun hostname did not run on %s: %s", name, out)
		}
	}
	_, err = s.Watari("cluster", "delete", "bs", "--wait")
	return took, err
}
