package controller

// run_output.go - keeps a run's output in files.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

// outputReserve is the disk space that output leaves free, bytes. It exceeds the store's own reserve. Tests change it.
var outputReserve uint64 = 128 << 20

// errOutputFull: nothing was written. The runner tries again; the guest keeps the output for a while.
var errOutputFull = errors.New("its output is not kept just now")

// outputs counts the output of users' runs.
type outputs struct {
	dir string // Deps.RunsDir

	mu   sync.Mutex
	used map[string]usedOutput // by the user's name
}

// usedOutput is what a user's runs had written when it was counted, and what they have written since, bytes.
type usedOutput struct {
	bytes   uint64
	counted time.Time
}

// countEvery is how long a count is used.
const countEvery = 5 * time.Second

// room returns an error if a user's runs may not write n more bytes, and otherwise counts them. It wraps errOutputFull.
func (o *outputs) room(s *store.Snapshot, user string, n uint64) error {
	if free, err := store.FreeBytes(o.dir); err == nil && free < outputReserve+n {
		return fmt.Errorf("%w, for the manager's disk is full; make room", errOutputFull)
	}
	limit := s.Users[user].GetQuota().GetOutputBytes()
	if limit == 0 {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	used := o.used[user]
	if time.Since(used.counted) > countEvery {
		used = usedOutput{bytes: o.count(s, user), counted: time.Now()}
	}
	fits := used.bytes+n <= limit
	if fits {
		used.bytes += n
	}
	o.used[user] = used
	if !fits {
		return fmt.Errorf("%w, for the quota of user %s is %s of runs' output; remove runs (`watari run remove`), or have an administrator raise it "+
			"(`watari quota set %[2]s --run-output ...`)", errOutputFull, user, humanize.IBytes(limit))
	}
	return nil
}

// count returns how many bytes a user's runs have written.
func (o *outputs) count(s *store.Snapshot, user string) (bytes uint64) {
	for _, run := range s.Runs {
		if run.Meta.Owner != user {
			continue
		}
		for _, stream := range streams {
			if info, err := os.Stat(filepath.Join(o.dir, run.Meta.Uid, stream)); err == nil {
				bytes += uint64(info.Size())
			}
		}
	}
	return bytes
}

// streams are the names of the files of a run's output.
var streams = [2]string{"stdout", "stderr"}

// output is the two files of a run's output.
type output [2]*os.File

func openOutput(dir string) (o output, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return o, err
	}
	for i, name := range streams {
		o[i], err = os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
		if err != nil {
			o.close()
			return o, err
		}
	}
	return o, nil
}

func (o output) close() {
	for _, f := range o {
		if f != nil {
			f.Close()
		}
	}
}

func (o output) size(i int) uint64 {
	info, err := o[i].Stat()
	if err != nil {
		return 0
	}
	return uint64(info.Size())
}

// write appends a message's output, and skips bytes that the files already have. room says whether more bytes may be
// written.
func (o output) write(m *v1.AttachResponse, room func(n uint64) error) error {
	for i, part := range []struct {
		data   []byte
		offset uint64
	}{{m.Stdout, m.StdoutOffset}, {m.Stderr, m.StderrOffset}} {
		have := o.size(i)
		if len(part.data) == 0 || part.offset+uint64(len(part.data)) <= have {
			continue
		}
		data := part.data
		if part.offset < have {
			data = data[have-part.offset:]
		}
		if err := room(uint64(len(data))); err != nil {
			return err
		}
		if _, err := o[i].Write(data); err != nil {
			return err
		}
	}
	return nil
}

// cut cuts the files to at most so many bytes.
func (o output) cut(stdout, stderr uint64) error {
	for i, most := range []uint64{stdout, stderr} {
		if o.size(i) > most {
			if err := o[i].Truncate(int64(most)); err != nil {
				return err
			}
		}
	}
	return nil
}
