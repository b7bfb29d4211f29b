package main

// programs.go - programs on one and on two sites: one that does not communicate, LAMMPS, N queens, and the NAS benchmarks
// from a user's source.

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"watari/bench/report"
	"watari/bench/system"
)

// program is a program whose speed is measured.
type program struct {
	name, published string
	// files returns the files that a run with a number of ranks needs, and command the command. A run's time is the longest
	// that a rank prints.
	files, command func(ranks int) []string
}

// places are the placements of guests that are compared.
var places = []struct {
	name  string
	flags []string
	sizes []int // numbers of guests
}{{"one site", []string{"--site", "a"}, []int{1, 2, 4}}, {"two sites", []string{"--spread", "site"}, []int{2, 4}}}

// ownTime matches the time that a program says that it took: the NAS benchmarks' and the loop's line, and LAMMPS's.
var ownTime = regexp.MustCompile(`(?:Time in seconds =|Loop time of) *([0-9.e+-]+)`)

// seconds returns the longest time in the output of a run.
func seconds(output string) (float64, error) {
	longest := 0.0
	for _, m := range ownTime.FindAllStringSubmatch(output, -1) {
		took, err := strconv.ParseFloat(m[1], 64)
		if err != nil {
			return 0, fmt.Errorf("the program's time %q: %w", m[0], err)
		}
		longest = max(longest, took)
	}
	if longest == 0 {
		return 0, fmt.Errorf("the program has not said how long it took: %q", output)
	}
	return longest, nil
}

const programsNote = "The times are the programs' own. All guests share the two processors of one machine, so more than two of them cannot be faster than two. What the paper shows is visible all the same: a program that communicates loses by the way between sites, and one that does not loses little."

// programs compares numbers of guests by programs that Debian has.
func programs(o Options) (*Result, error) {
	s, err := up("mpi", "")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return nil, err
	}
	none := func(int) []string { return nil }
	input := func(int) []string { return []string{"examples/melt/in.melt"} }
	return speeds(s, o.Runs, []program{
		{"no communication", "EP: in proportion to the nodes", none, func(ranks int) []string {
			return []string{"sh", "-c", fmt.Sprintf("begun=$(date +%%s%%N); i=0; while [ $i -lt %d ]; do i=$((i+1)); done; echo Time in seconds = $((($(date +%%s%%N)-begun)/1000000))e-3", 1_200_000/ranks)}
		}},
		{"LAMMPS", "LU, CG: less, and CG falls from some number on", input, func(int) []string {
			return []string{"lmp", "-in", "in.melt", "-log", "none", "-var", "steps", "60"}
		}},
	})
}

// queens is a board's side, for which one emulated guest needs about half a minute.
const queens = "15"

// nQueens compares numbers of guests by a master that gives small tasks to workers.
func nQueens(o Options) (*Result, error) {
	return withQueens(func(s *system.System, built string) (*Result, error) {
		r, err := speeds(s, o.Runs, []program{{queens + " queens", "in proportion to the nodes, on guests as on bare machines",
			func(int) []string { return []string{built} }, func(int) []string { return []string{"./queens", queens} }}})
		if err == nil {
			r.Note += " The program is examples/queens; the paper's is another, with the same division of work. It checks its result."
		}
		return r, err
	})
}

// withQueens builds examples/queens, starts a lab of two sites, and measures: built is the path of the program.
func withQueens(measure func(s *system.System, built string) (*Result, error)) (*Result, error) {
	dir, err := os.MkdirTemp("", "queens-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	built := filepath.Join(dir, "queens")
	if said, err := exec.Command("mpicc", "-O2", "-o", built, "examples/queens/queens.c").CombinedOutput(); err != nil {
		return nil, fmt.Errorf("build examples/queens/queens.c: %w\n%s", err, said)
	}
	s, err := up("mpi", "")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return nil, err
	}
	return measure(s, built)
}

