// Command mutants puts faults into the product, one at a time, and checks whether the simulator finds each. The product has
// no switches for that: a mutant is a changed file that `go build -overlay` puts in the place of the original.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

func main() {
	seeds := flag.Int("seeds", 20000, "try so many seeds for each mutant")
	report := flag.String("report", "", "add the result to this report of explore")
	only := flag.String("only", "", "only mutants whose name has this in it")
	flag.Parse()
	found, survived, err := try(*seeds, *only)
	if err == nil && *report != "" {
		err = addTo(*report, found)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		os.Exit(1)
	}
	if len(survived) > 0 {
		fmt.Printf("not found within %d seeds: %s\n", *seeds, strings.Join(survived, "; "))
		os.Exit(1)
	}
	fmt.Printf("all %d mutants were found\n", len(found))
}

// try returns the number of seeds after which each mutant was found; 0: it was not found.
func try(seeds int, only string) (found map[string]int, survived []string, err error) {
	found = map[string]int{}
	for _, m := range mutants {
		if !strings.Contains(m.name, only) {
			continue
		}
		begun := time.Now()
		n, what, err := m.find(seeds)
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", m.name, err)
		}
		found[m.name] = n
		if n == 0 {
			survived = append(survived, m.name)
			what = "NOT FOUND"
		}
		fmt.Printf("%-70s %6d seeds, %4.0f s: %.120s\n", m.name, n, time.Since(begun).Seconds(), what)
	}
	return found, survived, nil
}

// find builds the simulator with the mutant, and runs it until an invariant is violated.
func (m mutant) find(seeds int) (n int, what string, err error) {
	dir, err := os.MkdirTemp("", "watari-mutant-")
	if err != nil {
		return 0, "", err
	}
	defer os.RemoveAll(dir)
	texts, err := m.apply()
	if err != nil {
		return 0, "", err
	}
	replace := map[string]string{}
	for file, text := range texts {
		original, err := filepath.Abs(file)
		if err != nil {
			return 0, "", err
		}
		changed := filepath.Join(dir, strings.ReplaceAll(file, "/", "-"))
		if err := os.WriteFile(changed, []byte(text), 0o644); err != nil {
			return 0, "", err
		}
		replace[original] = changed
	}
	overlay, err := json.Marshal(map[string]any{"Replace": replace})
	if err != nil {
		return 0, "", err
	}
	list, program := filepath.Join(dir, "overlay.json"), filepath.Join(dir, "explore")
	if err := os.WriteFile(list, overlay, 0o644); err != nil {
		return 0, "", err
	}
	if out, err := exec.Command("go", "build", "-overlay", list, "-o", program, "./sim/explore").CombinedOutput(); err != nil {
		return 0, "", fmt.Errorf("build: %w\n%s", err, out)
	}
	out, err := exec.Command(program, "-first", "-seeds", strconv.Itoa(seeds)).CombinedOutput()
	if exit, is := err.(*exec.ExitError); is && exit.ExitCode() == 3 {
		return 0, "", nil
	}
	if err != nil {
		return 0, "", fmt.Errorf("%w: %s", err, out)
	}
	number, what, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
	n, err = strconv.Atoi(number)
	return n, what, err
}

// apply returns the contents of the changed files, by path.
func (m mutant) apply() (map[string]string, error) {
	texts := map[string]string{}
	for _, e := range m.edits {
		text, read := texts[e.file]
		if !read {
			original, err := os.ReadFile(e.file)
			if err != nil {
				return nil, err
			}
			text = string(original)
		}
		if n := strings.Count(text, e.old); n != 1 {
			return nil, fmt.Errorf("%s has the text to be replaced %d times, not once: %s", e.file, n, e.old)
		}
		texts[e.file] = strings.Replace(text, e.old, e.new, 1)
	}
	return texts, nil
}

// addTo adds the mutants to a report.
func addTo(path string, found map[string]int) error {
	report := map[string]any{}
	text, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(text, &report)
	}
	if err != nil {
		return err
	}
	report["mutants"] = found
	text, err = json.MarshalIndent(report, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(path, append(text, '\n'), 0o644)
}
