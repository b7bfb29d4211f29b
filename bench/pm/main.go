// Command pm measures PM and MPI over it against what else there is, on one machine, between two, for which network
// namespaces stand, and between two guests of one host: an 8-byte half round trip and the bandwidth of a 1 MiB ping-pong
// between two processes, and for PM alone its curves, what it carries over two links at once, and what it costs that its
// rails can be left and joined. The ways take turns, so that a slow moment of the machine falls on all of them. It needs
// root for Debian packages, namespaces and the guests' image, and writes build/reports/bench-pm.json and plots beside it.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
)

const (
	small = 8       // bytes, for latency
	large = 1 << 20 // bytes, for bandwidth
)

func main() {
	runs := flag.Int("runs", 9, "turns")
	out := flag.String("out", "build/reports/bench-pm.json", "report to write; plots go beside it")
	only := flag.String("only", "", "measure only ways with this in their names, and write no report")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	if err := measure(ctx, *runs, *out, *only); err != nil {
		fmt.Fprintln(os.Stderr, "bench-pm:", err)
		os.Exit(1)
	}
}

func measure(ctx context.Context, runs int, out, only string) (err error) {
	b, err := prepare(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.removeCables(ctx)) }()
	if err := b.layCables(ctx); err != nil {
		return err
	}
	all := b.ways()
	ways := slices.DeleteFunc(slices.Clone(all), func(w *way) bool { return !strings.Contains(w.name(), only) })
	if len(ways) == 0 {
		return fmt.Errorf("no way has %q in its name", only)
	}
	if slices.ContainsFunc(ways, betweenGuests) {
		fmt.Println("== bringing up two guests")
		if err := b.measureGuests(ctx, ways, all, fewer(runs)); err != nil {
			return err
		}
	}
	if err := b.takeTurns(ctx, ways, runs); err != nil || only != "" {
		return err
	}
	addLinks(ways)
	costs, err := b.countCosts(ctx, fewer(runs))
	if err != nil {
		return err
	}
	fmt.Println("== PM's curves")
	plots, err := b.plot(ctx, out, ways)
	if err != nil {
		return err
	}
	r := newResult(ways, plots, b.skipped)
	r.addCosts(costs)
	r.Command = fmt.Sprintf("make bench-pm (runs %d)", runs)
	r.Versions = b.versions
	return errors.Join(r.write(out), r.print(out))
}

// fewer is how many turns those ways get that take longer.
func fewer(runs int) int { return (runs + 1) / 2 }

// takeTurns measures all ways but those between guests, and those over cables in the first turns only.
func (b *bench) takeTurns(ctx context.Context, ways []*way, runs int) error {
	order := slices.Clone(ways)
	for turn := range runs {
		for _, w := range order {
			if w.command == nil && w.perf == nil && w.provider == "" || w.cable != nil && turn >= fewer(runs) {
				continue
			}
			err := w.measure(ctx, b)
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			if err != nil {
				return fmt.Errorf("%s: %w", w.name(), err)
			}
			fmt.Printf("turn %d of %d: %-56s %s\n", turn+1, runs, w.name(), w.last())
		}
		slices.Reverse(order) // nobody always comes after the same
	}
	return nil
}