// speeds runs every program in clusters of every size at every place.
func speeds(s *system.System, runs int, programs []program) (*Result, error) {
	alone := map[string][]float64{}
	r := &Result{Note: programsNote}
	for _, place := range places {
		for _, n := range place.sizes {
			err := withCluster(s, "prog", n, "192M", place.flags, func() error {
				for _, p := range programs {
					times, err := p.times(s, "prog", n, runs)
					if err != nil {
						return fmt.Errorf("%s with %d guests: %w", p.name, n, err)
					}
					if n == 1 {
						alone[p.name] = times
					}
					name := fmt.Sprintf("%s, %d guests, %s: speed against one guest (paper: against 4)", p.name, n, place.name)
					row := Row{Name: name, Here: report.Ratios(alone[p.name], times)}
					if n > 1 && place.name == "one site" {
						row.Published = p.published
					}
					fmt.Printf("%s: %s\n", name, row.Here)
					r.Rows = append(r.Rows, row)
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
		}
	}
	return r, nil
}

// times runs the program several times on a cluster, with a rank for each guest, and returns its times in seconds.
func (p program) times(s *system.System, cluster string, ranks, runs int) (times []float64, err error) {
	args := []string{"run", cluster}
	for _, file := range p.files(ranks) {
		args = append(args, "--stage", file)
	}
	args = append(append(args, "--"), p.command(ranks)...)
	for range runs {
		output, err := s.Watari(args...)
		if err != nil {
			return nil, err
		}
		took, err := seconds(output)
		if err != nil {
			return nil, err
		}
		times = append(times, took)
	}
	return times, nil
}

// start measures how soon a cluster has run its first program.
func start(o Options) (*Result, error) {
	s, err := up("mpi", "")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return nil, err
	}
	r := &Result{Note: "The paper has no figures of its clusters' start. The image has been built before; in the first run it and the template of its guests still have to reach the hosts, which the highest times contain."}
	for _, place := range places {
		for _, n := range place.sizes {
			var ready, ran []float64
			for range o.Runs {
				begun := time.Now()
				err := withCluster(s, "start", n, "192M", place.flags, func() error {
					ready = append(ready, time.Since(begun).Seconds())
					_, err := s.Watari("run", "start", "--", "hostname")
					ran = append(ran, time.Since(begun).Seconds())
					return err
				})
				if err != nil {
					return nil, err
				}
			}
			name := fmt.Sprintf("%d guests, %s", n, place.name)
			first := Row{Name: name + ": the cluster is ready", Here: report.Summarize("s", ready...)}
			fmt.Printf("%s: %s\n", first.Name, first.Here)
			r.Rows = append(r.Rows, first, Row{Name: name + ": its first MPI program has ended", Here: report.Summarize("s", ran...)})
		}
	}
	return r, nil
}

// nasPrograms compares numbers of guests by the NAS benchmarks.
func nasPrograms(o Options) (*Result, error) {
	// Built first: a mistake in the source shows before a lab is started.
	source, err := os.MkdirTemp("", "npb-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(source)
	if err := copyNAS(o.NPB, source); err != nil {
		return nil, err
	}
	built := map[string]string{} // by benchmark and ranks
	key := func(benchmark string, ranks int) string { return fmt.Sprintf("%s of %d", benchmark, ranks) }
	benchmarks := []struct{ name, published string }{
		{"ep", "in proportion to the nodes"}, {"lu", "grows up to 16 nodes"}, {"cg", "falls with every node more"},
	}
	for _, b := range benchmarks {
		for _, n := range []int{1, 2, 4} {
			if built[key(b.name, n)], err = buildNAS(source, b.name, o.Class, n); err != nil {
				return nil, err
			}
		}
	}
	s, err := up("nas", "openmpi-bin,libgfortran5")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return nil, err
	}
	s.Image = "nas"
	var list []program
	for _, b := range benchmarks {
		file := func(ranks int) []string { return []string{built[key(b.name, ranks)]} }
		list = append(list, program{strings.ToUpper(b.name) + ", class " + o.Class, b.published, file, func(ranks int) []string {
			// The benchmarks check their own results.
			return []string{"sh", "-c", fmt.Sprintf(`./%s > out.$OMPI_COMM_WORLD_RANK && cat out.$OMPI_COMM_WORLD_RANK && { [ $OMPI_COMM_WORLD_RANK != 0 ] || grep -q "Verification *= *SUCCESSFUL" out.0; }`, filepath.Base(file(ranks)[0]))}
		}})
	}
	return speeds(s, o.Runs, list)
}

// copyNAS copies the benchmarks' source, so that the user's folder stays as it is, and configures the copy for Open MPI
// and GCC. The names of the compilers are those of versions 3.4 (MPIFC) and 3.3 (MPIF77).
func copyNAS(from, to string) error {
	if _, err := os.Stat(filepath.Join(from, "EP", "Makefile")); err != nil {
		return fmt.Errorf("%s does not have the source of the NAS benchmarks' MPI version: %w", from, err)
	}
	if err := os.CopyFS(to, os.DirFS(from)); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Join(to, "bin"), 0o755); err != nil {
		return err
	}
	config := filepath.Join(to, "config", "make.def")
	if err := os.Remove(config); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.WriteFile(config, []byte(`MPIFC = mpif90
MPIF77 = mpif90
FLINK = mpif90
FFLAGS = -O3 -fallow-argument-mismatch
FLINKFLAGS = -O3
MPICC = mpicc
CLINK = mpicc
CFLAGS = -O3
CLINKFLAGS = -O3
CC = cc
BINDIR = ../bin
RAND = randi8
`), 0o644)
}

// buildNAS builds a benchmark and returns the path of its program. Version 3.3 compiles the number of ranks in, and has it
// in the program's name.
func buildNAS(source, benchmark, class string, ranks int) (string, error) {
	build := exec.Command("make", benchmark, "CLASS="+class, fmt.Sprintf("NPROCS=%d", ranks))
	build.Dir = source
	if said, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build NAS benchmark %s, class %s, for %d ranks: %w\n%s", benchmark, class, ranks, err, said)
	}
	for _, end := range []string{strconv.Itoa(ranks), "x"} {
		path := filepath.Join(source, "bin", fmt.Sprintf("%s.%s.%s", benchmark, class, end))
		if _, err := os.Stat(path); err == nil {
			return path, os.Chmod(path, 0o755)
		}
	}
	return "", fmt.Errorf("build NAS benchmark %s, class %s: make has ended well, but bin/ has no program", benchmark, class)
}
