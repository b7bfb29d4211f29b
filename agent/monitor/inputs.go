package monitor

// inputs.go - keyboards and mice. It keeps each event device open, and reads it only to learn when an event came.

import (
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// lookEvery is how often new devices are looked for.
const lookEvery = 10 * time.Second

// inputs are the keyboards and mice of a host.
type inputs struct {
	root    string
	arrived chan struct{} // gets a token for an event after awayFor without one

	mu     sync.Mutex
	open   map[string]*os.File
	closed bool
	looked time.Time
	came   time.Time // time of the last event; zero: none since the agent's start
	opened time.Time // when the first device was opened
	said   bool      // a failure to open a device was logged
}

// silence is how long an agent must see no event after its start before the time counts as idle. If it counted at once, each
// start of an agent would look like the owner's return. If it never counted, an owner would count as away for years after an
// upgrade of the agent.
const silence = time.Minute

// last returns the time of the last key press or mouse movement. If there was none for silence since the first device was
// opened, it returns when that device was opened. false: neither is known.
func (in *inputs) last() (time.Time, bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if now := time.Now(); !in.closed && now.Sub(in.looked) >= lookEvery {
		in.looked = now
		in.look()
	}
	if in.came.IsZero() && len(in.open) > 0 && time.Since(in.opened) >= silence {
		return in.opened, true
	}
	return in.came, !in.came.IsZero()
}

// watched reports whether a keyboard or mouse is open.
func (in *inputs) watched() bool {
	in.mu.Lock()
	defer in.mu.Unlock()
	return len(in.open) > 0
}

// look opens new devices. The caller holds in.mu.
func (in *inputs) look() {
	for _, name := range in.devices() {
		if in.open[name] != nil {
			continue
		}
		file, err := os.Open(filepath.Join(in.root, "dev/input", name)) // a device: Open does not block, and Close interrupts a read
		if err != nil {
			if !in.said {
				in.said = true
				slog.Warn("cannot watch a keyboard or mouse", "error", err)
			}
			continue
		}
		if in.open == nil {
			in.open = map[string]*os.File{}
		}
		if in.opened.IsZero() {
			in.opened = time.Now()
		}
		in.open[name] = file
		go in.follow(name, file)
	}
}

// follow reads a device until the device is gone.
func (in *inputs) follow(name string, file *os.File) {
	events := make([]byte, 64*24)
	for {
		n, err := file.Read(events)
		clear(events) // do not keep which keys were pressed
		in.mu.Lock()
		if n > 0 {
			in.noteLocked(time.Now())
		}
		if err != nil {
			if in.open[name] == file {
				delete(in.open, name)
			}
			in.mu.Unlock()
			if !errors.Is(err, os.ErrClosed) {
				file.Close()
			}
			return
		}
		in.mu.Unlock()
	}
}

// noteLocked records an event. The caller holds in.mu.
func (in *inputs) noteLocked(now time.Time) {
	if now.Sub(in.came) >= awayFor {
		select {
		case in.arrived <- struct{}{}:
		default:
		}
	}
	in.came = now
}

// repeats is a type of event (EV_REP in linux/input-event-codes.h): a held key repeats. Keyboards have it; power buttons and
// speakers do not.
const repeats = 1 << 0x14

// devices returns the names of the keyboards' and mice's event devices.
func (in *inputs) devices() (names []string) {
	data, _ := os.ReadFile(filepath.Join(in.root, "proc/bus/input/devices"))
	for device := range strings.SplitSeq(string(data), "\n\n") {
		var event string
		var keys, mouse bool
		for line := range strings.Lines(device) {
			if handlers, is := strings.CutPrefix(line, "H: Handlers="); is {
				for _, handler := range strings.Fields(handlers) {
					if strings.HasPrefix(handler, "event") {
						event = handler
					}
					mouse = mouse || strings.HasPrefix(handler, "mouse")
				}
			}
			if kinds, is := strings.CutPrefix(line, "B: EV="); is {
				bits, _ := strconv.ParseUint(strings.TrimSpace(kinds), 16, 64)
				keys = bits&repeats != 0
			}
		}
		if event != "" && (keys || mouse) {
			names = append(names, event)
		}
	}
	return names
}

// close closes the devices.
func (in *inputs) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, file := range in.open {
		file.Close()
	}
	in.closed = true
}
