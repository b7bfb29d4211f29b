package controller

// run_output.go - keeps a run's output in files.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/dustin/go-humanize"

	v1 "watari/api/watariv1"
	"watari/internal/durable"
	"watari/manager/store"
)

// outputReserve is the disk space that output leaves free, bytes. It exceeds the store's own reserve. Tests change it.
var outputReserve uint64 = 128 << 20

// errDiskFull means that nothing was written. The runner tries again; meanwhile the guest keeps the output.
var errDiskFull = errors.New("its output is not stored, because the manager's disk is full; free some space")

// errOverQuota means that output was discarded. The run goes on, and can end.
var errOverQuota = errors.New("a part of its output is not kept")

// outputs counts the output of users' runs.
type outputs struct {
	dir string // Deps.RunsDir

	mu   sync.Mutex
	used map[string]usedOutput // by the user's uid
}

// usedOutput is the output of a user's runs when it was last counted, plus the output since, bytes.
type usedOutput struct {
	bytes   uint64
	counted time.Time
}

// countEvery is how long a count is used.
const countEvery = 5 * time.Second

// room counts n more bytes of a run as its owner's, or returns an error that wraps errDiskFull or errOverQuota.
func (o *outputs) room(s *store.Snapshot, run *v1.Run, n uint64) error {
	if free, err := store.FreeBytes(o.dir); err == nil && free < outputReserve+n {
		return errDiskFull
	}
	owner := run.GetMeta().GetOwner()
	limit := s.Users[owner].GetQuota().GetOutputBytes()
	if limit == 0 || s.Users[owner].Meta.Uid != run.Meta.OwnerUid {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	used := o.used[run.Meta.OwnerUid]
	if time.Since(used.counted) > countEvery {
		used = usedOutput{bytes: o.count(s, run.Meta.OwnerUid), counted: time.Now()}
	}
	fits := used.bytes+n <= limit
	if fits {
		used.bytes += n
	} else {
		used.bytes = limit // until the next count, even smaller output is discarded, so that none follows discarded output
	}
	o.used[run.Meta.OwnerUid] = used
	if !fits {
		return fmt.Errorf("%w: the quota of user %s is %s of runs' output; remove runs (`watari run remove`), or have an administrator raise it "+
			"(`watari quota set %[2]s --run-output ...`)", errOverQuota, owner, humanize.IBytes(limit))
	}
	return nil
}

// count returns how many bytes a user's runs have written.
func (o *outputs) count(s *store.Snapshot, ownerUID string) (bytes uint64) {
	for _, run := range s.Runs {
		if run.Meta.OwnerUid != ownerUID {
			continue
		}
		for _, name := range streams {
			if info, err := os.Stat(filepath.Join(o.dir, run.Meta.Uid, name)); err == nil {
				bytes += uint64(info.Size())
			}
		}
	}
	return bytes
}

// streams are the names of the files of a run's output.
var streams = [2]string{"stdout", "stderr"}

// output is a run's output.
type output [2]*stream

// stream is the file of one stream of a run's output. Offsets in the stream and in the file differ if the file lacks a part
// of the stream or has notes; kept has the difference.
type stream struct {
	file *os.File
	kept shift
}

// shift is the difference between the offsets. A file beside the stream's file stores it, unless it is zero.
type shift struct {
	Ahead    int64 // stream offset minus file offset, bytes
	Dropping bool  // the latest output was discarded, and a note in the file records that
}

const shiftSuffix = ".shift"

func openOutput(dir string) (o output, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return o, err
	}
	for i, name := range streams {
		file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR|os.O_APPEND, 0o600)
		if err != nil {
			o.close()
			return o, err
		}
		o[i] = &stream{file: file}
		text, err := os.ReadFile(file.Name() + shiftSuffix)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			o.close()
			return o, err
		}
		if err == nil && json.Unmarshal(text, &o[i].kept) != nil {
			o[i].kept = shift{} // a power failure has damaged it; without it, some output may be missing or stored twice
		}
	}
	return o, nil
}

func (o output) close() {
	for _, s := range o {
		if s != nil {
			s.file.Close()
		}
	}
}

// at returns the stream offset of the next byte.
func (s *stream) at() uint64 { return uint64(max(s.size()+s.kept.Ahead, 0)) }

func (s *stream) size() int64 {
	info, err := s.file.Stat()
	if err != nil {
		return 0
	}
	return info.Size()
}

// keep stores a new shift.
func (s *stream) keep(kept shift) error {
	text, err := json.Marshal(kept)
	if err != nil {
		return err
	}
	path := s.file.Name() + shiftSuffix
	if err := os.WriteFile(path+".part", text, 0o600); err != nil { // not durably: it is written with each discarded part of the output
		return err
	}
	if err := os.Rename(path+".part", path); err != nil {
		return err
	}
	s.kept = kept
	return nil
}

// write appends a message's output, and skips bytes that the files already have. room decides whether more bytes may be
// written. write discards output over the quota, and returns errOverQuota.
func (o output) write(m *v1.AttachResponse, room func(n uint64) error) error {
	over := o[0].write(m.Stdout, m.StdoutOffset, room)
	if over != nil && !errors.Is(over, errOverQuota) {
		return over
	}
	if err := o[1].write(m.Stderr, m.StderrOffset, room); err != nil {
		return err
	}
	return over
}

func (s *stream) write(data []byte, offset uint64, room func(n uint64) error) error {
	at := s.at()
	if len(data) == 0 || offset+uint64(len(data)) <= at {
		return nil
	}
	if offset < at {
		data = data[at-offset:]
	}
	kept := s.kept
	if offset > at { // the guest has dropped the bytes between
		kept.Ahead += int64(offset - at)
	}
	over := room(uint64(len(data)))
	if over != nil && !errors.Is(over, errOverQuota) {
		return over
	}
	if over != nil {
		kept.Ahead += int64(len(data))
		data = nil
		if !kept.Dropping {
			data = []byte("\n[watari: " + over.Error() + "]\n")
			kept.Ahead -= int64(len(data))
		}
	}
	if kept.Dropping = over != nil; kept != s.kept {
		if err := s.keep(kept); err != nil {
			return full(err)
		}
	}
	if _, err := s.file.Write(data); err != nil {
		return full(err)
	}
	return over
}

// full converts an error of a full disk to errDiskFull.
func full(err error) error {
	if durable.IsFull(err) {
		return errDiskFull
	}
	return err
}

// cut truncates the files to the given numbers of bytes of the streams.
func (o output) cut(stdout, stderr uint64) error {
	for i, most := range []uint64{stdout, stderr} {
		s := o[i]
		if s.at() <= most {
			continue
		}
		size := max(int64(most)-s.kept.Ahead, 0)
		if err := s.file.Truncate(size); err != nil {
			return err
		}
		if kept := (shift{Ahead: int64(most) - size}); kept != s.kept {
			if err := s.keep(kept); err != nil {
				return err
			}
		}
	}
	return nil
}
