// Checkpoint measures the cost of a checkpoint of one guest: how long the guest is paused, how much slower it runs while its
// memory is written, and how large the file is. The guest writes to its memory at random. It compares this cost with `virsh
// save` of the same guest. It writes build/reports/bench-checkpoint.json.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"text/tabwriter"
	"time"

	"filippo.io/age"

	"watari/agent/checkpoint"
	"watari/bench/report"
)

type checkpointReport struct {
	report.Header
	MemoryMiB  int           `json:"memory_mib"`
	WrittenMiB int           `json:"written_mib"`    // memory to which the guest writes
	Quiet      report.Stat   `json:"quiet_stall_ms"` // the longest silence of the undisturbed guest
	Stopped    report.Stat   `json:"stopped_ms"`     // from the order to stop until the guest runs again
	Stall      report.Stat   `json:"stall_ms"`       // the longest silence of the guest until the file is on disk
	Total      report.Stat   `json:"total_s"`
	Slowdown   report.Stat   `json:"slowdown"` // part of its writes that the guest does not do during the checkpoint
	State      report.Stat   `json:"state_mib"`
	File       report.Stat   `json:"file_mib"`
	Increment  report.Stat   `json:"increment"`     // size of a second file that builds on the first, divided by the first's
	Restore    report.Stat   `json:"restore_s"`     // from the file until the guest continues to count
	Save       report.Stat   `json:"virsh_save_ms"` // pause of the guest while virsh saves it; it must then be restored
	SaveStall  report.Stat   `json:"virsh_save_and_restore_ms"`
	Ratio      report.Stat   `json:"stall_by_virsh_save"`
	Goals      []report.Goal `json:"goals"`
}

const pause = 3 * time.Second // duration of an undisturbed span

func main() {
	runs := flag.Int("runs", 3, "repetitions")
	memory := flag.Int("memory", 512, "of the guest, MiB")
	written := flag.Int("written", 200, "to which the guest writes, MiB")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	context.AfterFunc(ctx, stop) // a second signal ends the program at once
	err := bench(ctx, *runs, *memory, *written)
	if ctx.Err() != nil {
		fmt.Fprintln(os.Stderr, "bench-checkpoint: stopped; the host and its guest are removed")
		os.Exit(130)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench-checkpoint:", err)
		os.Exit(1)
	}
}

