package main

// grid.go - "MPI environment on the grid with virtual machines": MPI programs on virtual machines that a virtual network
// joins over sites, and that move.

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"watari/bench/report"
	"watari/bench/system"
)

// wan is the shape of the WAN between the lab's two sites.
const wan = "10ms,200mbit"

var grid = Paper{
	Name: "grid", Title: "MPI on virtual machines on the grid",
	Hardware: "the PrestoIII cluster: two Opteron 242 a node, of which one MPI process or one guest used one, 2 GB, 1000BASE-T, Linux 2.6.12, Xen, and OpenVPN",
	Experiments: []Experiment{
		{Name: "start", Figure: "Start of a cluster", What: "Time from the order of a cluster of 1, 2 and 4 guests to the end of its first MPI program, at one site and on two", Run: start},
		{Name: "network", Figure: "Latency and bandwidth (NetPIPE)", What: "Latency and bandwidth between two hosts, and between two guests, at one site and between sites", Run: network},
		{Name: "programs", Figure: "Programs on one and on two sites", What: "Speed of programs by the number of guests, against one guest: one that does not communicate, and one that does (LAMMPS)", Run: programs},
		{Name: "queens", Figure: "N queens", What: "Speed of a master and its workers by the number of guests, against one guest", Run: nQueens},
		{Name: "migration", Figure: "What a migration costs", What: "By how much a live migration lengthens a run of two guests, by the guest's memory", Run: migrations},
		{Name: "moves", Figure: "What several migrations cost", What: "By how much 1, 2, 4 and 8 live migrations of a guest lengthen a run of two guests that do not communicate", Run: countedMigrations},
		{Name: "balance", Figure: "Load balancing of three jobs", What: "Times of three MPI jobs of 4, 2 and 2 ranks that begin on two of four hosts, with and without the balancer", Run: balance},
		{Name: "npb", Figure: "NAS parallel benchmarks", What: "Speed of EP, LU and CG by the number of guests, against one guest", Run: nasPrograms, Missing: func(o Options) string {
			if o.NPB == "" {
				return "it needs the source of the NAS benchmarks, which are not free to pass on: make experiment NPB=FOLDER, where FOLDER has config/ and EP/ of the MPI version"
			}
			return ""
		}},
	},
}

// up starts a lab of two sites.
func up(image, packages string) (*system.System, error) {
	s, err := system.Up("experiments", wan)
	if err == nil && image != s.Image {
		_, err = s.Watari("image", "build", image, "--packages", packages)
	}
	return s, err
}

// withCluster makes a cluster, calls do, and deletes the cluster.
func withCluster(s *system.System, name string, guests int, memory string, flags []string, do func() error) error {
	create := []string{"cluster", "create", name, "--guests", strconv.Itoa(guests), "--memory", memory, "--image", s.Image, "--wait"}
	if _, err := s.Watari(append(create, flags...)...); err != nil {
		return err
	}
	if err := do(); err != nil {
		return err
	}
	_, err := s.Watari("cluster", "delete", name, "--wait")
	return err
}

// pipe is a result of NetPIPE.
type pipe struct {
	points           [][2]float64 // bytes, Mbit/s
	latency, highest float64      // µs, Mbit/s
}

// mostBytes is the longest message of NetPIPE. Longer ones take long under emulation, and the curves are flat there.
const mostBytes = 1 << 20

// parsePipe reads NetPIPE's output file: bytes, Mbit/s and seconds in each line.
func parsePipe(text string) (p pipe, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			continue
		}
		var v [3]float64
		for i := range v {
			if v[i], err = strconv.ParseFloat(fields[i], 64); err != nil {
				return p, fmt.Errorf("NetPIPE's line %q: %w", line, err)
			}
		}
		p.points = append(p.points, [2]float64{v[0], v[1]})
		p.highest = max(p.highest, v[1])
		if v[0] <= 8 && (p.latency == 0 || v[2]*1e6 < p.latency) {
			p.latency = v[2] * 1e6
		}
	}
	if len(p.points) == 0 {
		return p, fmt.Errorf("NetPIPE has measured nothing: %q", text)
	}
	return p, nil
}

