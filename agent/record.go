package agent

// record.go - the records of guests on disk.

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"watari/agent/machine"
	"watari/internal/durable"
)

// ballastSize is the reserved disk space for vital records, in bytes.
const ballastSize = 1 << 20

// RecordStore keeps one record per guest as <dir>/<uid>/record.json.
type RecordStore struct {
	Dir string
	Now func() time.Time
	// Write writes a file; tests replace it.
	Write  func(path string, data []byte) error
	epochs epochs
}

// NewRecordStore keeps records under dir.
func NewRecordStore(dir string) *RecordStore {
	return &RecordStore{Dir: dir, Now: time.Now, Write: writeFile}
}

// GuestDir is the folder of a guest's files on this host.
func (s *RecordStore) GuestDir(uid string) string { return filepath.Join(s.Dir, uid) }

func (s *RecordStore) path(uid string) string { return filepath.Join(s.Dir, uid, "record.json") }

// Save writes a record so that it survives a crash of the host. If it fails, the caller must not take the step that the new
// record announces.
//
// vital: the record concerns a guest that already exists, so it must not be lost. Save uses the reserved space for it
// if the disk is full.
func (s *RecordStore) Save(r *machine.Record, vital bool) error {
	err := s.save(r)
	if err != nil && vital && errors.Is(err, syscall.ENOSPC) && os.Remove(s.ballast()) == nil {
		err = s.save(r)
	}
	return err
}

// SetAside reserves disk space for vital records.
func (s *RecordStore) SetAside() error {
	if info, err := os.Stat(s.ballast()); err == nil && info.Size() == ballastSize {
		return nil
	}
	if err := os.MkdirAll(s.Dir, 0o755); err != nil {
		return fmt.Errorf("set space aside for records: %w", err)
	}
	if err := writeFile(s.ballast(), make([]byte, ballastSize)); err != nil {
		return fmt.Errorf("set space aside for records: %w", err)
	}
	return nil
}

func (s *RecordStore) ballast() string { return filepath.Join(s.Dir, ".set-aside") }

func (s *RecordStore) save(r *machine.Record) error {
	written := *r
	written.ChangedAt = s.Now().UTC().Format(time.RFC3339)
	data, err := json.MarshalIndent(&written, "", "  ")
	if err != nil {
		return fmt.Errorf("write the record of guest %s: %w", r.Name, err)
	}
	if err := os.MkdirAll(s.GuestDir(r.UID), 0o755); err != nil {
		return fmt.Errorf("write the record of guest %s: %w", r.Name, err)
	}
	if err := s.Write(s.path(r.UID), append(data, '\n')); err != nil {
		return fmt.Errorf("write the record of guest %s: %w", r.Name, err)
	}
	s.epochs.note(r.UID, r.Epoch)
	if err := durable.SyncDir(s.Dir); err != nil {
		return fmt.Errorf("write the record of guest %s: %w", r.Name, err)
	}
	return nil
}

// Load reads all records. unread has the errors of records that could not be read, by uid. Load moves damaged records away
// and returns a problem for each: see Damaged. err: the list of records could not be read.
func (s *RecordStore) Load() (records map[string]*machine.Record, unread map[string]error, problems []error, err error) {
	records, unread = map[string]*machine.Record{}, map[string]error{}
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, nil, nil, fmt.Errorf("read the records of guests, without which this agent cannot tell what runs here; mend the folder, and start it again: %w", err)
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		r, err := s.LoadOne(entry.Name())
		switch {
		case errors.Is(err, ErrUnreadable) && machine.ValidUID(entry.Name()):
			unread[entry.Name()] = err
		case err != nil:
			problems = append(problems, err)
		}
		if r != nil {
			records[r.UID] = r
		}
	}
	return records, unread, problems, nil
}

// read reads one guest's record; nil: there is none.
func (s *RecordStore) read(uid string) (*machine.Record, error) {
	data, err := os.ReadFile(s.path(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := &machine.Record{}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err == nil && r.UID != uid {
		err = fmt.Errorf("it is guest %q's", r.UID)
	}
	if err == nil {
		s.epochs.note(uid, r.Epoch)
	}
	return r, err
}

// ErrUnreadable says that a record exists and cannot be read now, for example because descriptors ran out or the disk
// does not answer. The record may be intact, so the caller must not treat it as lost.
var ErrUnreadable = errors.New("it cannot be read now")

// LoadOne reads one guest's record; nil: there is no readable one.
func (s *RecordStore) LoadOne(uid string) (*machine.Record, error) {
	r, err := s.read(uid)
	if err == nil {
		return r, nil
	}
	var failed *fs.PathError
	if errors.As(err, &failed) {
		return nil, fmt.Errorf("the record of guest %s: %w: %w", uid, ErrUnreadable, err)
	}
	err = fmt.Errorf("the record %s is damaged (%w); it was put aside as record.json.damaged", s.path(uid), err)
	os.Rename(s.path(uid), s.path(uid)+".damaged")
	return nil, err
}

// Damaged reports whether a guest's record was moved away as damaged, and has not been replaced since.
func (s *RecordStore) Damaged(uid string) bool {
	_, err := os.Stat(s.path(uid) + ".damaged")
	return err == nil
}

// Clear removes the files of guests that were forgotten longer than age ago and are not in use. It leaves a record that
// cannot be read to Load, which reports it.
func (s *RecordStore) Clear(age time.Duration, inUse func(uid string) bool) {
	entries, _ := os.ReadDir(s.Dir)
	for _, entry := range entries {
		if !entry.IsDir() || inUse(entry.Name()) {
			continue
		}
		r, err := s.read(entry.Name())
		if err != nil || r == nil || r.Outcome != machine.OutcomeForgotten {
			continue
		}
		if at, err := time.Parse(time.RFC3339, r.ChangedAt); err != nil || s.Now().Sub(at) > age {
			s.remove(entry.Name())
		}
	}
}

// remove removes all files of a guest except its kept consoles, which expire separately (see consoles.clear).
func (s *RecordStore) remove(uid string) {
	s.epochs.forget(uid)
	files, _ := os.ReadDir(s.GuestDir(uid))
	for _, file := range files {
		if !file.IsDir() {
			os.Remove(filepath.Join(s.GuestDir(uid), file.Name()))
		}
	}
	os.Remove(s.GuestDir(uid)) // fails if it has consoles
}

// writeFile writes a file that only the agent can read.
func writeFile(path string, data []byte) error { return durable.WriteFile(path, data, 0o600) }
