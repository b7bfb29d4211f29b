package clocks

import (
	"testing"
	"time"
)

// TestReading sets a clock back by ten minutes while a second passes.
func TestReading(t *testing.T) {
	const back = -10 * time.Minute
	day := time.Date(2030, 1, 1, 0, 0, 0, 123456789, time.UTC)
	before, after := Reading(day, 5*time.Second), Reading(day.Add(back), 6*time.Second)
	if passed := after.Sub(before); passed != time.Second {
		t.Errorf("%v have passed, not a second", passed)
	}
	if !after.After(before) || !before.Add(2*time.Second).After(after) {
		t.Error("readings are not compared by the monotonic time")
	}
	if stored := before.Round(0); !stored.Equal(day) || after.Sub(stored) != back || !after.Before(stored) {
		t.Errorf("stored as %v; %v is %v later", stored, after, after.Sub(stored))
	}
	if text := before.Format(time.RFC3339Nano); text != "2030-01-01T00:00:00.123456789Z" {
		t.Errorf("it is shown as %s", text)
	}
	if now := time.Now(); !Reading(now, time.Second).Round(0).Equal(now.Round(0)) {
		t.Errorf("%v becomes %v", now, Reading(now, time.Second))
	}
}
