// plot.go draws PM's curves from pm-perf, a bar for each variant on one machine, over the cables and between guests,
// and the paper's curves over verbs.
package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// panel is a part of a plot.
type panel struct {
	path, title, scale string
	of                 key
}

const (
	latencyTitle   = "8 bytes: half round trip, {/Symbol m}s (less is better)"
	bandwidthTitle = "1 MiB: ping-pong, MB/s (more is better)"
	eachDecade     = "set logscale y"
	fromZero       = "unset logscale y\nset yrange [0:*]"
)

// plot writes the plots beside the report out and returns the names of their files.
func (b *bench) plot(ctx context.Context, out string, variants []*variant) ([]string, error) {
	if err := os.MkdirAll(filepath.Dir(out), 0o755); err != nil {
		return nil, err
	}
	base := strings.TrimSuffix(out, ".json")
	plots := []string{base + "-curves.svg", base + "-mpi.svg"}
	if _, err := b.perf(ctx, nil, nil, "--plot", plots[0], "--csv", base+"-curves.csv"); err != nil {
		return nil, err
	}
	err := draw(ctx, plots[1], variants, []panel{
		{oneMachine, latencyTitle, eachDecade, keys[0]}, {oneMachine, bandwidthTitle, fromZero, keys[1]},
	})
	if err == nil && b.skipped[twoGuests] == "" {
		plots = append(plots, base+"-guests.svg")
		err = draw(ctx, plots[2], variants, []panel{
			{twoGuests, latencyTitle, eachDecade, keys[0]}, {twoGuests, bandwidthTitle, eachDecade, keys[1]},
		})
		if script := curveScript(base+"-verbs-curves.svg", variants); err == nil && script != "" {
			plots = append(plots, base+"-verbs-curves.svg")
			err = gnuplot(ctx, script)
		}
	}
	if err != nil || b.cables[whole] == nil {
		return plots, err
	}
	curves, bars := base+"-udp-curves.svg", base+"-udp.svg"
	plots = append(plots, curves, bars)
	if _, err := b.perf(ctx, b.cables[whole], nil, "--curves", "message,message-copies,write,read", "--repeat", "11",
		"--plot", curves, "--csv", base+"-udp-curves.csv"); err != nil {
		return nil, err
	}
	panels := []panel{{whole, latencyTitle, fromZero, keys[0]}, {whole, bandwidthTitle, fromZero, keys[1]}}
	if b.cables[lossy] != nil {
		panels = append(panels, panel{lossy, "1 % of packets lost: 1 MiB, MB/s", fromZero, keys[2]})
	}
	if b.cables[twoCables] != nil {
		panels = append(panels, panel{twoCables, "Two cables of 200 Mbit/s each: 1 MiB, MB/s", fromZero, keys[1]})
	}
	return plots, draw(ctx, bars, variants, panels)
}

func draw(ctx context.Context, file string, variants []*variant, panels []panel) error {
	return gnuplot(ctx, barScript(file, variants, panels))
}

func gnuplot(ctx context.Context, script string) error {
	program := exec.CommandContext(ctx, "gnuplot")
	program.Stdin = strings.NewReader(script)
	if complaint, err := program.CombinedOutput(); err != nil {
		return fmt.Errorf("gnuplot (Debian package gnuplot-nox): %w\n%s", err, complaint)
	}
	return nil
}

// barScript has a panel for each metric. Each panel has a bar with its spread for each variant, PM's in another colour.
func barScript(file string, variants []*variant, panels []panel) string {
	var script strings.Builder
	fmt.Fprintf(&script, "set terminal svg size 1200,700 dynamic background rgb 'white'\nset output '%s'\n", file)
	fmt.Fprintf(&script, "set multiplot layout 1,%d\nset boxwidth 0.7\nset style fill solid 0.6\nset xtics rotate by -60 noenhanced\nset grid y\nunset key\n", len(panels))
	for i, p := range panels {
		fmt.Fprintf(&script, "$data%d << END\n", i)
		count := 0
		for _, w := range variants {
			if w.path != p.path || len(w.figures[p.of]) == 0 || w.hasCurve() {
				continue
			}
			colour := "0x7799bb"
			if w.carrier == "pm" {
				colour = "0xcc5533"
			}
			s := w.stat(p.of)
			name, _, _ := strings.Cut(w.name(), ", "+w.path)
			fmt.Fprintf(&script, "%d %g %g %g \"%s\" %s\n", count, s.Median, s.Min, s.Max, name, colour)
			count++
		}
		fmt.Fprintf(&script, "END\nset title '%s'\nset xrange [-1:%d]\n%s\n", p.title, count, p.scale)
		fmt.Fprintf(&script, "plot $data%d using 1:2:6:xtic(5) with boxes linecolor rgb variable, '' using 1:2:3:4 with yerrorbars linecolor 'black' pointtype -1\n", i)
	}
	return script.String()
}

// curveScript draws what the paper on the RWC PC Cluster II shows of PM: the bandwidth of messages and of remote
// writes, by size and by the share of writes that find their memory pinned. Beside them are perftest's writes, whose
// memory is pinned once. It is empty if there are no figures.
func curveScript(file string, variants []*variant) string {
	var data strings.Builder
	var plots []string
	for _, w := range variants {
		if !w.hasCurve() {
			continue
		}
		fmt.Fprintf(&data, "$curve%d << END\n", len(plots))
		plots = append(plots, fmt.Sprintf("$curve%d using 1:2:3:4 with yerrorlines title '%s'", len(plots), w.carrier))
		for _, size := range curveSizes {
			if k := (key{size, bandwidth}); len(w.figures[k]) > 0 {
				s := w.stat(k)
				fmt.Fprintf(&data, "%d %g %g %g\n", size, s.Median, s.Min, s.Max)
			}
		}
		data.WriteString("END\n")
	}
	if len(plots) == 0 {
		return ""
	}
	return fmt.Sprintf("set terminal svg size 900,560 dynamic background rgb 'white'\nset output '%s'\n%s"+
		"set title 'PM over verbs between two emulated guests, many on their way: MB/s by bytes (bars: least to greatest turn)'\n"+
		"set logscale x 2\nset format x '%%.0b%%B'\n"+
		"set yrange [0:*]\nset grid\nset key below noenhanced\nplot %s\n", file, data.String(), strings.Join(plots, ", "))
}
