package monitor

// inputs.go - keyboards and mice. Each event device is held open, and read only to see when something came.

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
	arrived chan struct{} // gets a token when something comes after awayFor without

	mu     sync.Mutex
	open   map[string]*os.File
	closed bool
	looked time.Time
	came   time.Time // the last event; zero: none since the agent began
	opened time.Time // when the first device was opened
	said   bool      // that a device could not be opened
}

// silence is how long nothing has to come after an agent began before that counts as idle time. At once, each start of an agent
// would look like the owner's return; never, and the owner of a host whose agent was upgraded would count as away for years.
const silence = time.Minute

// last returns when a key was pressed or a mouse was moved last, or the beginning of the silence since the agent began; false:
// neither is known.
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

// look opens the devices that are new. in.mu is held.
func (in *inputs) look() {
	for _, name := range in.devices() {
		if in.open[name] != nil {
			continue
		}
		file, err := os.Open(filepath.Join(in.root, "dev/input", name)) // of a device: does not block, and can be closed under a read
		if err != nil {
			if !in.said {
				in.said = true
				slog.Warn("whether somebody is at a keyboard or a mouse is not seen", "error", err)
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

// follow reads a device until it is gone.
func (in *inputs) follow(name string, file *os.File) {
	events := make([]byte, 64*24)
	for {
		n, err := file.Read(events)
		clear(events) // which keys it were is nobody's business
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

// noteLocked notes that something came. in.mu is held.
func (in *inputs) noteLocked(now time.Time) {
	if now.Sub(in.came) >= awayFor {
		select {
		case in.arrived <- struct{}{}:
		default:
		}
	}
	in.came = now
}

// repeats is the kind of event that a device with keys for typing has, and a power button or a speaker has not (EV_REP in
// linux/input-event-codes.h): a key that is held repeats.
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

// close lets go of the devices.
func (in *inputs) close() {
	in.mu.Lock()
	defer in.mu.Unlock()
	for _, file := range in.open {
		file.Close()
	}
	in.closed = true
}