// network compares hosts and guests, at one site and between sites, by MPI's ping-pong as the paper does.
func network(o Options) (*Result, error) {
	s, err := up("net", "openmpi-bin,netpipe-openmpi")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return nil, err
	}
	// Rank 0 alone writes a result.
	pingPong := []string{"sh", "-c", fmt.Sprintf("f=$(mktemp) && NPopenmpi -u %d -n 8 -p 0 -o $f >&2 && cat $f; rm -f $f", mostBytes)}
	hosts := func(pair string) func() (string, error) {
		return func() (string, error) { return onHosts(s, pair, pingPong) }
	}
	guests := func(cluster, transport string) func() (string, error) {
		return func() (string, error) {
			return s.Watari(append([]string{"run", cluster, "--transport", transport, "--"}, pingPong...)...)
		}
	}
	for cluster, where := range map[string][]string{"lan": {"--site", "a", "--spread", "host"}, "far": {"--spread", "site"}} {
		if _, err := s.Watari(append([]string{"cluster", "create", cluster, "--guests", "2", "--memory", "192M", "--image", "net", "--wait"}, where...)...); err != nil {
			return nil, err
		}
	}
	variants := []struct {
		name    string
		measure func() (string, error)
	}{
		{"hosts, one site", hosts("a1,a2")}, {"guests, one site", guests("lan", "tcp")}, {"guests, one site, PM", guests("lan", "pm")},
		{"hosts, two sites", hosts("a1,b1")}, {"guests, two sites (WireGuard)", guests("far", "tcp")}, {"guests, two sites (WireGuard), PM", guests("far", "pm")},
	}
	latencies, rates := map[string][]float64{}, map[string][]float64{}
	r := &Result{Axis: Axis{X: "message, bytes", Y: "Mbit/s", LogY: true},
		Note: "NetPIPE's ping-pong over Open MPI; over TCP where PM is not named. The paper has guests of Xen with a paravirtual network, at twice the latency of the bare machine. Here everything shares two processors, and guests are emulated where the machine has no usable KVM: their latency is the emulator's. Between sites the WAN of the lab (" + wan + ", each way) outweighs that."}
	for run := range o.Runs {
		for _, v := range variants {
			text, err := v.measure()
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			p, err := parsePipe(text)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", v.name, err)
			}
			fmt.Printf("%s: %.0f us, %.0f Mbit/s\n", v.name, p.latency, p.highest)
			latencies[v.name], rates[v.name] = append(latencies[v.name], p.latency), append(rates[v.name], p.highest)
			if run == 0 {
				r.Curves = append(r.Curves, Curve{v.name, p.points})
			}
		}
	}
	for _, v := range variants {
		r.Rows = append(r.Rows, Row{Name: "latency, " + v.name, Here: report.Summarize("µs", latencies[v.name]...)}, Row{Name: "bandwidth, " + v.name, Here: report.Summarize("Mbit/s", rates[v.name]...)})
	}
	r.Rows = append(r.Rows,
		Row{Name: "latency of guests / of hosts, one site", Published: "about 2", Here: report.Ratios(latencies["guests, one site"], latencies["hosts, one site"])},
		Row{Name: "latency of guests / of hosts, two sites", Here: report.Ratios(latencies["guests, two sites (WireGuard)"], latencies["hosts, two sites"])})
	return r, nil
}

