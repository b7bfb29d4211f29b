// Package speed measures how fast a core of this host computes. With the result, hosts of different speeds get work in
// proportion.
package speed

import (
	"fmt"
	"math"
	"runtime"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// pieces is the number of measurements. They are short, so other work of the host hardly waits. The best counts, because a
	// disturbance only slows them down. On virtual machines, pieces took up to twice as long for tenths of a second now and then,
	// probably while the core's other thread computed for another machine.
	pieces = 9
	// reference is the time of a piece on a core of speed 1, about a core of a server of 2020.
	reference = 7 * time.Millisecond
	// places is the number of 8-byte words that the work walks through. They fit in the first-level cache: what other programs
	// leave of larger caches differs much.
	places = 1 << 11
	rounds = 1 << 22
)

// Core returns the speed of one core: 1 for the reference, 2 for one that is twice as fast. It takes about 0.1 s of
// processor time. Other work on the host changes the result little, because Core measures this thread's processor time, not
// elapsed time.
func Core() (float64, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	table := make([]uint64, places)
	for i := range table {
		table[i] = uint64(i) * 0x9e3779b97f4a7c15
	}
	best := time.Duration(math.MaxInt64)
	for range pieces {
		begun, err := threadTime()
		if err != nil {
			return 0, err
		}
		if math.IsNaN(work(table)) { // use the result
			return 0, fmt.Errorf("measure the speed of a core: the work went wrong")
		}
		ended, err := threadTime()
		if err != nil {
			return 0, err
		}
		best = min(best, ended-begun)
	}
	return rounded(reference.Seconds() / max(best, time.Microsecond).Seconds()), nil
}

// rounded keeps two digits, so that measurements of one host are mostly equal.
func rounded(speed float64) float64 {
	two, _ := strconv.ParseFloat(strconv.FormatFloat(speed, 'g', 2, 64), 64)
	return two
}

// work computes as simulations do: chained floating-point arithmetic, at indexes that depend on integers in memory.
func work(table []uint64) float64 {
	sum, state := 1.0, uint64(88172645463325252)
	for range rounds {
		state ^= state << 13
		state ^= state >> 7
		state ^= state << 17
		at := state % places
		table[at] += state
		x := float64(table[at]>>12)/float64(1<<52) + 0.5
		sum = sum*0.999 + x*x*(x-0.25)
	}
	return sum
}

func threadTime() (time.Duration, error) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &now); err != nil {
		return 0, fmt.Errorf("ask for the processor time of this thread: %w", err)
	}
	return time.Duration(now.Nano()), nil
}
