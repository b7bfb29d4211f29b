// Experiments repeats the experiments of a paper in a lab: real guests, real programs, and the paper's figures beside those
// of this machine. It writes a report with plots. It does not repeat an experiment whose result exists, so that an
// interrupted series continues where it was.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"watari/bench/report"
)

// Paper is a paper with its experiments.
type Paper struct {
	Name, Title string
	Hardware    string // hardware of the paper's measurements
	Experiments []Experiment
}

// Experiment repeats a table or a figure of a paper.
type Experiment struct {
	Name   string
	Figure string // of the paper, for people
	What   string // what it measures
	Run    func(Options) (*Result, error)
	// Missing returns why the experiment cannot be run here; empty: it can. nil: it always can.
	Missing func(Options) string
}

// Options are the user's.
type Options struct {
	Runs  int    // repetitions of each measurement
	NPB   string // folder with the MPI version of the NAS benchmarks; empty: there is none
	Class string // size of the NAS benchmarks' problems: S, W, A, ...
}

// Result is the result of an experiment.
type Result struct {
	report.Header
	Rows []Row `json:"rows"`
	// Curves are drawn over a logarithmic axis.
	Curves []Curve `json:"curves,omitempty"`
	Axis   Axis    `json:"axis,omitzero"`
	Note   string  `json:"note"` // differences from the paper's setting, for people
}

// Row is a figure beside the published one.
type Row struct {
	Name      string      `json:"name"`
	Published string      `json:"published,omitempty"` // with its unit; empty: the paper has no such figure
	Here      report.Stat `json:"here"`
}

// Curve is a line of a plot.
type Curve struct {
	Name   string       `json:"name"`
	Points [][2]float64 `json:"points"`
}

// Axis names the axes of the curves.
type Axis struct {
	X, Y string
	LogY bool
}

var papers = []Paper{grid}

func main() {
	name := flag.String("paper", "grid", "`paper` whose experiments are repeated: "+names(papers))
	only := flag.String("only", "", "run only these `experiments`, with commas")
	out := flag.String("out", "", "`folder` of the report (default: build/reports/PAPER)")
	var o Options
	flag.IntVar(&o.Runs, "runs", 3, "repetitions of each measurement")
	flag.StringVar(&o.NPB, "npb", "", "`folder` with the source of the NAS benchmarks' MPI version (it has config/ and EP/)")
	flag.StringVar(&o.Class, "class", "S", "`class` of the NAS benchmarks: the size of their problems, from S on")
	again := flag.Bool("again", false, "repeat experiments whose results are there")
	flag.Parse()
	i := slices.IndexFunc(papers, func(p Paper) bool { return p.Name == *name })
	if i < 0 {
		fmt.Fprintf(os.Stderr, "experiments: there is no paper %q; there are: %s\n", *name, names(papers))
		os.Exit(2)
	}
	if *out == "" {
		*out = filepath.Join("build/reports", *name)
	}
	if err := repeat(papers[i], *only, *out, o, *again); err != nil {
		fmt.Fprintln(os.Stderr, "experiments:", err)
		os.Exit(1)
	}
}

func names(papers []Paper) string {
	var list []string
	for _, p := range papers {
		list = append(list, p.Name)
	}
	return strings.Join(list, ", ")
}

// repeat runs the requested experiments, and writes the report of all existing results.
func repeat(p Paper, only, out string, o Options, again bool) error {
	if err := os.MkdirAll(out, 0o755); err != nil {
		return err
	}
	wanted := strings.FieldsFunc(only, func(r rune) bool { return r == ',' })
	for _, name := range wanted {
		if !slices.ContainsFunc(p.Experiments, func(e Experiment) bool { return e.Name == name }) {
			return fmt.Errorf("paper %s has no experiment %q", p.Name, name)
		}
	}
	var failed error
	for _, e := range p.Experiments {
		path := filepath.Join(out, e.Name+".json")
		_, err := os.Stat(path)
		switch {
		case len(wanted) > 0 && !slices.Contains(wanted, e.Name):
			continue
		case err == nil && !again:
			fmt.Printf("== %s: its result is there (%s); -again repeats it\n", e.Name, path)
			continue
		case e.Missing != nil && e.Missing(o) != "":
			fmt.Printf("== %s: skipped: %s\n", e.Name, e.Missing(o))
			continue
		}
		fmt.Printf("== %s: %s\n", e.Name, e.What)
		result, err := e.Run(o)
		if err == nil {
			result.Header = report.NewHeader(p.Name+"/"+e.Name, fmt.Sprintf("make experiment PAPER=%s", p.Name))
			err = report.Write(path, result)
		}
		if err != nil {
			failed = errors.Join(failed, fmt.Errorf("%s: %w", e.Name, err))
		}
	}
	return errors.Join(failed, render(p, out))
}

// load reads an experiment's result; nil: there is none.
func load(out string, e Experiment) (*Result, error) {
	text, err := os.ReadFile(filepath.Join(out, e.Name+".json"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r := &Result{}
	return r, json.Unmarshal(text, r)
}
