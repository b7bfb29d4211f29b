package agent

// consoles.go - guests' serial consoles. QEMU appends to guests/<uid>/console.log. After an epoch has ended here, its
// console becomes guests/<uid>/consoles/<epoch>.log, and <epoch>.json describes the end. The agent moves the file only while
// the guest has no QEMU process.

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

// Limits of kept consoles. A guest that writes or restarts forever must not fill the disk.
const (
	keptEpochs      = 8              // ended epochs per guest
	keptHead        = 64 << 10       // bytes of each epoch's beginning (the boot)
	keptTail        = 192 << 10      // bytes of each epoch's end
	keptOfAllGuests = 64 << 20       // bytes on this host; the oldest consoles are deleted first
	keepConsoles    = 72 * time.Hour // also of guests that no longer exist
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

// path returns the file to which QEMU appends.
func (c *consoles) path(uid string) string { return filepath.Join(c.dir, uid, "console.log") }

func (c *consoles) keptDir(uid string) string { return filepath.Join(c.dir, uid, "consoles") }

func (c *consoles) keptPath(uid string, epoch uint64) string {
	return filepath.Join(c.keptDir(uid), strconv.FormatUint(epoch, 10)+".log")
}

func descriptionOf(path string) string { return strings.TrimSuffix(path, ".log") + ".json" }

// keep stores the guest's console as that of an ended epoch. It may be repeated.
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
		// Remove the file although it cannot be copied to the full disk: the next epoch would append to it.
		return errors.Join(fmt.Errorf("keep the console of epoch %d: %w", k.Epoch, err), removeConsole(from))
	}
	c.clear()
	return nil
}

// drop removes the console of an epoch that never ran here.
func (c *consoles) drop(uid string) error { return removeConsole(c.path(uid)) }

// tail returns the end of the guest's present console.
func (c *consoles) tail(uid string, limit int64) string {
	f, err := openConsole(c.path(uid))
	if err != nil {
		return ""
	}
	defer f.Close()
	return f.tail(limit)
}

// list returns the kept consoles of a guest in the order of epochs.
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

// clear removes the consoles that exceed the limits.
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
			os.Remove(filepath.Join(c.dir, f.uid)) // fails if the folder is not empty
		}
	}
}

// bound limits the consoles of running guests.
func (c *consoles) bound() {
	found, _ := filepath.Glob(filepath.Join(c.dir, "*", "console.log"))
	for _, path := range found {
		if err := boundConsole(path, runningHead, runningTail); err != nil {
			c.log.Warn("bound a guest's console", "path", path, "error", err)
		}
	}
}

// keepConsole stores the console of an epoch that has ended here. was is the record before the end, is the present
// record. It logs an error and does not return it, because nothing else depends on the console.
func (g *guest) keepConsole(was, is *machine.Record) {
	var err error
	switch {
	case was == nil || was.Phase == machine.PhaseReserved || was.Phase == machine.PhaseReceiving || was.Phase == machine.PhaseReceived:
		err = g.agent.consoles.drop(g.uid) // the epoch never ran here
	default:
		err = g.agent.consoles.keep(g.uid, kept(is))
	}
	if err != nil {
		g.log.Warn("keep the console", "error", err)
	}
}

// kept describes the console of the epoch that ended as its record says.
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
