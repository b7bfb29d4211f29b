package controller

// run_output.go - keeps a run's output in files.

import (
	"errors"
	"os"
	"path/filepath"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

// outputReserve is the disk space that output leaves free, bytes. It exceeds the store's own reserve. Tests change it.
var outputReserve uint64 = 128 << 20

// errOutputFull: nothing was written. The runner tries again; the guest keeps the output for a while.
var errOutputFull = errors.New("its output is not kept just now, for the manager's disk is full; make room")

// output is the two files of a run's output.
type output [2]*os.File

func openOutput(dir string) (o output, err error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return o, err
	}
	for i, name := range []string{"stdout", "stderr"} {
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

// write appends a message's output, and skips bytes that the files already have.
func (o output) write(m *v1.AttachResponse) error {
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
		if free, err := store.FreeBytes(filepath.Dir(o[i].Name())); err == nil && free < outputReserve+uint64(len(data)) {
			return errOutputFull
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
