// Package clocks makes times as time.Now makes them, for tests and the simulator: with a time of day that may jump, and a
// monotonic time that does not.
package clocks

import (
	"time"
	"unsafe"
)

// since1885 is the beginning of 1885, from which time.Time counts the seconds of readings, in seconds of Unix time.
var since1885 = time.Date(1885, 1, 1, 0, 0, 0, 0, time.UTC).Unix()

// Reading returns what time.Now returns on a machine with this time of day and this monotonic time. Package time compares
// two readings by the monotonic time, and a reading with a stored time by the time of day. So a jump of the time of day has
// the same effects as in a real process. Package time has no function that makes such a time. Therefore Reading depends on the
// layout of time.Time; a test shows whether it is still right.
func Reading(day time.Time, monotonic time.Duration) time.Time {
	layout := struct {
		wall uint64 // 1 bit: there is a monotonic time; 33 bits: seconds since 1885; 30 bits: nanoseconds
		ext  int64  // the monotonic time
		loc  *time.Location
	}{wall: 1<<63 | uint64(day.Unix()-since1885)<<30 | uint64(day.Nanosecond()), ext: int64(monotonic)}
	return *(*time.Time)(unsafe.Pointer(&layout))
}
