package policy

// windows.go - times that occur once or weekly.

import (
	"fmt"
	"slices"
	"time"
)

// Window is a time: once from Begin to End, or on each of Days from From to To.
type Window struct {
	Begin, End time.Time
	Days       []time.Weekday // the days on which the window begins; empty: every day
	From, To   time.Duration  // since midnight; To may be before From, on the next day
	Zone       *time.Location // nil: the window is once, from Begin to End
}

// Around returns the window that contains a time, or the next one if it begins within lead.
func (w Window) Around(now time.Time, lead time.Duration) (begin, end time.Time, found bool) {
	if w.Zone == nil {
		return w.Begin, w.End, !now.Before(w.Begin.Add(-lead)) && now.Before(w.End)
	}
	local := now.In(w.Zone)
	// A window that began yesterday may still be open, and one that begins some days from now may be within lead.
	for day := -1; day <= int(lead/(24*time.Hour))+1; day++ {
		// Noon, because on some days a zone has no midnight.
		date := time.Date(local.Year(), local.Month(), local.Day()+day, 12, 0, 0, 0, w.Zone)
		if len(w.Days) > 0 && !slices.Contains(w.Days, date.Weekday()) {
			continue
		}
		begin, end = clock(date, w.From), clock(date, w.To)
		if w.To <= w.From {
			end = clock(date.AddDate(0, 0, 1), w.To)
		}
		if !now.Before(begin.Add(-lead)) && now.Before(end) {
			return begin, end, true
		}
	}
	return time.Time{}, time.Time{}, false
}

// Has reports whether a time is in the window.
func (w Window) Has(now time.Time) bool {
	_, _, found := w.Around(now, 0)
	return found
}

// clock returns the time at which clocks show the given time since midnight on a day.
func clock(date time.Time, since time.Duration) time.Time {
	return time.Date(date.Year(), date.Month(), date.Day(), int(since/time.Hour), int(since/time.Minute)%60, 0, 0, date.Location())
}

// String describes the window.
func (w Window) String() string {
	if w.Zone == nil {
		return fmt.Sprintf("from %s to %s", w.Begin.Format(time.RFC3339), w.End.Format(time.RFC3339))
	}
	days := "every day"
	for i, d := range w.Days {
		if i == 0 {
			days = d.String()
		} else {
			days += ", " + d.String()
		}
	}
	return fmt.Sprintf("%s %s to %s %s", days, hours(w.From), hours(w.To), w.Zone)
}

func hours(d time.Duration) string { return fmt.Sprintf("%02d:%02d", d/time.Hour, d/time.Minute%60) }
