// Grid measures the policies' decisions for many hosts and guests, without real hosts: the real core with objects in memory.
// It writes build/reports/bench-grid.json.
package main

import (
	"flag"
	"fmt"
	"hash/fnv"
	"math"
	"os"
	"text/tabwriter"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/bench/report"
	"watari/core"
	"watari/migration"
	"watari/policy"
	"watari/rebalance"
	"watari/rebalance/exact"
)

type gridReport struct {
	report.Header
	Sizes    []size      `json:"sizes"`
	Exponent report.Stat `json:"round_exponent"` // of the longest round, over the number of hosts
	// Quality compares plans with the exact optimum of small problems.
	Quality map[string]exact.Quality `json:"quality"`
	Goals   []report.Goal            `json:"goals"`
}

// size has the figures for a number of hosts with ten guests each.
type size struct {
	Hosts    int         `json:"hosts"`
	Guests   int         `json:"guests"`
	Samples  report.Stat `json:"samples_ms"` // evaluating a sample of each host
	Quiet    report.Stat `json:"quiet_ms"`   // a round without changes
	Withdraw report.Stat `json:"withdraw_ms"`
	Move     report.Stat `json:"move_ms"`  // the longest round that begins moves, after a tenth of the owners came back
	Stuck    report.Stat `json:"stuck_ms"` // the longest round while no host has room
	// Balance and Pack are the longest rounds of these policies: after a tenth of the hosts were overloaded, and while most
	// hosts could be freed. Spread is on in both.
	Balance report.Stat `json:"balance_ms"`
	Pack    report.Stat `json:"pack_ms"`
}

const (
	guestsPerHost = 10
	clusterSize   = 20
)

func main() {
	runs := flag.Int("runs", 5, "repetitions")
	flag.Parse()
	if err := bench(*runs); err != nil {
		fmt.Fprintln(os.Stderr, "bench-grid:", err)
		os.Exit(1)
	}
}

