package policy

// window.go - parses the times of a replay as people write them. It is pure.

import (
	"regexp"
	"strconv"
	"time"

	"watari/cmd/internal/cli"
)

// A replay around a time begins this long before it, because conditions count only after they have held for a time, and ends
// this long after it.
const (
	beforeAt = 10 * time.Minute
	afterAt  = time.Minute
)

// window is the time of a replay. If until is zero, the window ends now by the manager's clock, not by this machine's clock.
type window struct{ since, until time.Time }

func (w window) has(at time.Time) bool {
	return !at.Before(w.since) && (w.until.IsZero() || !at.After(w.until))
}

// windowSince returns the window from a begin until now. text is a duration or a time.
func windowSince(now time.Time, text string) (window, error) {
	if d, ok := duration(text); ok {
		return window{since: now.Add(-d)}, nil
	}
	since, ok := moment(now, text)
	switch {
	case !ok:
		return window{}, cli.Usagef("--since %q: give a duration, as in 90m, 24h or 7d, or a time, as in 14:05 or \"2026-03-01 14:05\"", text)
	case !since.Before(now):
		return window{}, cli.Usagef("--since %q has not come yet; give the day too, as in \"2026-03-01 14:05\"", text)
	}
	return window{since: since}, nil
}

// windowAt returns the window around a moment. It does not reach into the future.
func windowAt(now time.Time, text string) (window, error) {
	at, ok := moment(now, text)
	switch {
	case !ok:
		return window{}, cli.Usagef("--at %q: give a time, as in 14:05 or \"2026-03-01 14:05\"", text)
	case at.After(now):
		return window{}, cli.Usagef("--at %q has not come yet; give the day too, as in \"2026-03-01 14:05\"", text)
	}
	w := window{since: at.Add(-beforeAt)}
	if until := at.Add(afterAt); until.Before(now) {
		w.until = until
	}
	return w, nil
}

var days = regexp.MustCompile(`^([0-9]{1,4})d(.*)$`)

// duration parses a positive duration. Besides Go's units it accepts days of 24 hours: "7d", "1d12h".
func duration(text string) (time.Duration, bool) {
	total := time.Duration(0)
	if parts := days.FindStringSubmatch(text); parts != nil {
		number, _ := strconv.Atoi(parts[1]) // at most four digits
		if total, text = time.Duration(number)*24*time.Hour, parts[2]; text == "" {
			return total, total > 0
		}
	}
	rest, err := time.ParseDuration(text)
	return total + rest, err == nil && rest > 0
}

// moment parses a time, by default in the time zone of now. A time without a day is today's.
func moment(now time.Time, text string) (time.Time, bool) {
	for _, layout := range []string{"15:04", "15:04:05"} {
		if clock, err := time.Parse(layout, text); err == nil {
			return time.Date(now.Year(), now.Month(), now.Day(), clock.Hour(), clock.Minute(), clock.Second(), 0, now.Location()), true
		}
	}
	for _, layout := range []string{time.RFC3339, "2006-01-02 15:04", time.DateTime, time.DateOnly} {
		if at, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}
