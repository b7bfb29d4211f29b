// plot.go makes the pictures: PM's curves by pm-perf, and a bar for each way.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// plot gives the names of the files made, beside the report out.
func (b *bench) plot(ctx context.Context, out string, ways []*way) ([]string, error) {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(out, ".json")
	curves := base + "-curves.svg"
	if _, err := run(ctx, filepath.Join(b.build, "pm-perf"), "--plot", curves, "--csv", base+"-curves.csv"); err != nil {
		return nil, err
	}
	bars := base + "-mpi.svg"
	gnuplot := exec.CommandContext(ctx, "gnuplot")
	gnuplot.Stdin = strings.NewReader(barScript(bars, ways))
	if complaint, err := gnuplot.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("gnuplot (Debian package gnuplot-nox): %w\n%s", err, complaint)
	}
	return []string{curves, bars}, nil
}

// barScript has a panel for each metric, and in it a bar with its spread for each way, PM's in another colour.
func barScript(file string, ways []*way) string {
	var script strings.Builder
	fmt.Fprintf(&script, "set terminal svg size 1200,700 dynamic background rgb 'white'\nset output '%s'\n", file)
	script.WriteString("set multiplot layout 1,2\nset boxwidth 0.7\nset style fill solid 0.6\nset xtics rotate by -60 noenhanced\nset grid y\nunset key\n")
	titles := map[key]string{keys[0]: "8 bytes: half round trip, {/Symbol m}s (less is better)", keys[1]: "1 MiB: ping-pong, MB/s (more is better)"}
	scales := map[key]string{keys[0]: "set logscale y", keys[1]: "unset logscale y\nset yrange [0:*]"}
	for panel, k := range keys {
		fmt.Fprintf(&script, "$data%d << END\n", panel)
		count := 0
		for _, w := range ways {
			if len(w.figures[k]) == 0 {
				continue
			}
			colour := "0x7799bb"
			if w.carrier == "pm" {
				colour = "0xcc5533"
			}
			s := w.stat(k)
			fmt.Fprintf(&script, "%d %g %g %g \"%s\" %s\n", count, s.Median, s.Min, s.Max, w.name(), colour)
			count++
		}
		fmt.Fprintf(&script, "END\nset title '%s'\nset xrange [-1:%d]\n%s\n", titles[k], count, scales[k])
		fmt.Fprintf(&script, "plot $data%d using 1:2:6:xtic(5) with boxes linecolor rgb variable, '' using 1:2:3:4 with yerrorbars linecolor 'black' pointtype -1\n", panel)
	}
	return script.String()
}