func bench(runs int) error {
	r := gridReport{Header: report.NewHeader("bench-grid", "make bench-grid")}
	for _, hosts := range []int{250, 500, 1000, 2000} {
		fmt.Printf("== %d hosts, %d guests\n", hosts, hosts*guestsPerHost)
		s := size{Hosts: hosts, Guests: hosts * guestsPerHost}
		var samples, quiet, withdraw, move, stuck, balance, pack []float64
		for range runs {
			g := newGrid(hosts, policy.Default)
			g.round(0) // the first round examines everything
			samples = append(samples, g.sample(nil))
			quiet = append(quiet, g.round(time.Second))
			g.sample(func(i int) bool { return i%10 == 0 })
			withdraw = append(withdraw, g.round(time.Second))
			longest := 0.0
			for range 20 {
				longest = math.Max(longest, g.round(50*time.Millisecond))
			}
			if g.moves() == 0 {
				return fmt.Errorf("no guest of %d hosts moves", hosts)
			}
			move = append(move, longest)
			g.now = g.now.Add(time.Second)
			g.sample(func(int) bool { return true })
			longest = 0
			for range 20 {
				longest = math.Max(longest, g.round(50*time.Millisecond))
			}
			stuck = append(stuck, longest)
			for text, took := range map[string]*[]float64{"balance: {}\nspread: {}\n": &balance, "pack: {}\nspread: {}\n": &pack} {
				g := newGrid(hosts, text)
				g.round(0)
				longest := 0.0
				for range 5 {
					g.use(took == &balance)
					longest = math.Max(longest, g.round(10*time.Second))
				}
				if g.moves() == 0 {
					return fmt.Errorf("no guest of %d hosts is rebalanced", hosts)
				}
				*took = append(*took, longest)
			}
		}
		s.Balance, s.Pack = report.Summarize("ms", balance...), report.Summarize("ms", pack...)
		s.Samples, s.Quiet, s.Withdraw = report.Summarize("ms", samples...), report.Summarize("ms", quiet...), report.Summarize("ms", withdraw...)
		s.Move, s.Stuck = report.Summarize("ms", move...), report.Summarize("ms", stuck...)
		r.Sizes = append(r.Sizes, s)
	}
	first, last, goal := r.Sizes[0], r.Sizes[len(r.Sizes)-1], r.Sizes[2]
	grows := func(of func(size) report.Stat) float64 {
		return math.Log(of(last).Median/of(first).Median) / math.Log(float64(last.Hosts)/float64(first.Hosts))
	}
	n := func(hosts int) float64 { return float64(hosts) * math.Log(float64(hosts)) }
	nLogN := math.Log(n(last.Hosts)/n(first.Hosts)) / math.Log(float64(last.Hosts)/float64(first.Hosts))
	move := grows(func(s size) report.Stat { return s.Move })
	r.Exponent = report.Summarize("", move)
	r.Goals = []report.Goal{report.AtMost("longest round that begins moves, 1,000 hosts and 10,000 guests, ms", goal.Move.Median, 200),
		report.AtMost("longest round while no host has room, the same, ms", goal.Stuck.Median, 200),
		report.AtMost("longest round that balances, the same, ms", goal.Balance.Median, 200),
		report.AtMost("longest round that packs, the same, ms", goal.Pack.Median, 200),
		report.AtMost("its growth, as an exponent (n log n)", grows(func(s size) report.Stat { return s.Balance }), nLogN),
		report.AtMost("that of the round that begins moves, as an exponent (n log n)", move, nLogN)}
	r.Quality = map[string]exact.Quality{}
	for name, of := range map[string]func() rebalance.Policy{policy.BalanceName: exact.Balance, policy.PackName: exact.Pack} {
		q, err := exact.Compare(1000, of)
		if err != nil {
			return err
		}
		r.Quality[name] = q
		r.Goals = append(r.Goals, report.AtLeast(name+": share of small problems within 5 % of the exact optimum", q.Within, 0.95),
			report.AtMost(name+": cost against the better of first fit and fewest guests, on average", q.Cost/math.Min(q.FirstFit, q.FewestGuests), 1))
	}
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nhosts\tguests\tsamples\tquiet round\twithdrawing\tmoving\tno room\tbalancing\tpacking")
	for _, s := range r.Sizes {
		fmt.Fprintf(w, "%d\t%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\n", s.Hosts, s.Guests, s.Samples, s.Quiet, s.Withdraw, s.Move, s.Stuck, s.Balance, s.Pack)
	}
	w.Flush()
	const out = "build/reports/bench-grid.json"
	if err := report.Write(out, r); err != nil {
		return err
	}
	return report.Tell(r.Goals, out)
}

// grid is a world in memory.
type grid struct {
	core    *core.Core
	objects *core.Objects
	watcher *policy.Watcher
	policy  *policy.Policy
	names   []string
	reports core.Captured
	now     time.Time
	usage   *core.Usage
}