func bench(ctx context.Context, runs, memory, written int) error {
	r := checkpointReport{Header: report.NewHeader("bench-checkpoint", "make bench-checkpoint"), MemoryMiB: memory, WrittenMiB: written}
	r.Machine.Acceleration = "tcg"
	h, err := startHost(ctx)
	if h != nil {
		defer h.close()
	}
	if err != nil {
		return err
	}
	all := map[string][]float64{}
	for run := range runs {
		fmt.Printf("== run %d of %d\n", run+1, runs)
		if err := h.measure(ctx, memory, written, func(what string, value float64) {
			fmt.Printf("%-16s %.3g\n", what, value)
			all[what] = append(all[what], value)
		}); err != nil {
			return err
		}
	}
	for _, s := range []struct {
		to         *report.Stat
		what, unit string
	}{
		{&r.Quiet, "quiet", "ms"}, {&r.Stopped, "stopped", "ms"}, {&r.Stall, "stall", "ms"}, {&r.Total, "total", "s"},
		{&r.Slowdown, "slowdown", ""}, {&r.State, "state", "MiB"}, {&r.File, "file", "MiB"}, {&r.Increment, "increment", ""}, {&r.Restore, "restore", "s"},
		{&r.Save, "virsh save", "ms"}, {&r.SaveStall, "and restore", "ms"},
	} {
		*s.to = report.Summarize(s.unit, all[s.what]...)
	}
	r.Ratio = report.Ratios(all["stall"], all["virsh save"])
	r.Goals = []report.Goal{
		report.AtMost("longest stall / the stop by virsh save", r.Ratio.Median, 0.3),
		report.AtMost("longest stall, ms", r.Stall.Median, 500),
		report.AtMost("an increment / a whole file", r.Increment.Median, 0.3)}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\nlongest silence, undisturbed\t%s\nstopped\t%s\nlongest silence\t%s\nall written\t%s\nslow-down\t%s\n", r.Quiet, r.Stopped, r.Stall, r.Total, r.Slowdown)
	fmt.Fprintf(w, "state\t%s\nfile\t%s\nincrement / file\t%s\nrestored\t%s\nvirsh save\t%s\nand restore\t%s\n", r.State, r.File, r.Increment, r.Restore, r.Save, r.SaveStall)
	w.Flush()
	const out = "build/reports/bench-checkpoint.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

// measure boots a guest, measures, and ends the guest.
func (h *host) measure(ctx context.Context, memory, written int, note func(string, float64)) error {
	if err := h.boot(ctx, memory, written); err != nil {
		return err
	}
	defer h.driver.Destroy(ctx, h.spec.UID)
	if err := wait(ctx, pause); err != nil {
		return err
	}
	end := h.watchGuest()
	err := wait(ctx, pause)
	quiet := end()
	if err != nil {
		return err
	}
	note("quiet", ms(quiet.longest))
	key, err := age.GenerateX25519Identity()
	if err != nil {
		return err
	}
	path := filepath.Join(h.folder, "file")
	file, during, err := h.checkpoint(ctx, path, key, nil, note)
	if err != nil {
		return err
	}
	note("slowdown", 1-during.rate()/quiet.rate())
	if err := h.save(ctx, note); err != nil {
		return err
	}
	// An increment, of which only the size is recorded.
	second := filepath.Join(h.folder, "second")
	base := checkpoint.Stored{Path: path, File: file}
	increment, _, err := h.checkpoint(ctx, second, key, checkpoint.LoadBase(base), func(string, float64) {})
	if err != nil {
		return err
	}
	note("increment", float64(increment.Size)/float64(file.Size))
	return h.restore(ctx, []checkpoint.Stored{base, {Path: second, File: increment}}, key, note)
}

// checkpoint takes and writes a checkpoint: the complete state, or, if base is not nil, the differences from an earlier one.
func (h *host) checkpoint(ctx context.Context, path string, key *age.X25519Identity, base *checkpoint.Base, note func(string, float64)) (f checkpoint.File, during watch, err error) {
	s, err := h.driver.PrepareSnapshot(ctx, h.spec.UID, filepath.Join(h.folder, "pipe"))
	if err != nil {
		return f, during, err
	}
	defer func() { err = errors.Join(err, s.Close()) }()
	end, begun := h.watchGuest(), time.Now()
	err = h.driver.Stop(ctx, h.spec.UID)
	if err == nil {
		err = s.Begin(ctx)
	}
	note("stopped", ms(time.Since(begun)))
	if err == nil {
		f, err = checkpoint.Write(ctx, path, s, checkpoint.Options{Recipient: key.Recipient(), Layout: checkpoint.Memory, Base: base})
	}
	note("total", time.Since(begun).Seconds())
	during = end()
	note("stall", ms(during.longest))
	note("state", float64(f.State)/(1<<20))
	note("file", float64(f.Size)/(1<<20))
	return f, during, err
}

// save saves the guest with virsh, and restores it.
func (h *host) save(ctx context.Context, note func(string, float64)) error {
	path := filepath.Join(h.folder, "save")
	defer os.Remove(path)
	end, begun := h.watchGuest(), time.Now()
	if err := h.virsh(ctx, "save", "watari-guest", path); err != nil {
		return err
	}
	saved := time.Since(begun)
	if err := h.virsh(ctx, "restore", path); err != nil {
		return err
	}
	if err := h.await(ctx, h.count()); err != nil {
		return err
	}
	note("virsh save", ms(saved))
	note("and restore", ms(end().longest))
	return nil
}

// restore ends the guest, and restores it from the checkpoint.
func (h *host) restore(ctx context.Context, chain []checkpoint.Stored, key age.Identity, note func(string, float64)) error {
	if err := h.driver.Destroy(ctx, h.spec.UID); err != nil {
		return err
	}
	if err := os.Remove(h.console()); err != nil {
		return err
	}
	begun, plain := time.Now(), filepath.Join(h.folder, "plain")
	defer os.Remove(plain)
	if err := checkpoint.Read(ctx, chain, key, plain); err != nil {
		return err
	}
	if err := h.driver.Restore(ctx, h.spec, plain); err != nil {
		return err
	}
	if err := h.driver.Resume(ctx, h.spec.UID); err != nil {
		return err
	}
	if err := h.await(ctx, 0); err != nil {
		return err
	}
	note("restore", time.Since(begun).Seconds())
	return nil
}

// wait waits for a time, unless ctx ends before.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
