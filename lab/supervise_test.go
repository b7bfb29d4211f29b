package lab

import (
	"testing"
	"time"
)

func TestDaemonIsStartedAgainAtOnceThenSlower(t *testing.T) {
	now := time.Unix(1000, 0)
	d := &daemon{}
	var pauses []time.Duration
	die := func(after time.Duration) {
		d.Since = now
		now = now.Add(after)
		d.ended(now)
		pauses = append(pauses, d.due.Sub(now))
		now = d.due
	}
	for range 12 {
		die(100 * time.Millisecond)
	}
	want := []time.Duration{0, 0, 0, 0, 250e6, 500e6, 1e9, 2e9, 4e9, 8e9, 8e9, 8e9}
	for i := range want {
		if pauses[i] != want[i] {
			t.Fatalf("pauses %v, want %v", pauses, want)
		}
	}
	die(time.Minute) // it ran long enough to reset the count
	if last := pauses[len(pauses)-1]; last != 0 {
		t.Errorf("pause %v after a steady minute", last)
	}
}
