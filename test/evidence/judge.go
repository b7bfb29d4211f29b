package evidence

// judge.go - decides from samples whether a guest has run twice. It uses no clock and no files.

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// Window is the shortest time over which the judge decides whether a copy ran.
	Window = 500 * time.Millisecond
	// ranAtLeast is the fraction of a window that a running copy uses of a CPU, at least. Idle emulated guests used
	// 0.001 and more. Paused guests used none, except for 0.3 ms when QEMU makes the thread.
	ranAtLeast = 0.0005
	// setUp is the time in which a QEMU process makes its threads. CPU time in this period does not count.
	setUp = time.Second
	// Overlong is how long a guest may have two processes while it does not move.
	Overlong = 5 * time.Minute
	// threadsBy is the time by which a QEMU process has its CPU threads.
	threadsBy = 10 * time.Second
)

// Process is one QEMU process.
type Process struct {
	PID     int
	Started uint64 // start in clock ticks after boot; tells it from a later process with the same id
	Host    string // host of the lab; empty: unknown
}

func (p Process) String() string {
	if p.Host == "" {
		return fmt.Sprintf("process %d", p.PID)
	}
	return fmt.Sprintf("process %d on %s", p.PID, p.Host)
}

// Copy is one QEMU process of a guest at one time.
type Copy struct {
	Process
	Threads int           // number of CPU threads
	Used    time.Duration // CPU time of these threads
}

// Guest is a sample of one guest.
type Guest struct {
	UID, Name string
	Copies    []Copy
}

// Violation is a violation of the rule that a guest never runs twice, or a reason why it could not be seen.
type Violation struct {
	At        time.Time
	UID, Name string
	What      string
	Processes []Process
}

func (v Violation) String() string {
	var list []string
	for _, p := range v.Processes {
		list = append(list, p.String())
	}
	return fmt.Sprintf("%s guest %s (%s): %s: %s", v.At.Format("15:04:05.000"), v.Name, v.UID, v.What, strings.Join(list, ", "))
}

// Judge keeps the earlier samples that it needs.
//
// Two copies count as running at once if both used CPU time in two consecutive windows. A move does not violate this:
// after its source is stopped, the source uses no CPU time, and the target starts only later. So if the source ran in
// the second window, the target did not run in the first.
//
// The judge does not see two copies that ran together for less than two windows, or before one of them was set up. It
// does not see them either if one was so idle that it used no CPU time in a window.
type Judge struct {
	guests map[string]*watched
}

// watched is the state of a guest that has a process.
type watched struct {
	name      string
	first     map[Process]time.Time     // time when each was seen first
	begun     time.Time                 // start of the window
	used      map[Process]time.Duration // CPU time at its start, of the processes that were set up
	ran       []Process                 // processes that ran in the previous window
	told      map[string]bool
	since     time.Time // start of the time with two processes; zero: there are not two
	unmoved   time.Time // start of the time with two processes without a move, as far as known
	processes []Process
}

// See adds a sample of all guests, and returns new violations.
func (j *Judge) See(at time.Time, guests []Guest) (found []Violation) {
	if j.guests == nil {
		j.guests = map[string]*watched{}
	}
	seen := map[string]bool{}
	for _, g := range guests {
		seen[g.UID] = true
		w := j.guests[g.UID]
		if w == nil {
			w = &watched{name: g.Name, begun: at, first: map[Process]time.Time{}, told: map[string]bool{}}
			j.guests[g.UID] = w
		}
		found = append(found, w.see(at, g)...)
	}
	for uid := range j.guests {
		if !seen[uid] {
			delete(j.guests, uid)
		}
	}
	return found
}

// begin starts a window.
func (w *watched) begin(at time.Time, copies []Copy) {
	w.begun, w.used = at, map[Process]time.Duration{}
	for _, c := range copies {
		if at.Sub(w.first[c.Process]) >= setUp {
			w.used[c.Process] = c.Used
		}
	}
}

func (w *watched) see(at time.Time, g Guest) (found []Violation) {
	w.processes = nil
	for _, c := range g.Copies {
		w.processes = append(w.processes, c.Process)
		if w.first[c.Process].IsZero() {
			w.first[c.Process] = at
		}
		if c.Threads == 0 && at.Sub(w.first[c.Process]) > threadsBy {
			found = w.tell(found, at, g.UID, "it cannot be seen whether it runs, for no thread of its QEMU is named for a processor", c.Process)
		}
	}
	if len(g.Copies) < 2 {
		w.since, w.unmoved = time.Time{}, time.Time{}
	} else if w.since.IsZero() {
		w.since = at
	}
	length := at.Sub(w.begun)
	if length < Window {
		return found
	}
	var ran, twice []Process
	for _, c := range g.Copies {
		before, known := w.used[c.Process]
		if known && c.Used-before >= time.Duration(ranAtLeast*float64(length)) {
			ran = append(ran, c.Process)
			if slices.Contains(w.ran, c.Process) {
				twice = append(twice, c.Process)
			}
		}
	}
	if len(twice) > 1 {
		found = w.tell(found, at, g.UID, "two copies run", twice...)
	}
	w.ran = ran
	w.begin(at, g.Copies)
	return found
}

// tell adds a violation, once for the same processes.
func (w *watched) tell(found []Violation, at time.Time, uid, what string, processes ...Process) []Violation {
	v := Violation{at, uid, w.name, what, processes}
	key := fmt.Sprint(what, processes)
	if w.told[key] {
		return found
	}
	w.told[key] = true
	return append(found, v)
}

// Overlaps returns the guests that have had two processes for at least this time.
func (j *Judge) Overlaps(at time.Time, atLeast time.Duration) (uids []string) {
	for uid, w := range j.guests {
		if !w.since.IsZero() && at.Sub(w.since) >= atLeast {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// Moves records whether a guest with two processes has a move that has not ended, and returns new violations. Two
// processes must be part of a move, or one of them must end soon.
func (j *Judge) Moves(at time.Time, uid string, moving bool) (found []Violation) {
	w := j.guests[uid]
	switch {
	case w == nil || w.since.IsZero():
	case moving:
		w.unmoved = time.Time{}
	case w.unmoved.IsZero():
		w.unmoved = at
	case at.Sub(w.unmoved) >= Overlong:
		what := fmt.Sprintf("more than one process for %s, though it does not move", at.Sub(w.unmoved).Round(time.Second))
		if !w.told["overlong"] {
			w.told["overlong"] = true
			found = append(found, Violation{at, uid, w.name, what, w.processes})
		}
	}
	return found
}
