// Command pm compares PM, alone and under MPI, with other transports: on one machine, between two network namespaces
// that stand for two machines, and between two guests of one host. It measures the 8-byte half round trip and the
// bandwidth of a 1 MiB ping-pong between two processes. For PM alone it also measures curves, the bandwidth over two
// links at once, and the cost of leaving and joining rails.
//
// The variants take turns, so that a slow moment of the machine affects all of them. The command needs root for Debian
// packages, namespaces and the guests' image. It writes build/reports/bench-pm.json and plots beside it.
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
	only := flag.String("only", "", "measure only variants with this in their names, and write no report")
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
	all := b.variants()
	variants := slices.DeleteFunc(slices.Clone(all), func(w *variant) bool { return !strings.Contains(w.name(), only) })
	if len(variants) == 0 {
		return fmt.Errorf("no variant has %q in its name", only)
	}
	if slices.ContainsFunc(variants, betweenGuests) {
		fmt.Println("== bringing up two guests")
		if err := b.measureGuests(ctx, variants, all, fewer(runs)); err != nil {
			return err
		}
	}
	if err := b.takeTurns(ctx, variants, runs); err != nil || only != "" {
		return err
	}
	addLinks(variants)
	costs, err := b.countCosts(ctx, fewer(runs))
	if err != nil {
		return err
	}
	fmt.Println("== PM's curves")
	plots, err := b.plot(ctx, out, variants)
	if err != nil {
		return err
	}
	r := newResult(variants, plots, b.skipped)
	r.addCosts(costs)
	r.Command = fmt.Sprintf("make bench-pm (runs %d)", runs)
	r.Versions = b.versions
	return errors.Join(r.write(out), r.print(out))
}

// fewer is the number of turns for variants that take longer.
func fewer(runs int) int { return (runs + 1) / 2 }

// takeTurns measures all variants except those between guests. It measures those over cables only in the first turns.
func (b *bench) takeTurns(ctx context.Context, variants []*variant, runs int) error {
	order := slices.Clone(variants)
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
		slices.Reverse(order) // no variant always follows the same other variant
	}
	return nil
}
