package agent

// term.go - the managers' last term on disk.

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

func (a *Agent) termFile() string { return filepath.Join(a.config.StateDir, "term") }

// readTerm reads the last term whose orders were in force; 0: none were.
func (a *Agent) readTerm() (uint64, error) {
	data, err := os.ReadFile(a.termFile())
	if errors.Is(err, os.ErrNotExist) {
		return 0, nil
	}
	var term uint64
	if err == nil {
		term, err = strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	}
	if err != nil {
		return 0, fmt.Errorf("read the manager's last term: %w", err)
	}
	return term, nil
}

// keepTerm writes a term so that it survives a crash.
func (a *Agent) keepTerm(term uint64) error {
	return writeFile(a.termFile(), []byte(strconv.FormatUint(term, 10)+"\n"))
}
