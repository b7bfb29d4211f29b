package main

// first.go - the first cluster with an image, on hosts that have neither the image nor a template.

import (
	"fmt"
	"os"
	"text/tabwriter"
	"time"

	"watari/bench/report"
	"watari/bench/system"
)

// wan is the demo's WAN between site a, where the manager is, and site b.
const wan = "20ms,200mbit"

// manyHosts is the number of hosts per site in the second measurement.
const manyHosts = 8

// firstReport is about the demo's cluster: four guests on two sites of two hosts.
type firstReport struct {
	WAN   string      `json:"wan"`
	On    report.Stat `json:"sharing_s"`
	Off   report.Stat `json:"no_sharing_s"`
	Ratio report.Stat `json:"sharing_ratio"` // on / off
	// The bytes that site b received over the WAN meanwhile.
	OnBytes  report.Stat `json:"sharing_wan"`
	OffBytes report.Stat `json:"no_sharing_wan"`
}

// hostsReport compares one guest on one host of site b with one guest on each of many hosts, with sharing.
type hostsReport struct {
	WAN       string      `json:"wan"`
	Hosts     int         `json:"hosts"`
	One       report.Stat `json:"one_host_s"`
	Many      report.Stat `json:"many_hosts_s"`
	Ratio     report.Stat `json:"hosts_ratio"` // many / one
	OneBytes  report.Stat `json:"one_host_wan"`
	ManyBytes report.Stat `json:"many_hosts_wan"`
}

// series is a kind of start that is measured several times.
type series struct {
	name         string
	sharing      bool
	hostsOfASite int
	create       []string
	seconds, mib []float64
}

// inTurn measures each of several series once, and repeats this runs times.
func inTurn(s *system.System, runs int, all ...*series) error {
	for i := range runs {
		for _, one := range all {
			if err := one.measure(s); err != nil {
				return fmt.Errorf("first cluster, %s, run %d: %w", one.name, i+1, err)
			}
			fmt.Printf("first cluster, %s, run %d: %.2f s, %.0f MiB over the WAN\n", one.name, i+1, one.seconds[i], one.mib[i])
		}
	}
	return nil
}

func measureFirst(s *system.System, runs int) (*firstReport, error) {
	demo := []string{"--guests", "4", "--spread", "site"}
	on := &series{name: "sharing", sharing: true, hostsOfASite: 2, create: demo}
	off := &series{name: "no sharing", hostsOfASite: 2, create: demo}
	if err := inTurn(s, runs, on, off); err != nil {
		return nil, err
	}
	f := &firstReport{WAN: wan, On: report.Summarize("s", on.seconds...), Off: report.Summarize("s", off.seconds...),
		Ratio: report.Ratios(on.seconds, off.seconds), OnBytes: report.Summarize("MiB", on.mib...), OffBytes: report.Summarize("MiB", off.mib...)}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nfirst cluster of an image, ready, sharing\t%s\tover the WAN\t%s\nwithout\t%s\tover the WAN\t%s\nsharing / without\t%s\n", f.On, f.OnBytes, f.Off, f.OffBytes, f.Ratio)
	return f, w.Flush()
}

func measureHosts(s *system.System, runs int) (*hostsReport, error) {
	ofB := func(n int) *series {
		return &series{name: fmt.Sprintf("on %d of a site's hosts", n), sharing: true, hostsOfASite: manyHosts,
			create: []string{"--guests", fmt.Sprint(n), "--site", "b", "--spread", "host"}}
	}
	one, many := ofB(1), ofB(manyHosts)
	if err := inTurn(s, runs, one, many); err != nil {
		return nil, err
	}
	h := &hostsReport{WAN: wan, Hosts: manyHosts, One: report.Summarize("s", one.seconds...), Many: report.Summarize("s", many.seconds...),
		Ratio: report.Ratios(many.seconds, one.seconds), OneBytes: report.Summarize("MiB", one.mib...), ManyBytes: report.Summarize("MiB", many.mib...)}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\na guest on one host of a site\t%s\tover the WAN\t%s\na guest on each of %d\t%s\tover the WAN\t%s\n%[3]d / 1\t%[6]s\n", h.One, h.OneBytes, manyHosts, h.Many, h.ManyBytes, h.Ratio)
	return h, w.Flush()
}

// measure makes the first cluster on new hosts, and removes it.
func (one *series) measure(s *system.System) error {
	if err := s.Sharing(one.sharing); err != nil {
		return err
	}
	if err := s.NewLab(one.hostsOfASite, wan); err != nil {
		return err
	}
	before, err := s.OverWAN("b")
	if err != nil {
		return err
	}
	begin := time.Now()
	if _, err := s.Watari(append([]string{"cluster", "create", "bs", "--vcpus", "1", "--memory", "512M", "--image", s.Image, "--wait"}, one.create...)...); err != nil {
		return err
	}
	took := time.Since(begin)
	after, err := s.OverWAN("b")
	if err != nil {
		return err
	}
	one.seconds, one.mib = append(one.seconds, took.Seconds()), append(one.mib, float64(after-before)/(1<<20))
	_, err = s.Watari("cluster", "delete", "bs", "--wait")
	return err
}
