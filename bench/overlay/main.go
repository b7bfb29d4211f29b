// Command overlay measures the cost of the overlay between hosts made of network namespaces on this machine. Inside a
// site it compares the overlay's route with the bare link. Between sites it compares Watari's WireGuard with WireGuard
// alone and with OpenVPN in TAP mode on the same path. The variants take turns, so that a slow moment of the machine
// affects all of them. It needs root, and writes build/reports/bench-overlay.json.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"watari/bench/report"
	"watari/internal/nethost"
)

// result is the report. Ratios are medians of the ratios of all turns. Stats has their spread and all figures.
type result struct {
	report.Header
	LANRatio       float64                `json:"lan_ratio"`        // overlay's route / bare link
	WANVsOpenVPN   float64                `json:"wan_vs_openvpn"`   // Watari's WireGuard / OpenVPN TAP
	WANVsWireGuard float64                `json:"wan_vs_wireguard"` // Watari's WireGuard / WireGuard alone
	WireGuard      string                 `json:"wireguard"`        // "kernel" or "user space", the same for both
	OpenVPN        string                 `json:"openvpn"`          // version and settings
	Seconds        int                    `json:"seconds"`          // duration of each run
	Stats          map[string]report.Stat `json:"stats"`            // the three ratios, and the TCP throughput of each variant
	Goals          []report.Goal          `json:"goals"`
}

// variant is one way to send packets from one host to another.
type variant struct {
	name     string
	from, to *nethost.Host
	source   netip.Addr
	target   netip.Addr
	runs     []float64 // Gbit/s
}

// congestion is the endpoints' TCP congestion control: Linux's default, independent of this machine's setting.
const congestion = "cubic"

func main() {
	nethost.Main()
	runs := flag.Int("runs", 9, "turns")
	seconds := flag.Int("seconds", 3, "length of each run, s")
	out := flag.String("out", "build/reports/bench-overlay.json", "report to write")
	wireguard := flag.String("wireguard-go", "build/bin/wireguard-go", "upstream's program, used where the kernel has no WireGuard")
	only := flag.String("only", "", "measure only variants with this in their names, and write no report")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := measure(ctx, *runs, *seconds, *out, *wireguard, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench-overlay:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, runs, seconds int, out, wireguard, only string) error {
	if missing := nethost.Missing(); missing != "" {
		return fmt.Errorf("this needs %s", missing)
	}
	fmt.Println("== building two sites of network namespaces")
	b, err := build(ctx, wireguard)
	if err != nil {
		return err
	}
	defer b.end()
	variants := []*variant{b.bareLAN(), b.overlayLAN(), b.overlayWAN(), b.bareWireGuard(), b.openVPN()}
	variants = slices.DeleteFunc(variants, func(w *variant) bool { return !strings.Contains(w.name, only) })
	for _, w := range variants {
		if err := w.ready(ctx); err != nil {
			return err
		}
	}
	order := slices.Clone(variants)
	for turn := range runs {
		for _, w := range order {
			gbits, err := w.run(ctx, seconds)
			if err != nil {
				return err
			}
			fmt.Printf("turn %d of %d: %-32s %7.2f Gbit/s\n", turn+1, runs, w.name, gbits)
			w.runs = append(w.runs, gbits)
		}
		slices.Reverse(order) // no variant always follows the same other variant
	}
	if only != "" {
		return nil
	}
	r := newResult(variants, seconds)
	r.Command = fmt.Sprintf("make bench-overlay (runs %d, %d s each)", runs, seconds)
	r.WireGuard, r.OpenVPN = b.wireGuardKind, b.openVPNKind
	if err := report.Write(out, r); err != nil {
		return err
	}
	return r.print(variants, out)
}

func newResult(variants []*variant, seconds int) *result {
	lan := report.Ratios(variants[1].runs, variants[0].runs)
	wireguard := report.Ratios(variants[2].runs, variants[3].runs)
	openvpn := report.Ratios(variants[2].runs, variants[4].runs)
	r := &result{
		Header:   report.NewHeader("bench-overlay", ""),
		LANRatio: lan.Median, WANVsOpenVPN: openvpn.Median, WANVsWireGuard: wireguard.Median, Seconds: seconds,
		Stats: map[string]report.Stat{"lan_ratio": lan, "wan_vs_openvpn": openvpn, "wan_vs_wireguard": wireguard},
		Goals: []report.Goal{
			report.AtLeast("lan_ratio", lan.Median, 0.9),
			report.AtLeast("wan_vs_openvpn", openvpn.Median, 3),
			report.AtLeast("wan_vs_wireguard", wireguard.Median, 0.9),
		},
	}
	for i, key := range []string{"lan_bare", "lan_overlay", "wan_watari", "wan_wireguard", "wan_openvpn"} {
		r.Stats[key] = report.Summarize("Gbit/s", variants[i].runs...)
	}
	return r
}

// print prints the table. It returns an error if a goal is not met.
func (r *result) print(variants []*variant, out string) error {
	fmt.Printf("\nTCP, one stream, Gbit/s, median (least..greatest) of %d runs of %d s\n", len(variants[0].runs), r.Seconds)
	for _, w := range variants {
		fmt.Printf("  %-32s %s\n", w.name, report.Summarize("", w.runs...))
	}
	fmt.Printf("WireGuard in %s; %s; %s, %d cores, Linux %s; commit %s\n", r.WireGuard, r.OpenVPN, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Commit)
	return report.Tell(r.Goals, out)
}

// ready waits until the variant carries packets.
func (w *variant) ready(ctx context.Context) error {
	deadline := time.Now().Add(20 * time.Second)
	for {
		_, err := w.from.Run(ctx, "ping", "-c", "1", "-W", "1", "-I", w.source.String(), w.target.String())
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%s: carries no packets: %w", w.name, err)
		}
	}
}

// run returns what the receiver of a TCP stream got, in Gbit/s.
func (w *variant) run(ctx context.Context, seconds int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(seconds+20)*time.Second)
	defer cancel()
	for ctx.Err() == nil {
		server := w.to.Command(ctx, "iperf3", "-s", "-1", "-B", w.target.String(), "--idle-timeout", "10")
		if err := server.Start(); err != nil {
			return 0, err
		}
		ended := make(chan struct{})
		go func() { server.Wait(); close(ended) }()
		for waiting := true; waiting; { // the server needs a moment to listen
			gbits, err := w.client(ctx, seconds)
			if err == nil {
				<-ended
				return gbits, nil
			}
			select {
			case <-ended:
				waiting = false
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	return 0, fmt.Errorf("%s: iperf3 did not measure anything in %d s", w.name, seconds+20)
}

func (w *variant) client(ctx context.Context, seconds int) (gbits float64, err error) {
	text, err := w.from.Run(ctx, "iperf3", "-c", w.target.String(), "-B", w.source.String(), "-t", fmt.Sprint(seconds), "-C", congestion, "-J")
	if err != nil {
		return 0, err
	}
	var answer struct {
		Error string `json:"error"` // iperf3 exits with success even then
		End   struct {
			Received struct {
				BitsPerSecond float64 `json:"bits_per_second"`
			} `json:"sum_received"`
		} `json:"end"`
	}
	if err := json.Unmarshal([]byte(text), &answer); err != nil {
		return 0, fmt.Errorf("read iperf3's answer: %w", err)
	}
	if answer.Error != "" {
		return 0, errors.New(answer.Error)
	}
	return answer.End.Received.BitsPerSecond / 1e9, nil
}
