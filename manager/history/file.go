package history

// file.go - the history's file. It is rewritten completely from time to time, so a crash loses some minutes.

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/klauspost/compress/zstd"

	"watari/internal/durable"
)

// head is the first part of the file's content; one entry for each series follows. Fields are only ever added at the end of a
// row, so that a file with shorter rows can be read.
type head struct {
	Format     int
	HostWidth  int // values in a row
	GuestWidth int
}

func present() head { return head{Format: 1, HostWidth: len(hostFields), GuestWidth: len(guestFields)} }

// entry is one series in the file.
type entry struct {
	Guest bool
	Name  string // of the host, or uid
	Rings [len(resolutions)]map[int64][]byte
}

// Save writes the history to a file. It forgets hosts and guests without values, and guests that sent no sample for an hour
// and are no longer known.
func (h *History) Save(path string, known func(uid string) bool) error {
	data, err := h.encode(known)
	if err != nil {
		return fmt.Errorf("save the history: %w", err)
	}
	if err := durable.WriteFile(path, data, 0o600); err != nil {
		return fmt.Errorf("save the history: %w", err)
	}
	return nil
}

func (h *History) encode(known func(uid string) bool) ([]byte, error) {
	var out bytes.Buffer
	packed, err := zstd.NewWriter(&out, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	encoder := gob.NewEncoder(packed)
	err = encoder.Encode(present())
	h.mu.Lock()
	h.forget(known)
	hosts, guests := slices.Sorted(maps.Keys(h.hosts)), slices.Sorted(maps.Keys(h.guests))
	h.mu.Unlock()
	for _, name := range hosts {
		err = errors.Join(err, encoder.Encode(h.entry(h.hosts, entry{Name: name})))
	}
	for _, uid := range guests {
		err = errors.Join(err, encoder.Encode(h.entry(h.guests, entry{Guest: true, Name: uid})))
	}
	if err = errors.Join(err, packed.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// entry fills in the rows of a series. It locks for one series at a time, because readers wait for the lock.
func (h *History) entry(of map[string]*series, e entry) entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i := range e.Rings {
		e.Rings[i] = map[int64][]byte{}
		for page, rows := range of[e.Name].rings[i] {
			e.Rings[i][page] = toBytes(rows)
		}
	}
	return e
}

// forget drops values that are too old, and guests that no longer exist. h.mu is held.
func (h *History) forget(known func(uid string) bool) {
	now := h.Now()
	for name, s := range h.hosts {
		if s.empty(now) {
			delete(h.hosts, name)
		}
	}
	for uid, s := range h.guests {
		if s.empty(now) || len(s.rings[0]) == 0 && !known(uid) {
			delete(h.guests, uid)
		}
	}
	for name, l := range h.latest {
		if now.Sub(l.at).Abs() > time.Hour {
			delete(h.latest, name)
		}
	}
}

// Load reads a file into an empty history, and removes files that a killed Save has left beside it. It treats a missing
// file, or one of a later version, as empty.
func (h *History) Load(path string) error {
	left, _ := filepath.Glob(filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new-*"))
	for _, name := range left {
		os.Remove(name)
	}
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the history: %w", err)
	}
	defer file.Close()
	packed, err := zstd.NewReader(file, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return fmt.Errorf("read the history: %w", err)
	}
	defer packed.Close()
	decoder := gob.NewDecoder(packed)
	var of head
	if err := decoder.Decode(&of); err != nil {
		return fmt.Errorf("read the history %s: %w", path, err)
	}
	if now := present(); of.Format != now.Format || of.HostWidth > now.HostWidth || of.GuestWidth > now.GuestWidth {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for {
		var e entry
		err := decoder.Decode(&e)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			clear(h.hosts)
			clear(h.guests)
			return fmt.Errorf("read the history %s: %w", path, err)
		}
		if e.Guest {
			h.guests[e.Name] = e.series(of.GuestWidth, len(guestFields))
		} else {
			h.hosts[e.Name] = e.series(of.HostWidth, len(hostFields))
		}
	}
}

// series returns the entry's series with rows of the present width. It drops pages that do not have the present length.
func (e entry) series(was, width int) *series {
	s := &series{}
	for i, r := range resolutions {
		s.rings[i] = ring{}
		for page, rows := range e.Rings[i] {
			if len(rows) == 2*r.page*was {
				s.rings[i][page] = widen(fromBytes(rows), was, width)
			}
		}
	}
	return s
}

// widen returns rows with additional values, which are absent.
func widen(rows []small, was, width int) []small {
	if was == width {
		return rows
	}
	wide := make([]small, 0, len(rows)/was*width)
	for row := range slices.Chunk(rows, was) {
		wide = append(wide, row...)
		for range width - was {
			wide = append(wide, absent)
		}
	}
	return wide
}

func toBytes(rows []small) []byte {
	data := make([]byte, 0, 2*len(rows))
	for _, v := range rows {
		data = append(data, byte(v), byte(v>>8))
	}
	return data
}

func fromBytes(data []byte) []small {
	rows := make([]small, len(data)/2)
	for i := range rows {
		rows[i] = small(data[2*i]) | small(data[2*i+1])<<8
	}
	return rows
}