// onHosts runs an MPI program of one rank on each of these hosts of the lab, and returns its output.
func onHosts(s *system.System, hosts string, program []string) (string, error) {
	dir, err := os.MkdirTemp("", "experiments-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	// mpirun starts its daemons on hosts by "ssh [OPTIONS...] HOST COMMAND...". The daemons look for a program of this name, too.
	inHost := s.Command(context.Background(), "lab", "exec", "--name", "experiments").Args
	script := fmt.Appendf(nil, "#!/bin/sh\nwhile [ \"${1#-}\" != \"$1\" ]; do shift; done\nhost=$1; shift\nexec '%s' \"$host\" -- sh -c \"$*\" </dev/null\n", strings.Join(inHost, "' '"))
	if err := os.WriteFile(filepath.Join(dir, "ssh"), script, 0o755); err != nil {
		return "", err
	}
	// The hosts have the same processors, so that mpirun would bind both ranks to the same one.
	mpirun := exec.Command("mpirun", append([]string{"--allow-run-as-root", "--timeout", "600", "--bind-to", "none", "--host", hosts, "--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0"}, program...)...)
	mpirun.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
	var said bytes.Buffer
	mpirun.Stderr = &said
	out, err := mpirun.Output()
	if err != nil {
		return "", fmt.Errorf("mpirun: %w\n%s", err, said.String())
	}
	return string(out), nil
}

// moved is the data that is read of a migration.
type moved struct {
	State      string
	TotalMs    float64
	DowntimeMs float64
}

// migrations compares runs with and without live migrations, by the guest's memory.
func migrations(o Options) (*Result, error) {
	s, err := up("mpi", "")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return nil, err
	}
	const moves = 4
	r := &Result{Axis: Axis{X: "memory of the guest, MiB", Y: "s"}, Note: "The paper's cost is what a run is longer for each migration. Here it contains the processor time of the move itself, which the two processors have to give beside the program: between sites, where sending takes long, it grows with what has to be sent; at one site it is within the noise of the machine, about a second. A guest of 128 MiB, the paper's smallest, has no room for the program here."}
	curves := map[string]*Curve{}
	published := map[string]string{"one site 192": "0.5 s at 128 MiB", "one site 256": "1 s"}
	// The program has to run for longer than its moves take.
	for _, place := range []struct{ name, to, steps string }{{"one site", "a2", "500"}, {"two sites", "b1", "2000"}} {
		curves[place.name] = &Curve{Name: place.name}
		for _, memory := range []int{192, 256, 512} {
			var costs, totals, stops []float64
			err := withCluster(s, "mig", 2, fmt.Sprintf("%dM", memory), []string{"--site", "a"}, func() error {
				for range o.Runs {
					program := []string{"--stage", "examples/melt/in.melt", "--", "lmp", "-in", "in.melt", "-log", "none", "-var", "steps", place.steps}
					alone, _, err := withMoves(s, program, 0, place.to)
					if err != nil {
						return err
					}
					took, made, err := withMoves(s, program, moves, place.to)
					if err != nil {
						return err
					}
					for _, m := range made {
						totals, stops = append(totals, m.TotalMs/1000), append(stops, m.DowntimeMs/1000)
					}
					costs = append(costs, (took-alone)/float64(len(made)))
				}
				return nil
			})
			if err != nil {
				return nil, err
			}
			cost := report.Summarize("s", costs...)
			name := fmt.Sprintf("%s, %d MiB", place.name, memory)
			fmt.Printf("%s: a migration costs %s\n", name, cost)
			r.Rows = append(r.Rows, Row{Name: "cost of a migration, " + name, Published: published[fmt.Sprintf("%s %d", place.name, memory)], Here: cost},
				Row{Name: "its length, " + name, Here: report.Summarize("s", totals...)}, Row{Name: "the guest stands, " + name, Here: report.Summarize("s", stops...)})
			curves[place.name].Points = append(curves[place.name].Points, [2]float64{float64(memory), cost.Median})
		}
		r.Curves = append(r.Curves, *curves[place.name])
	}
	return r, nil
}

// countedMigrations compares runs with several numbers of live migrations, by a program that hardly communicates.
func countedMigrations(o Options) (*Result, error) {
	return withQueens(func(s *system.System, built string) (*Result, error) { return migrationsUnder(s, built, o.Runs) })
}

