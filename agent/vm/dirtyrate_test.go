package vm

import (
	"context"
	"testing"
	"time"
)

func TestHowFastGuestsWriteToMemory(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	ctx := context.Background()
	if rates, err := h.driver.DirtyRates(ctx); err != nil || len(rates) != 0 {
		t.Errorf("without guests: %v, %v", rates, err)
	}
	busy, idle, small := newSpec("busy", "test.dirty=64"), newSpec("idle", ""), newSpec("small", "test.dirty=32")
	small.MemoryBytes = 112 << 20
	for _, spec := range []Spec{busy, idle, small} {
		h.prepare(t, spec)
		if err := h.driver.Boot(ctx, spec); err != nil {
			t.Fatal(err)
		}
	}
	for _, spec := range []Spec{busy, idle, small} {
		h.counts(t, spec, 30)
	}
	var rates map[string]float64
	eventually(t, 30*time.Second, "QEMU measures in time", func() bool { // on a busy machine it may take too long
		var err error
		if rates, err = h.driver.DirtyRates(ctx); err != nil {
			t.Fatal(err)
		}
		_, busyKnown := rates[busy.UID]
		_, idleKnown := rates[idle.UID]
		_, smallKnown := rates[small.UID]
		return busyKnown && idleKnown && smallKnown
	})
	t.Log(rates)
	// The guest writes to 64 MiB over and over. In one second, it changes each of these pages, at most.
	if got := rates[busy.UID] / (1 << 20); got < 16 || got > 128 {
		t.Errorf("the busy guest writes %.0f MiB/s", got)
	}
	if got := rates[idle.UID] / (1 << 20); got > 16 {
		t.Errorf("the idle guest writes %.0f MiB/s", got)
	}
	if got := rates[small.UID] / (1 << 20); got < 8 || got > 64 {
		t.Errorf("the busy guest of 112 MiB writes %.0f MiB/s", got)
	}
}

func TestAMovingGuestIsNotMeasured(t *testing.T) {
	p := newPair(t, "move", "test.dirty=2")
	p.options.BandwidthBytes = 32 << 20
	ctx := context.Background()
	eventually(t, 30*time.Second, "QEMU measures in time before the move", func() bool {
		rates, err := p.source.driver.DirtyRates(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(rates) == 1
	})
	moved := make(chan error, 1)
	go func() { moved <- p.source.driver.Migrate(ctx, p.spec.UID, p.options) }()
	eventually(t, 30*time.Second, "the move sends memory", func() bool {
		progress, err := p.source.driver.Progress(ctx, p.spec.UID)
		return err == nil && progress.ProcessedBytes > 0
	})
	begun := time.Now()
	for name, h := range map[string]*testHost{"source": p.source, "target": p.target} {
		if rates, err := h.driver.DirtyRates(ctx); err != nil || len(rates) != 0 {
			t.Errorf("the %s measures %v, %v", name, rates, err)
		}
	}
	if took := time.Since(begun); took > patient(3*time.Second) && len(moved) > 0 {
		t.Errorf("the measurement waited for the move: %v", took)
	}
	if err := <-moved; err != nil {
		t.Fatal(err)
	}
	// A measurement that is under way disturbs no move.
	if err := p.target.driver.Resume(ctx, p.spec.UID); err != nil {
		t.Fatal(err)
	}
	p.source, p.target = p.target, p.source
	p.connect(t, copyStream)
	measured := make(chan error, 1)
	go func() {
		_, err := p.source.driver.DirtyRates(ctx)
		measured <- err
	}()
	time.Sleep(300 * time.Millisecond) // QEMU measures now
	if err := p.source.driver.Migrate(ctx, p.spec.UID, p.options); err != nil {
		t.Error(err)
	}
	if err := <-measured; err != nil {
		t.Error(err)
	}
}
