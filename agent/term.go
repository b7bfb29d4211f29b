package agent

// term.go - keeps the managers' last term on disk, and verifies the stamps of orders.

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"google.golang.org/protobuf/encoding/protojson"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/internal/stamp"
)

func (a *Agent) termFile() string { return filepath.Join(a.config.StateDir, "term") }

// readTerm reads the last term whose orders were in force (0: none), and the stamp of its latest orders. If it fails, the
// term is not known.
func (a *Agent) readTerm() (uint64, *v1.Stamp, error) {
	data, err := os.ReadFile(a.termFile())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil, nil
	}
	if err != nil {
		return 0, nil, fmt.Errorf("read the manager's last term: %w", err)
	}
	text := bytes.TrimSpace(data)
	if term, err := strconv.ParseUint(string(text), 10, 64); err == nil {
		return term, nil, nil // written before stamps existed
	}
	s := &v1.Stamp{}
	err = protojson.UnmarshalOptions{DiscardUnknown: true}.Unmarshal(text, s) // a newer agent may have written it
	if err == nil && s.Term == 0 {
		err = errors.New("it names no term")
	}
	if err != nil {
		return 0, nil, fmt.Errorf("%s, the manager's last term, is damaged (%w); if only one manager ever led this host, remove the file",
			a.termFile(), err)
	}
	return s.Term, s, nil
}

// keepTerm writes a term, and the stamp of its latest orders, so that they survive a crash.
func (a *Agent) keepTerm(term uint64, s *v1.Stamp) error {
	text := []byte(strconv.FormatUint(term, 10))
	if s != nil {
		var err error
		if text, err = protojson.Marshal(s); err != nil {
			return fmt.Errorf("write the manager's term: %w", err)
		}
	}
	return writeFile(a.termFile(), append(text, '\n'))
}

// genuine verifies the stamp of orders. Orders without a stamp pass: an older manager sent them.
func (a *Agent) genuine(w *v1.HostWanted) error {
	if w.Stamp == nil {
		return nil
	}
	authority, err := ca.ParseCertificate(a.config.Authority)
	if err == nil {
		err = stamp.Verify(authority, w.Stamp)
	}
	if err == nil && w.Stamp.Term != w.Term {
		err = fmt.Errorf("they are of term %d, and their stamp is of term %d", w.Term, w.Stamp.Term)
	}
	if err != nil {
		return fmt.Errorf("a manager's orders were refused: %w", err)
	}
	return nil
}