func newGrid(hosts int, text string) *grid {
	g := &grid{objects: core.NoObjects(), watcher: policy.NewWatcher(), now: time.Now(), reports: core.Captured{}}
	var err error
	if g.policy, err = policy.Parse(text); err != nil {
		panic(err)
	}
	g.objects.Policies["v1"] = core.NewPolicy(1, text, "", "")
	for i := range hosts {
		name := fmt.Sprintf("h%04d", i)
		g.names = append(g.names, name)
		info := &v1.HostInfo{BootId: "boot-" + name, Site: fmt.Sprintf("s%d", i%10), Cores: 16, MemoryBytes: 32 << 30, Lent: true, LanAddress: "198.18.0.1", TunnelPort: 7071}
		g.objects.Hosts[name] = &v1.Host{Meta: &v1.Meta{Name: name, Uid: "uid-" + name}, Info: info}
		g.reports[name] = core.Seen{Report: &v1.HostObserved{Info: info, Term: 1}, Since: g.now, Connected: true}
	}
	for i := range hosts * guestsPerHost {
		cluster := fmt.Sprintf("c%d", i/clusterSize)
		if g.objects.Clusters[cluster] == nil {
			g.objects.Clusters[cluster] = &v1.Cluster{Meta: &v1.Meta{Name: cluster, Uid: "uid-" + cluster}, Spec: &v1.ClusterSpec{Guests: clusterSize}, Prefix: fmt.Sprintf("10.%d.%d.0/24", i/clusterSize/256, i/clusterSize%256)}
		}
		name, host := fmt.Sprintf("%s-%d", cluster, i%clusterSize), g.names[i%hosts]
		guest := &v1.Guest{Meta: &v1.Meta{Name: name, Uid: fmt.Sprintf("00000000-0000-4000-8000-%012d", i)}, Cluster: cluster, Index: uint32(i % clusterSize),
			Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 2 << 30}, Host: host, Epoch: 1, LastEpoch: 1, StartedEpoch: 1, BootId: "boot-" + host, Address: fmt.Sprintf("10.%d.%d.%d", i/clusterSize/256, i/clusterSize%256, i%clusterSize+1)}
		g.objects.Guests[name] = guest
		report := g.reports[host].Report
		report.Guests = append(report.Guests, &v1.GuestObserved{Uid: guest.Meta.Uid, Name: name, Epoch: 1, BootId: guest.BootId,
			Condition: v1.GuestCondition_GUEST_CONDITION_RUNNING, Ready: true, Process: true})
	}
	g.core = core.New(core.Config{Term: 1, Began: g.now.Add(-time.Hour), NoSharing: true,
		Identify: func(_ *v1.Cluster, guest *v1.Guest, epoch uint64, _ uint32) (*v1.Identity, time.Time) {
			return &v1.Identity{Name: guest.Meta.Name, Epoch: epoch}, time.Time{}
		}})
	return g
}

// sample evaluates a sample of each host, and returns the time for that, ms. back returns the hosts whose owner is back.
func (g *grid) sample(back func(i int) bool) float64 {
	begun := time.Now()
	for i, name := range g.names {
		idle := 1e6
		if back != nil && back(i) {
			idle = 0.1
		}
		g.watcher.See(g.policy, g.objects.Hosts[name], &v1.HostSample{Seconds: 1, Owner: &v1.OwnerActivity{InputIdle: &idle}}, g.now)
	}
	return time.Since(begun).Seconds() * 1000
}

// use makes new usage: guests use up to one core. With contention, others use most of the processors on a tenth of the
// hosts.
func (g *grid) use(contention bool) {
	g.usage = &core.Usage{Guests: map[string]core.GuestUsage{}, Hosts: map[string]core.HostUsage{}}
	for i, name := range g.names {
		used := core.HostUsage{Known: core.UsageWindow}
		if contention && i%10 == 0 {
			used.Others = 13
		}
		g.usage.Hosts[name] = used
	}
	for _, guest := range g.objects.Guests {
		sum := fnv.New32a()
		sum.Write([]byte(guest.Meta.Uid))
		g.usage.Guests[guest.Meta.Uid] = core.GuestUsage{CPU: float64(sum.Sum32()%100) / 100, MemoryBytes: guest.Shape.MemoryBytes, Known: core.UsageWindow}
	}
}

// round decides once, applies the changes, and returns the duration of the decision, ms.
func (g *grid) round(after time.Duration) float64 {
	g.now = g.now.Add(after)
	w := core.World{Objects: g.objects, Now: g.now, Reports: g.reports, Signals: g.watcher.All(g.now), Usage: g.usage}
	begun := time.Now()
	d := g.core.Decide(w)
	took := time.Since(begun).Seconds() * 1000
	for _, change := range d.Changes {
		for _, op := range change.Ops {
			if op.Kind == core.Create {
				meta := op.Object.GetMeta()
				meta.Uid, meta.Created = "uid-"+meta.Name, timestamppb.New(g.now)
			}
		}
	}
	if len(d.Changes) > 0 {
		whole := core.Change{}
		for _, change := range d.Changes {
			whole.Ops = append(whole.Ops, change.Ops...)
		}
		g.objects = g.objects.Apply(whole)
	}
	return took
}

// moves returns how many moves policies have requested.
func (g *grid) moves() (n int) {
	for _, m := range g.objects.Migrations {
		if m.Policy != "" && !migration.Ended(m.State) {
			n++
		}
	}
	return n
}
