// Package report has what benchmarks and the demo share: medians and spreads of repeated runs, a description of the
// machine and the commit, and the JSON file with all of it.
package report

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Stat summarizes repeated measurements of one quantity.
type Stat struct {
	Median float64   `json:"median"`
	Min    float64   `json:"min"`
	Max    float64   `json:"max"`
	Unit   string    `json:"unit,omitempty"` // "" for ratios
	Runs   []float64 `json:"runs"`           // in the order of measurement
}

// Summarize returns median, minimum and maximum of runs. For no runs, all are zero.
func Summarize(unit string, runs ...float64) Stat {
	s := Stat{Unit: unit, Runs: slices.Clone(runs)}
	if len(runs) == 0 {
		return s
	}
	sorted := slices.Sorted(slices.Values(runs))
	s.Min, s.Max = sorted[0], sorted[len(sorted)-1]
	mid := len(sorted) / 2
	s.Median = sorted[mid]
	if len(sorted)%2 == 0 {
		s.Median = (sorted[mid-1] + sorted[mid]) / 2
	}
	return s
}

// Ratios divides run by run, so that a slow moment of the machine affects both sides. The runs of above and below must
// alternate. The shorter length counts. A zero in below is left out.
func Ratios(above, below []float64) Stat {
	var runs []float64
	for i := range min(len(above), len(below)) {
		if below[i] != 0 {
			runs = append(runs, above[i]/below[i])
		}
	}
	return Summarize("", runs...)
}

// String prints the median with its spread: "1.73 (1.40..1.81)".
func (s Stat) String() string {
	text := fmt.Sprintf("%.3g (%.3g..%.3g)", s.Median, s.Min, s.Max)
	if s.Unit != "" {
		text += " " + s.Unit
	}
	return text
}

// Machine describes the machine of a measurement.
type Machine struct {
	CPU          string `json:"cpu"`   // model name, of the first CPU
	Cores        int    `json:"cores"` // logical CPUs this process may use
	MemoryBytes  uint64 `json:"memory_bytes"`
	Kernel       string `json:"kernel"`                 // kernel release
	Acceleration string `json:"acceleration,omitempty"` // how guests ran: "kvm" or "tcg"
}

// ThisMachine describes the machine on which this process runs. Fields that cannot be read stay empty.
func ThisMachine() Machine {
	m := Machine{Cores: runtime.NumCPU(), CPU: cpuModel()}
	var name unix.Utsname
	if unix.Uname(&name) == nil {
		m.Kernel = unix.ByteSliceToString(name.Release[:])
	}
	m.MemoryBytes = memoryTotal()
	return m
}

func cpuModel() string {
	return field("/proc/cpuinfo", "model name")
}

func memoryTotal() uint64 {
	kib, _ := strconv.ParseUint(strings.TrimSuffix(field("/proc/meminfo", "MemTotal"), " kB"), 10, 64)
	return kib << 10
}

// field returns the value of the first "key : value" line in a file of /proc.
func field(path, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	for scanner := bufio.NewScanner(f); scanner.Scan(); {
		if k, v, ok := strings.Cut(scanner.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}

// Header begins every report. Embed it in the report's own struct.
type Header struct {
	Benchmark string  `json:"benchmark"` // "bench-overlay"
	Command   string  `json:"command"`   // command that repeats the measurement
	Date      string  `json:"date"`      // RFC 3339, UTC
	Commit    string  `json:"commit"`    // of the working directory, with "-dirty" if there are changes
	Machine   Machine `json:"machine"`
}

// NewHeader fills in a header for a benchmark that starts now in the repository's directory.
func NewHeader(benchmark, command string) Header {
	return Header{
		Benchmark: benchmark, Command: command, Date: time.Now().UTC().Format(time.RFC3339),
		Commit: commit(), Machine: ThisMachine(),
	}
}

func commit() string {
	out, err := exec.Command("git", "describe", "--always", "--abbrev=12", "--exclude=*", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(out))
}

// Goal is a goal of a benchmark and the figure that it reached.
type Goal struct {
	Name    string  `json:"name"`
	AtLeast float64 `json:"at_least,omitempty"`
	AtMost  float64 `json:"at_most,omitempty"` // exactly one of the two is not zero
	Value   float64 `json:"value"`
	Met     bool    `json:"met"`
}

// AtLeast compares a value with a minimum.
func AtLeast(name string, value, goal float64) Goal {
	return Goal{Name: name, AtLeast: goal, Value: value, Met: value >= goal}
}

// AtMost compares a value with a maximum.
func AtMost(name string, value, goal float64) Goal {
	return Goal{Name: name, AtMost: goal, Value: value, Met: value <= goal}
}

// String prints the goal and whether it is met.
func (g Goal) String() string {
	bound, verdict := fmt.Sprintf(">= %g", g.AtLeast), "met"
	if g.AtMost != 0 {
		bound = fmt.Sprintf("<= %g", g.AtMost)
	}
	if !g.Met {
		verdict = "NOT MET"
	}
	return fmt.Sprintf("%-20s %8.3g   goal %-8s %s", g.Name, g.Value, bound, verdict)
}

// Tell prints the goals and the path of the report. The error says how many goals are not met.
func Tell(goals []Goal, path string) error {
	missed := 0
	for _, g := range goals {
		fmt.Println(" ", g)
		if !g.Met {
			missed++
		}
	}
	fmt.Println("report:", path)
	if missed > 0 {
		return fmt.Errorf("%d of %d goals not met", missed, len(goals))
	}
	return nil
}

// Write writes the report v to path as indented JSON, atomically. It makes missing directories.
func Write(path string, v any) error {
	data, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write report %s: %w", path, err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("write report %s: %w", path, err)
	}
	temporary := path + ".new"
	if err := os.WriteFile(temporary, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("write report %s: %w", path, err)
	}
	if err := os.Rename(temporary, path); err != nil {
		return fmt.Errorf("write report %s: %w", path, err)
	}
	return nil
}
