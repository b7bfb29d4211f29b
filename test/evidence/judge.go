package evidence

// judge.go - decides from samples whether a guest has run twice. It reads no clock and no files.

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

const (
	// Window is the shortest time over which it is found out whether a copy ran.
	Window = 500 * time.Millisecond
	// ranAtLeast is how much time of the processor a copy that ran has used in a window, as a part of it. Idle emulated guests
	// were seen to use 0.001 and more, and paused ones exactly none, but for 0.3 ms when QEMU makes the thread.
	ranAtLeast = 0.0005
	// setUp is for how long a QEMU process makes its threads; what they use meanwhile does not count.
	setUp = time.Second
	// Overlong is for how long two processes of a guest may be there while it does not move.
	Overlong = 5 * time.Minute
	// threadsBy is when a QEMU process has threads for its processors.
	threadsBy = 10 * time.Second
)

// Process is one QEMU process.
type Process struct {
	PID     int
	Started uint64 // in the kernel's ticks since it booted: tells it from a later process of the same number
	Host    string // of the lab; empty: not known
}

func (p Process) String() string {
	if p.Host == "" {
		return fmt.Sprintf("process %d", p.PID)
	}
	return fmt.Sprintf("process %d on %s", p.PID, p.Host)
}

// Copy is one QEMU process of a guest, as it was seen at one time.
type Copy struct {
	Process
	Threads int           // that execute the guest's processors
	Used    time.Duration // the time of this machine's processors that these have used
}

// Guest is what was seen of a guest at one time.
type Guest struct {
	UID, Name string
	Copies    []Copy
}

// Violation is a breach of the rule that there are never two of one guest, or what keeps it from being seen.
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

// Judge keeps what it needs of earlier samples.
//
// It takes two copies to have run at once when the same two used time of the processor in two windows, one after the
// other. A move passes this: from the moment at which its source is stopped, that copy uses none. Its target runs only
// after that moment, so if the source ran in the second window, the target did not run in the first.
//
// It does not see two copies that ran together for less than two windows, or before one of them was set up, or of which
// one was so idle that it slept through a window.
type Judge struct {
	guests map[string]*watched
}

// watched is what is kept of a guest that has a process.
type watched struct {
	name      string
	first     map[Process]time.Time     // when each was seen first
	begun     time.Time                 // of the window
	used      map[Process]time.Duration // when it began, by those that were set up
	ran       []Process                 // in the window before
	told      map[string]bool
	since     time.Time // when there were two; zero: there are not
	unmoved   time.Time // since when there were two though it did not move, as far as is known
	processes []Process
}

// See takes a sample of all guests, and returns what is new of violations.
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

// begin begins a window.
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

// Overlaps are the guests of which there have been two processes for a time.
func (j *Judge) Overlaps(at time.Time, atLeast time.Duration) (uids []string) {
	for uid, w := range j.guests {
		if !w.since.IsZero() && at.Sub(w.since) >= atLeast {
			uids = append(uids, uid)
		}
	}
	slices.Sort(uids)
	return uids
}

// Moves says whether a guest of which there are two processes has a move that has not ended, and returns what is new of
// violations: two processes are part of a move, or one of them is soon gone.
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
