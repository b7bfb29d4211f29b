package main

// render.go - writes the report: a page with the published figures beside those of this machine, and plots by gnuplot.

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

func render(p Paper, out string) error {
	var page strings.Builder
	fmt.Fprintf(&page, "# %s\n\nThe paper's figures were taken on %s.\n", p.Title, p.Hardware)
	machine := ""
	for _, e := range p.Experiments {
		r, err := load(out, e)
		if err != nil {
			return err
		}
		fmt.Fprintf(&page, "\n## %s\n%s.\n\n", e.Figure, e.What)
		if r == nil {
			fmt.Fprintln(&page, "Not run here.")
			continue
		}
		if m := fmt.Sprintf("%s, %d processors, Linux %s, commit %s", r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Commit); m != machine {
			machine = m
			fmt.Fprintf(&page, "Here: %s, %s.\n\n", m, r.Date)
		}
		fmt.Fprint(&page, "| | paper | here | lowest to highest |\n|---|---|---|---|\n")
		for _, row := range r.Rows {
			published := row.Published
			if published == "" {
				published = "-"
			}
			fmt.Fprintf(&page, "| %s | %s | %s | %s to %s |\n", row.Name, published, number(row.Here.Median, row.Here.Unit), number(row.Here.Min, ""), number(row.Here.Max, ""))
		}
		if len(r.Curves) > 0 {
			if err := draw(filepath.Join(out, e.Name+".svg"), e.What, r); err != nil {
				return err
			}
			fmt.Fprintf(&page, "\n![%s](%s.svg)\n", e.What, e.Name)
		}
		fmt.Fprintf(&page, "\n%s\n", r.Note)
	}
	path := filepath.Join(out, "README.md")
	if err := os.WriteFile(path, []byte(page.String()), 0o644); err != nil {
		return err
	}
	fmt.Println("the report is", path)
	return nil
}

func number(v float64, unit string) string { return strings.TrimSpace(fmt.Sprintf("%.3g %s", v, unit)) }

// draw draws the curves of a result.
func draw(path, title string, r *Result) error {
	var script strings.Builder
	fmt.Fprintf(&script, "set terminal svg size 760,440 dynamic background rgb 'white' font 'sans,13'\nset output '%s'\nset title \"%s\"\nset xlabel \"%s\"\nset ylabel \"%s\"\nset logscale x 2\nset key left top\nset grid\n",
		path, title, r.Axis.X, r.Axis.Y)
	if r.Axis.LogY {
		fmt.Fprintln(&script, "set logscale y")
	}
	var plots []string
	for i, c := range r.Curves {
		fmt.Fprintf(&script, "$curve%d << END\n", i)
		for _, point := range c.Points {
			fmt.Fprintf(&script, "%g %g\n", point[0], point[1])
		}
		fmt.Fprintln(&script, "END")
		plots = append(plots, fmt.Sprintf("$curve%d using 1:2 with linespoints lw 2 title \"%s\"", i, c.Name))
	}
	fmt.Fprintf(&script, "plot %s\n", strings.Join(plots, ", "))
	gnuplot := exec.Command("gnuplot")
	gnuplot.Stdin = strings.NewReader(script.String())
	if said, err := gnuplot.CombinedOutput(); err != nil {
		return fmt.Errorf("draw %s: %w: %s", path, err, said)
	}
	return nil
}
