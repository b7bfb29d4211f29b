package agent

// consoles.go - guests' serial consoles. QEMU appends to guests/<uid>/console.log. When an epoch has ended here, its
// console becomes guests/<uid>/consoles/<epoch>.log, and <epoch>.json beside it says how the epoch ended. QEMU's file
// is moved only when no QEMU of the guest is left.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// What is kept of consoles, so that a guest that writes or restarts without end does not fill the disk.
const (
	keptEpochs      = 8              // of a guest that have ended here
	keptHead        = 64 << 10       // bytes of each: the boot
	keptTail        = 192 << 10      // and the end
	keptOfAllGuests = 64 << 20       // bytes on this host; the oldest consoles go first
	keepConsoles    = 72 * time.Hour // also of guests that exist no more
	runningHead     = 64 << 10       // bytes of a guest that runs
	runningTail     = 4 << 20
)

// keptConsole describes a kept console.
type keptConsole struct {
	Epoch  uint64    `json:"epoch"`
	Source string    `json:"source,omitempty"`
	Target string    `json:"target,omitempty"`
	Began  time.Time `json:"began"`
	Ended  time.Time `json:"ended"`
	End    string    `json:"end"`
	Bytes  int64     `json:"bytes"`
}

// consoles are the consoles on a host.
type consoles struct {
	dir string // of all guests' folders
	now func() time.Time
	log *slog.Logger
}

// path is the file that QEMU appends to.
func (c *consoles) path(uid string) string { return filepath.Join(c.dir, uid, "console.log") }

func (c *consoles) keptDir(uid string) string { return filepath.Join(c.dir, uid, "consoles") }

func (c *consoles) keptPath(uid string, epoch uint64) string {
	return filepath.Join(c.keptDir(uid), strconv.FormatUint(epoch, 10)+".log")
}

func descriptionOf(path string) string { return strings.TrimSuffix(path, ".log") + ".json" }

// keep takes the guest's console as that of an epoch that has ended. Doing it again does nothing.
func (c *consoles) keep(uid string, k keptConsole) error {
	from, to := c.path(uid), c.keptPath(uid, k.Epoch)
	if _, err := os.Stat(from); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	err := os.MkdirAll(c.keptDir(uid), 0o700)
	if err == nil {
		k.Bytes, err = moveConsole(from, to, keptHead, keptTail)
	}
	if err == nil {
		k.Ended = c.now()
		var data []byte
		if data, err = json.Marshal(k); err == nil {
			err = os.WriteFile(descriptionOf(to), data, 0o600)
		}
	}
	if err != nil {
		// It must not stay: the next start would append to it. On a full disk there is no room for a copy.
		return errors.Join(fmt.Errorf("keep the console of epoch %d: %w", k.Epoch, err), removeConsole(from))
	}
	c.clear()
	return nil
}

// drop removes the console of an epoch that never ran here.
func (c *consoles) drop(uid string) error { return removeConsole(c.path(uid)) }

// tail is the end of the console that a guest has now.
func (c *consoles) tail(uid string, limit int64) string {
	f, err := openConsole(c.path(uid))
	if err != nil {
		return ""
	}
	defer f.Close()
	return f.tail(limit)
}

// list are the kept consoles of a guest, by epoch.
func (c *consoles) list(uid string) []keptConsole {
	found, _ := filepath.Glob(filepath.Join(c.keptDir(uid), "*.json"))
	var list []keptConsole
	for _, path := range found {
		var k keptConsole
		data, err := os.ReadFile(path)
		if err == nil && json.Unmarshal(data, &k) == nil {
			list = append(list, k)
		}
	}
	slices.SortFunc(list, func(a, b keptConsole) int { return int(int64(a.Epoch) - int64(b.Epoch)) })
	return list
}

// clear removes the consoles that are beyond what is kept.
func (c *consoles) clear() {
	type file struct {
		path string
		uid  string
		info fs.FileInfo
	}
	var files []file
	found, _ := filepath.Glob(filepath.Join(c.dir, "*", "consoles", "*.log"))
	for _, path := range found {
		if info, err := os.Stat(path); err == nil {
			files = append(files, file{path, filepath.Base(filepath.Dir(filepath.Dir(path))), info})
		}
	}
	slices.SortFunc(files, func(a, b file) int { return b.info.ModTime().Compare(a.info.ModTime()) })
	var bytes int64
	of := map[string]int{}
	for _, f := range files {
		bytes += f.info.Size()
		of[f.uid]++
		if bytes <= keptOfAllGuests && of[f.uid] <= keptEpochs && c.now().Sub(f.info.ModTime()) <= keepConsoles {
			continue
		}
		bytes -= f.info.Size()
		of[f.uid]--
		os.Remove(f.path)
		os.Remove(descriptionOf(f.path))
		if of[f.uid] == 0 {
			os.Remove(c.keptDir(f.uid))
			os.Remove(filepath.Join(c.dir, f.uid)) // unless it holds anything else
		}
	}
}

// bound keeps the consoles of guests that run from growing without end.
func (c *consoles) bound() {
	found, _ := filepath.Glob(filepath.Join(c.dir, "*", "console.log"))
	for _, path := range found {
		if err := boundConsole(path, runningHead, runningTail); err != nil {
			c.log.Warn("bound a guest's console", "path", path, "error", err)
		}
	}
}

// keepConsole puts the console of an epoch aside that has ended here: was is its record before, is the one now. That a
// console could not be kept keeps nothing else from being done.
func (g *guest) keepConsole(was, is *machine.Record) {
	var err error
	switch {
	case was == nil || was.Phase == machine.PhaseReserved || was.Phase == machine.PhaseReceiving || was.Phase == machine.PhaseReceived:
		err = g.agent.consoles.drop(g.uid) // nothing of it ran here
	default:
		err = g.agent.consoles.keep(g.uid, kept(is))
	}
	if err != nil {
		g.log.Warn("keep the console", "error", err)
	}
}

// kept describes the console of an epoch that ended as its record says.
func kept(r *machine.Record) keptConsole {
	k := keptConsole{Epoch: r.Epoch, Source: r.Source, End: r.Message}
	k.Began, _ = time.Parse(time.RFC3339, r.BeganAt)
	switch {
	case r.Phase != machine.PhaseEnded:
		k.End = "it was stopped"
	case r.Outcome == machine.OutcomeSent:
		k.Target, k.End = r.Target, "it moved to "+r.Target
	}
	return k
}

func (k keptConsole) proto(host string) *v1.KeptConsole {
	p := &v1.KeptConsole{Host: host, Epoch: k.Epoch, Source: k.Source, Target: k.Target, Ended: timestamppb.New(k.Ended), End: k.End,
		Bytes: uint64(k.Bytes)}
	if !k.Began.IsZero() {
		p.Began = timestamppb.New(k.Began)
	}
	return p
}
