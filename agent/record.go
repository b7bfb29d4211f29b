package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"watari/internal/durable"
)

// ballastSize is what is set aside for records, in bytes.
const ballastSize = 1 << 20

// Phase is how far an epoch has come on this host. It is written to disk before the step that it names is taken.
type Phase string

const (
	// PhaseReserved: room is made for an incoming guest; no byte of it was let in.
	PhaseReserved Phase = "reserved"
	// PhaseReceiving: its tunnel was opened; a domain may exist.
	PhaseReceiving Phase = "receiving"
	// PhaseReceived: all of it was seen here, paused.
	PhaseReceived Phase = "received"
	// PhaseStarted: it was, or was about to be, started or resumed. This happens once for an epoch.
	PhaseStarted Phase = "started"
	// PhaseSending: its transfer to another host was, or was about to be, begun.
	PhaseSending Phase = "sending"
	// PhaseEnded: nothing of it exists here, and this epoch is not started here again.
	PhaseEnded Phase = "ended"
)

// Outcome says how an ended epoch ended.
type Outcome string

const (
	OutcomeGone   Outcome = "gone"   // it ran here, or may have, and is no more
	OutcomeFailed Outcome = "failed" // it never ran here
	OutcomeSent   Outcome = "sent"   // it was passed on to another host
	// OutcomeForgotten: the manager wants nothing of it here. Kept for a while, so that no late order starts it.
	OutcomeForgotten Outcome = "forgotten"
)

// Record is what a host remembers of a guest over crashes.
type Record struct {
	UID         string  `json:"uid"`
	Name        string  `json:"name"`
	Cluster     string  `json:"cluster,omitempty"`
	Epoch       uint64  `json:"epoch"`
	Phase       Phase   `json:"phase"`
	Migration   string  `json:"migration,omitempty"` // uid; reserved to received, sending, sent
	Source      string  `json:"source,omitempty"`    // host it is received from
	Target      string  `json:"target,omitempty"`    // host it is, or was, sent to
	Outcome     Outcome `json:"outcome,omitempty"`
	Message     string  `json:"message,omitempty"`
	LastLines   string  `json:"last_lines,omitempty"` // of the console of a guest that ended by itself, printable
	BeganAt     string  `json:"began_at,omitempty"`   // RFC 3339: when the epoch began here
	BootID      string  `json:"boot_id,omitempty"`    // of the host then; empty: an older agent wrote it
	Address     string  `json:"address,omitempty"`
	Prefix      string  `json:"prefix,omitempty"`
	MAC         string  `json:"mac,omitempty"`
	MTU         uint32  `json:"mtu,omitempty"`
	MemoryBytes uint64  `json:"memory_bytes,omitempty"`
	Image       string  `json:"image,omitempty"`      // digest
	ChangedAt   string  `json:"changed_at,omitempty"` // RFC 3339, for people and for clearing away old ones
}

// bootID is the boot in which the record's epoch began; empty: there is no record, or it does not say.
func (r *Record) bootID() string {
	if r == nil {
		return ""
	}
	return r.BootID
}

// RecordStore keeps one record per guest as <dir>/<uid>/record.json.
type RecordStore struct {
	Dir string
	Now func() time.Time
	// Write is replaced by tests to fail.
	Write func(path string, data []byte) error
}

// NewRecordStore keeps records under dir.
func NewRecordStore(dir string) *RecordStore {
	return &RecordStore{Dir: dir, Now: time.Now, Write: writeFile}
}

// GuestDir is where all of a guest's files on this host are.
func (s *RecordStore) GuestDir(uid string) string { return filepath.Join(s.Dir, uid) }

func (s *RecordStore) path(uid string) string { return filepath.Join(s.Dir, uid, "record.json") }

// Save writes a record so that it survives a crash of the host. When it returns an error the old record is
// still in force and nothing may be done that the new one was to announce.
//
// vital: the record is of a guest that exists already and must be kept. For such ones some space is set aside,
// which is used when the disk is full.
func (s *RecordStore) Save(r *Record, vital bool) error {
	err := s.save(r)
	if err != nil && vital && errors.Is(err, syscall.ENOSPC) && os.Remove(s.ballast()) == nil {
		err = s.save(r)
	}
	return err
}

// SetAside makes sure that there is space for vital records when the disk is full.
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

func (s *RecordStore) save(r *Record) error {
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
	if err := durable.SyncDir(s.Dir); err != nil {
		return fmt.Errorf("write the record of guest %s: %w", r.Name, err)
	}
	return nil
}

// Load reads all records. A damaged one is put aside and reported: see Damaged.
func (s *RecordStore) Load() (map[string]*Record, []error) {
	records := map[string]*Record{}
	var problems []error
	entries, err := os.ReadDir(s.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return records, []error{fmt.Errorf("read the records of guests: %w", err)}
	}
	for _, entry := range entries {
		if !entry.IsDir() {
			continue
		}
		r, err := s.LoadOne(entry.Name())
		if err != nil && !errors.Is(err, ErrUnreadable) { // what cannot be read now is read again when it matters
			problems = append(problems, err)
		}
		if r != nil {
			records[r.UID] = r
		}
	}
	return records, problems
}

// read reads one guest's record; nil: there is none.
func (s *RecordStore) read(uid string) (*Record, error) {
	data, err := os.ReadFile(s.path(uid))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := &Record{}
	if err == nil {
		err = json.Unmarshal(data, r)
	}
	if err == nil && r.UID != uid {
		err = fmt.Errorf("it is guest %q's", r.UID)
	}
	return r, err
}

// ErrUnreadable says that a record is there and cannot be read now: for want of descriptors, say, or of a disk that
// answers. It may well be whole, so that nothing follows from it for its guest.
var ErrUnreadable = errors.New("it cannot be read now")

// LoadOne reads one guest's record; nil: there is none that can be read.
func (s *RecordStore) LoadOne(uid string) (*Record, error) {
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

// Damaged tells whether a guest's record was put aside as damaged, and not replaced since.
func (s *RecordStore) Damaged(uid string) bool {
	_, err := os.Stat(s.path(uid) + ".damaged")
	return err == nil
}

// Clear removes the files of guests that were forgotten for longer than age and are not in use. A record that cannot
// be read is left to Load, which tells of it.
func (s *RecordStore) Clear(age time.Duration, inUse func(uid string) bool) {
	entries, _ := os.ReadDir(s.Dir)
	for _, entry := range entries {
		if !entry.IsDir() || inUse(entry.Name()) {
			continue
		}
		r, err := s.read(entry.Name())
		if err != nil || r == nil || r.Outcome != OutcomeForgotten {
			continue
		}
		if at, err := time.Parse(time.RFC3339, r.ChangedAt); err != nil || s.Now().Sub(at) > age {
			s.remove(entry.Name())
		}
	}
}

// remove removes all files of a guest but its kept consoles, which have a time of their own (see consoles.clear).
func (s *RecordStore) remove(uid string) {
	files, _ := os.ReadDir(s.GuestDir(uid))
	for _, file := range files {
		if !file.IsDir() {
			os.Remove(filepath.Join(s.GuestDir(uid), file.Name()))
		}
	}
	os.Remove(s.GuestDir(uid)) // unless consoles are kept
}

// writeFile is for the agent's own files, which nobody else needs to read.
func writeFile(path string, data []byte) error { return durable.WriteFile(path, data, 0o600) }
