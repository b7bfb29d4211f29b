package policy

import (
	"testing"
	"time"
)

var (
	east = time.FixedZone("east", 9*3600)
	now  = time.Date(2026, 3, 1, 14, 5, 30, 0, east)
)

func TestSinceIsADurationOrATime(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"90m": 90 * time.Minute, "7d": 7 * 24 * time.Hour, "1d12h": 36 * time.Hour, "14:05": 30 * time.Second, "14:00:30": 5 * time.Minute,
		"2026-02-28 14:05:30": 24 * time.Hour, "2026-03-01": 14*time.Hour + 5*time.Minute + 30*time.Second, "2026-03-01T05:04:30Z": time.Minute,
	} {
		if w, err := windowSince(now, text); err != nil || now.Sub(w.since) != want || !w.until.IsZero() {
			t.Errorf("%q: %v, %v", text, w, err)
		}
	}
	for _, text := range []string{"", "7", "-1h", "0s", "0d", "1d-2h", "99999d", "d", "yesterday", "25:00", "15:00", "2027-01-01"} {
		if w, err := windowSince(now, text); err == nil {
			t.Errorf("%q: %v", text, w)
		}
	}
}

func TestAtIsAroundATimeThatHasPassed(t *testing.T) {
	at := func(ago time.Duration) time.Time { return now.Add(-ago) }
	for text, want := range map[string]window{
		"13:05:30": {at(70 * time.Minute), at(59 * time.Minute)}, "14:05": {since: at(10*time.Minute + 30*time.Second)},
		"2026-02-28 14:05": {at(24*time.Hour + 10*time.Minute + 30*time.Second), at(24*time.Hour - 30*time.Second)},
	} {
		if w, err := windowAt(now, text); err != nil || !w.since.Equal(want.since) || !w.until.Equal(want.until) {
			t.Errorf("%q: %v, %v", text, w, err)
		}
	}
	for _, text := range []string{"", "1h", "14:06", "noon"} {
		if w, err := windowAt(now, text); err == nil {
			t.Errorf("%q: %v", text, w)
		}
	}
}
