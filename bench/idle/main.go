// Idle measures the cost of Watari while nothing happens: CPU time and memory of the manager, and of the agent of one
// host with sixteen guests. It writes build/reports/bench-idle.json.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/prometheus/procfs"

	"watari/bench/report"
	"watari/bench/system"
)

const (
	guests = 16
	host   = "a1" // the host with all guests
	goal   = 1.0  // % of a core
)

type idleReport struct {
	report.Header
	Guests  int           `json:"guests"`
	Seconds float64       `json:"seconds"` // duration of one sample
	Manager cost          `json:"manager"`
	Agent   cost          `json:"agent"` // on the host with the guests, including the agent's helper processes
	Others  []cost        `json:"others"`
	Goals   []report.Goal `json:"goals"`
}

// cost is the use of resources by one or several processes.
type cost struct {
	Name   string      `json:"name"`
	CPU    report.Stat `json:"cpu_percent"` // of one core
	Memory uint64      `json:"rss_bytes"`   // at the end of the sample
}

func main() {
	samples := flag.Int("samples", 5, "number of samples")
	length := flag.Duration("length", time.Minute, "length of each")
	flag.Parse()
	if err := bench(*samples, *length); err != nil {
		fmt.Fprintln(os.Stderr, "bench-idle:", err)
		os.Exit(1)
	}
}

func bench(samples int, length time.Duration) error {
	const name = "bench-idle"
	r := idleReport{Header: report.NewHeader(name, "make bench-idle"), Guests: guests, Seconds: length.Seconds()}
	s, err := system.Up(name, "")
	if s != nil {
		defer s.Down()
	}
	if err != nil {
		return err
	}
	for _, other := range []string{"a2", "b1", "b2"} {
		if _, err := s.Watari("host", "drain", other); err != nil {
			return err
		}
	}
	fmt.Printf("== a cluster of %d guests on host %s\n", guests, host)
	if _, err := s.Watari("cluster", "create", "idle", "--guests", fmt.Sprint(guests), "--memory", "192M", "--image", s.Image, "--wait"); err != nil {
		return err
	}
	fmt.Println("== waiting a minute until all is quiet")
	time.Sleep(time.Minute)
	before, err := look(name)
	if err != nil {
		return err
	}
	percent := map[string][]float64{}
	for i := range samples {
		begun := time.Now()
		time.Sleep(length)
		after, err := look(name)
		if err != nil {
			return err
		}
		for what, now := range after {
			percent[what] = append(percent[what], 100*(now.cpu-before[what].cpu)/time.Since(begun).Seconds())
		}
		fmt.Printf("sample %d of %d: manager %.2f %%, agent %.2f %%\n", i+1, samples, percent["manager"][i], percent["watari-agent"][i])
		before = after
	}
	for what, now := range before {
		c := cost{Name: what, CPU: report.Summarize("%", percent[what]...), Memory: now.memory}
		switch what {
		case "manager":
			r.Manager = c
		case "watari-agent":
			r.Agent = c
		default:
			r.Others = append(r.Others, c)
		}
	}
	slices.SortFunc(r.Others, func(a, b cost) int { return cmp.Compare(a.Name, b.Name) })
	r.Goals = []report.Goal{report.AtMost("manager, % of a core", r.Manager.CPU.Median, goal), report.AtMost("agent, % of a core", r.Agent.CPU.Median, goal)}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintf(w, "\n%d idle guests on one host\tCPU, of a core\tmemory, MiB\n", guests)
	for _, c := range append([]cost{r.Manager, r.Agent}, r.Others...) {
		fmt.Fprintf(w, "%s\t%s\t%d\n", c.Name, c.CPU, c.Memory>>20)
	}
	w.Flush()
	const out = "build/reports/bench-idle.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

// usage is the resources that processes have used.
type usage struct {
	cpu    float64 // s
	memory uint64  // bytes
}

// look sums up the manager's processes and, on the host, those of each program.
func look(lab string) (map[string]usage, error) {
	all, err := procfs.AllProcs()
	if err != nil {
		return nil, err
	}
	commands, parents := map[int][]string{}, map[int]int{}
	stats := map[int]procfs.ProcStat{}
	for _, p := range all {
		stat, err := p.Stat()
		if err != nil {
			continue // the process has ended
		}
		commands[p.PID], _ = p.CmdLine()
		parents[p.PID], stats[p.PID] = stat.PPID, stat
	}
	onHost := func(pid int) bool { // the command lines of its first processes name lab and host
		for pid = parents[pid]; pid > 1; pid = parents[pid] {
			if slices.Contains(commands[pid], lab) && slices.Contains(commands[pid], host) {
				return true
			}
		}
		return false
	}
	found := map[string]usage{}
	for pid, stat := range stats {
		if len(commands[pid]) == 0 {
			continue
		}
		name := filepath.Base(commands[pid][0])
		switch {
		case onHost(pid) && name != "watari":
		case strings.Contains(strings.Join(commands[pid], " "), "/var/tmp/watari-"+lab) && name == "watari":
			name = "manager"
		default:
			continue
		}
		u := found[name]
		found[name] = usage{u.cpu + stat.CPUTime(), u.memory + uint64(stat.ResidentMemory())}
	}
	for _, needed := range []string{"manager", "watari-agent"} {
		if found[needed].memory == 0 {
			return nil, fmt.Errorf("the process of the %s was not found", needed)
		}
	}
	return found, nil
}
