package main

// thermo.go - reads the thermodynamic table in a LAMMPS log.

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// thermo returns the lines of a log's thermodynamic table: those between the header, which begins with Step, and the
// summary of the run.
func thermo(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var lines []string
	inside, whole := false, false
	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		line := strings.TrimSpace(scanner.Text())
		switch {
		case strings.HasPrefix(line, "Step "):
			inside = true
		case strings.HasPrefix(line, "Loop time"):
			inside, whole = false, true
		case inside && line != "":
			lines = append(lines, line)
		}
	}
	if err := scanner.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	if !whole || len(lines) == 0 {
		return nil, fmt.Errorf("%s holds no whole thermodynamic table: did the run end?", path)
	}
	return lines, nil
}

// difference describes the first line in which two tables differ; empty if they are equal.
func difference(a, b []string) string {
	for i := range max(len(a), len(b)) {
		switch {
		case i >= len(a):
			return fmt.Sprintf("line %d is only in the second: %q", i+1, b[i])
		case i >= len(b):
			return fmt.Sprintf("line %d is only in the first: %q", i+1, a[i])
		case a[i] != b[i]:
			return fmt.Sprintf("line %d: %q and %q", i+1, a[i], b[i])
		}
	}
	return ""
}

// stepOf returns the time step of a line of the table.
func stepOf(line string) (int, error) {
	word, _, _ := strings.Cut(line, " ")
	return strconv.Atoi(word)
}