// migrationsUnder moves guests of several sizes under N queens; built is the path of the program.
func migrationsUnder(s *system.System, built string, runs int) (*Result, error) {
	r := &Result{Axis: Axis{X: "migrations", Y: "s longer"}, Note: "The paper moves guests of 128 and 256 MiB under EP, class B, of eight processes. Here it is " + movedQueens + " queens (examples/queens) of two processes, at one site. A guest of 128 MiB has no room for Open MPI's programs and the image here."}
	published := map[int]string{192: "about 0.5 s a migration at 128 MiB", 256: "about 1 s a migration"}
	program := []string{"--stage", built, "--", "./queens", movedQueens}
	for _, memory := range []int{192, 256} {
		curve := Curve{Name: fmt.Sprintf("%d MiB", memory)}
		longer := map[int][]float64{}
		err := withCluster(s, "mig", 2, fmt.Sprintf("%dM", memory), []string{"--site", "a"}, func() error {
			if _, _, err := withMoves(s, program, 0, "a2"); err != nil { // the first run also translates the program
				return err
			}
			for range runs {
				var alone float64
				for _, moves := range []int{0, 1, 2, 4, 8} {
					if _, err := s.Watari("migrate", "mig-1", "--to", "a1"); err != nil && !strings.Contains(err.Error(), "already") {
						return err
					}
					took, made, err := withMoves(s, program, moves, "a2")
					switch {
					case err != nil:
						return err
					case len(made) != moves:
						return fmt.Errorf("%d of %d migrations were made", len(made), moves)
					case moves == 0:
						alone = took
					default:
						longer[moves] = append(longer[moves], took-alone)
					}
				}
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
		for _, moves := range []int{1, 2, 4, 8} {
			row := Row{Name: fmt.Sprintf("%d MiB, migrations: %d: the run is longer by", memory, moves), Here: report.Summarize("s", longer[moves]...)}
			if moves == 1 {
				row.Published = published[memory]
			}
			fmt.Printf("%s %s\n", row.Name, row.Here)
			r.Rows = append(r.Rows, row)
			curve.Points = append(curve.Points, [2]float64{float64(moves), row.Here.Median})
		}
		r.Curves = append(r.Curves, curve)
	}
	return r, nil
}

// movedQueens is a board's side, for which two emulated guests need longer than eight migrations take.
const movedQueens = "16"

// untilItRuns is the pause before the first migration of a run. Until then, its program has begun to compute.
const untilItRuns = 5 * time.Second

// withMoves runs a program on cluster mig, and moves a guest meanwhile, to a host and back to a1 in turn. It returns how long the
// run took, in seconds, and the moves that were made.
func withMoves(s *system.System, program []string, moves int, to string) (took float64, made []moved, err error) {
	begun, done := time.Now(), make(chan error, 1)
	go func() {
		_, err := s.Watari(append([]string{"run", "mig"}, program...)...)
		done <- err
	}()
	if moves > 0 {
		time.Sleep(untilItRuns)
	}
	for i := range moves {
		target := to
		if i%2 == 1 {
			target = "a1"
		}
		var m moved
		switch err := s.JSON(&m, "migrate", "mig-1", "--to", target); {
		case err != nil && strings.Contains(err.Error(), "already"):
		case err != nil:
			return 0, nil, errors.Join(err, <-done)
		case len(done) > 0:
			return 0, nil, fmt.Errorf("the program ended before the moves did: it must have more to do than %q", program)
		default:
			made = append(made, m)
		}
	}
	err = <-done
	return time.Since(begun).Seconds(), made, err
}

// balance runs the balancer's benchmark, which repeats this experiment, and takes its figures.
func balance(o Options) (*Result, error) {
	const path = "build/reports/bench-balance.json"
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	bench := exec.Command("build/bin/go", "run", "./bench/balance", "-runs", strconv.Itoa(o.Runs))
	bench.Stdout, bench.Stderr = os.Stdout, os.Stderr
	failed := bench.Run()
	// A missed goal is also an error of the benchmark. Its figures still count; it writes them only when they are complete.
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, errors.Join(failed, err)
	}
	var measured struct {
		Jobs []struct {
			Ranks   int         `json:"ranks"`
			Without report.Stat `json:"without_s"`
			With    report.Stat `json:"with_s"`
		} `json:"jobs"`
		Ratio report.Stat `json:"with_by_without"`
		Moves report.Stat `json:"moves"`
	}
	if err := json.Unmarshal(text, &measured); err != nil {
		return nil, err
	}
	r := &Result{Note: "The paper compares guests under the balancer with the same jobs straight on the machines, without guests, where they stay on two of four hosts. Here both are guests. Each host of the lab is limited to a part of a processor, so that four of them fit on two."}
	published := []string{"99.89 s", "188.07 s", "199.16 s"}
	left := []string{"137.34 s", "163.29 s", "233.68 s"}
	for i, j := range measured.Jobs {
		r.Rows = append(r.Rows, Row{Name: fmt.Sprintf("job %d, %d ranks, not balanced (paper: without guests)", i+1, j.Ranks), Published: left[i], Here: j.Without},
			Row{Name: fmt.Sprintf("job %d, %d ranks, balanced", i+1, j.Ranks), Published: published[i], Here: j.With})
	}
	r.Rows = append(r.Rows, Row{Name: "sum of the times, balanced / not balanced (paper: / without guests)", Published: "0.912", Here: measured.Ratio}, Row{Name: "moves of the balancer", Here: measured.Moves})
	return r, nil
}
