package test

// chaos_test.go - random faults, while programs that check themselves run and guests move.

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"watari/bench/report"
)

// The settings of `make chaos`. A short chaos on the shared lab is one of the ordinary tests.
var (
	chaosSeed    = os.Getenv("WATARI_CHAOS_SEED")
	chaosMinutes = os.Getenv("WATARI_CHAOS_MINUTES")
)

const (
	defaultSeed    = 15
	defaultMinutes = 0.5
)

// useThreeSites gives a separate chaos a larger lab.
func useThreeSites() {
	labName, listen = "chaos", "0.0.0.0:17074"
	labShape = []string{"--sites", "3", "--hosts", "2", "--wan", "10ms,400mbit"}
	packages = "openmpi-bin,lammps"
	hosts = []string{"a1", "a2", "b1", "b2", "c1", "c2"}
}

// trouble is a kind of fault. It lasts until it is lifted.
type trouble struct {
	name   string
	weight int
	// least and most bound its duration; 0: there is nothing to lift.
	least, most time.Duration
	// ends: the fault may end a guest, and with it a run.
	ends bool
	do   func(c *chaos, s strike) error
	lift func(c *chaos, s strike) error
}

var troubles = []trouble{
	{name: "a guest moves", weight: 8, do: func(c *chaos, s strike) error {
		return c.mayRefuse("migrate", s.guest, "--to", s.host, "--detach")
	}},
	{name: "the manager is killed", weight: 2, least: time.Second, most: 15 * time.Second,
		do: func(c *chaos, _ strike) error { c.manager.Lock(); return signalManager(syscall.SIGKILL) },
		lift: func(c *chaos, _ strike) error {
			defer c.manager.Unlock()
			return c.try("up", "--no-agent", "--state", shared.state, "--listen", listen)
		}},
	{name: "the manager stands still", weight: 1, least: time.Second, most: 12 * time.Second,
		do:   func(c *chaos, _ strike) error { c.manager.Lock(); return signalManager(syscall.SIGSTOP) },
		lift: func(c *chaos, _ strike) error { defer c.manager.Unlock(); return signalManager(syscall.SIGCONT) }},
	{name: "an agent is killed", weight: 3, do: signalOn("watari-agent --manager", syscall.SIGKILL)},
	{name: "an agent stands still", weight: 1, least: time.Second, most: 12 * time.Second,
		do: signalOn("watari-agent --manager", syscall.SIGSTOP), lift: signalOn("watari-agent --manager", syscall.SIGCONT)},
	{name: "a libvirt daemon is killed", weight: 2, do: signalOn("libvirtd", syscall.SIGKILL)},
	{name: "a site is cut off", weight: 2, least: time.Second, most: 20 * time.Second,
		do:   func(c *chaos, s strike) error { return c.try("lab", "wan", "cut", "--name", labName, s.host[:1]) },
		lift: func(c *chaos, s strike) error { return c.try("lab", "wan", "heal", "--name", labName, s.host[:1]) }},
	{name: "a host is drained", weight: 2, least: 5 * time.Second, most: 20 * time.Second,
		do:   func(c *chaos, s strike) error { return c.mayRefuse("host", "drain", s.host) },
		lift: func(c *chaos, s strike) error { return c.try("host", "drain", "--undo", s.host) }},
	{name: "an owner comes back", weight: 2, least: 5 * time.Second, most: 20 * time.Second,
		do:   func(c *chaos, s strike) error { return c.try("lab", "owner", "--name", labName, s.host, "types") },
		lift: func(c *chaos, s strike) error { return c.try("lab", "owner", "--name", labName, s.host, "away") }},
	{name: "a disk is full", weight: 1, least: 5 * time.Second, most: 15 * time.Second,
		do: func(c *chaos, s strike) error {
			return c.try("lab", "exec", "--name", labName, s.host, "--", "sh", "-c", fmt.Sprintf(
				"mount -t tmpfs -o size=8m full %[1]s/guests && mkdir %[1]s/guests/.blobs && dd if=/dev/zero of=%[1]s/guests/fill bs=64k status=none || true", agentState))
		},
		lift: func(c *chaos, s strike) error {
			return c.try("lab", "exec", "--name", labName, s.host, "--", "umount", "-l", agentState+"/guests")
		}},
	{name: "a guest's QEMU is killed", weight: 1, ends: true, do: func(_ *chaos, s strike) error {
		for _, host := range hosts {
			signal(host, "qemu-system.*watari-"+s.guest, syscall.SIGKILL)
		}
		return nil
	}},
	{name: "a cluster is to go back to its checkpoint", weight: 1, ends: true, do: func(c *chaos, s strike) error {
		cluster, _, _ := strings.Cut(s.guest, "-")
		return c.mayRefuse("checkpoint", "restore", cluster)
	}},
	{name: "a host loses its power", weight: 1, ends: true, least: 3 * time.Second, most: 15 * time.Second,
		do:   func(c *chaos, s strike) error { return c.try("lab", "host", "crash", "--name", labName, s.host) },
		lift: func(c *chaos, s strike) error { return c.try("lab", "host", "start", "--name", labName, s.host) }},
}

func signalManager(signal syscall.Signal) error {
	pid, err := daemonID("manager")
	if err != nil {
		return err
	}
	return syscall.Kill(pid, signal)
}

func signalOn(pattern string, which syscall.Signal) func(*chaos, strike) error {
	return func(_ *chaos, s strike) error {
		signal(s.host, pattern, which)
		return nil
	}
}

func signal(host, pattern string, which syscall.Signal) {
	for _, pid := range processesOn(host, pattern) {
		syscall.Kill(pid, which) // the process may have ended
	}
}

// strike is a fault at a time.
type strike struct {
	at, lasts   time.Duration
	host, guest string
	*trouble
}

func (s strike) String() string {
	text := fmt.Sprintf("%6.1f s: %s (host %s, guest %s)", s.at.Seconds(), s.name, s.host, s.guest)
	if s.lasts > 0 {
		text += fmt.Sprintf(" for %.1f s", s.lasts.Seconds())
	}
	return text
}

const (
	// strikePause is the mean time between two faults.
	strikePause = 4 * time.Second
	// endsPause is the least time between two faults that end guests, so that runs can finish in between.
	endsPause = 70 * time.Second
)

// planChaos plans all faults. The same seed gives the same plan.
func planChaos(seed uint64, lasts time.Duration, guests []string) (plan []strike) {
	random := rand.New(rand.NewPCG(seed, seed))
	var all []*trouble
	for i := range troubles {
		for range troubles[i].weight {
			all = append(all, &troubles[i])
		}
	}
	busy := map[string]time.Duration{} // the end of the fault of each target
	ended := -endsPause / 2
	for at := strikePause; at < lasts; at += time.Duration(random.Int64N(int64(2 * strikePause))) {
		s := strike{at: at, trouble: all[random.IntN(len(all))], host: hosts[random.IntN(len(hosts))], guest: guests[random.IntN(len(guests))]}
		if s.most > 0 {
			s.lasts = s.least + time.Duration(random.Int64N(int64(s.most-s.least)))
		}
		victim := s.host
		switch {
		case strings.Contains(s.name, "manager"):
			victim = "manager"
		case strings.Contains(s.name, "site"):
			victim = "site " + s.host[:1]
		}
		if s.ends && at < ended+endsPause || at < busy[victim] {
			continue
		}
		if s.ends {
			ended = at
		}
		busy[victim] = at + s.lasts + time.Second
		plan = append(plan, s)
	}
	return plan
}

// chaos is a chaos under way.
type chaos struct {
	t     *testing.T
	begun time.Time

	manager sync.Mutex // is held while the manager is killed or stands still, until it is up again

	mu       sync.Mutex
	enders   []time.Time // times at which guests may have been ended
	right    int
	restored int // runs of right that went back to a checkpoint
	excused  []string
}

// try repeats a command until it succeeds, because the manager may be down.
func (c *chaos) try(args ...string) error {
	var out string
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Second) {
		if out, err = shared.watari(30*time.Second, args...); err == nil {
			return nil
		}
	}
	return fmt.Errorf("watari %s: %w\n%s", strings.Join(args, " "), err, out)
}

// mayRefuse runs a command that may fail: the manager may refuse it or be down.
func (c *chaos) mayRefuse(args ...string) error {
	shared.watari(5*time.Second, args...)
	return nil
}

// strike causes and lifts the faults of the plan.
func (c *chaos) strike(plan []strike) {
	var lifts sync.WaitGroup
	defer lifts.Wait()
	for _, s := range plan {
		time.Sleep(time.Until(c.begun.Add(s.at)))
		c.t.Log(s)
		if s.ends {
			c.mu.Lock()
			c.enders = append(c.enders, time.Now())
			c.mu.Unlock()
		}
		if err := s.do(c, s); err != nil {
			c.t.Errorf("%s: %v", s, err)
		}
		if s.lift == nil {
			continue
		}
		lifts.Go(func() {
			time.Sleep(s.lasts)
			if err := s.lift(c, s); err != nil {
				c.t.Errorf("end of %s: %v", s, err)
			}
		})
	}
}

// job is a program that runs repeatedly on a cluster.
type job struct {
	cluster string
	size    int // guests
	steps   string
	more    []string // arguments of the run
	answer  string   // of an undisturbed run
	// lasting: the cluster has a lease, a volume and regular checkpoints, to which it goes back when a guest is lost. Its runs
	// take several times as long as the time between two checkpoints.
	lasting  bool
	restores int // of its last run
}

// patience is the time limit of a run.
func (j *job) patience() time.Duration {
	if j.lasting {
		return 10 * time.Minute
	}
	return 3 * time.Minute
}

// make makes the job's cluster.
func (j *job) make(t *testing.T) {
	more := []string{"--spread", "site"}
	if j.lasting {
		must(t, "volume", "create", j.cluster, "--size", "256M")
		t.Cleanup(func() { must(t, "volume", "delete", j.cluster) })
		more = append(more, "--volume", j.cluster, "--lease", "60s", "--on-host-loss", "restore")
	}
	newCluster(t, j.cluster, j.size, more...)
	settled(t, j.cluster, j.size)
	if j.lasting {
		must(t, "checkpoint", "create", j.cluster, "--every", "45s", "--keep", "3")
	}
}

// compute repeats the job until a time, and compares its answers.
func (c *chaos) compute(j *job, until time.Time) {
	for n := 1; time.Now().Before(until); n++ {
		name := fmt.Sprintf("%s-%d-%x", j.cluster, n, c.begun.Unix())
		begun := time.Now()
		answer, failure := j.run(name, until.Add(j.patience()))
		ended := time.Now()
		c.mu.Lock()
		struck := slices.ContainsFunc(c.enders, func(at time.Time) bool { return at.After(begun.Add(-settle)) && at.Before(ended) })
		switch {
		case failure == "" && answer == j.answer:
			c.right++
			if j.restores > 0 {
				c.restored++
			}
			c.t.Logf("%6.1f s: run %s is right, after %.1f s and %d restores", ended.Sub(c.begun).Seconds(), name, ended.Sub(begun).Seconds(), j.restores)
		case failure == "":
			c.t.Errorf("WRONG ANSWER of run %s:\n%s\nwant:\n%s", name, answer, j.answer)
		case struck, j.lasting && strings.Contains(failure, "which was made before this run began"):
			c.excused = append(c.excused, name+": "+failure)
			c.t.Logf("%6.1f s: run %s has ended with a guest: %s", ended.Sub(c.begun).Seconds(), name, failure)
		default:
			c.t.Errorf("run %s failed, and no guest had been ended: %s", name, failure)
		}
		c.mu.Unlock()
	}
}

// givenUp finds the guest in the advice to start it.
var givenUp = regexp.MustCompile(`given up after \d+ starts; watari guest start (\S+) tries again`)

// run runs the job once, and returns its table or why there is none. A failed command does not count as a failed run,
// because the manager may be down.
func (j *job) run(name string, limit time.Time) (answer, failure string) {
	begin := meltOf(j.cluster, name, j.steps, append([]string{"--detach"}, j.more...)...)
	var state run
	last := "it did not begin"
	for ; time.Now().Before(limit); time.Sleep(time.Second) {
		out, err := shared.watari(30*time.Second, "-o", "json", "run", "show", name)
		if err != nil {
			last = out
			if strings.Contains(out, "there is no run") {
				_, last = shared.outcome(30*time.Second, begin...)
			}
			// A guest that ends repeatedly is given up, and the message tells a person how to start it.
			if given := givenUp.FindStringSubmatch(last); given != nil {
				_, _ = shared.outcome(30*time.Second, "guest", "start", given[1])
			}
			continue
		}
		if err := json.Unmarshal([]byte(out), &state); err != nil {
			continue
		}
		last = state.State + " " + state.Message
		if state.Ended.IsZero() {
			continue
		}
		j.restores = state.Restores
		if !strings.HasSuffix(state.State, "_EXITED") || state.ExitCode != 0 {
			logs, _ := shared.watari(30*time.Second, "run", "logs", name)
			return "", fmt.Sprintf("%s, status %d: %s\n%s", state.State, state.ExitCode, state.Message, logs)
		}
		logs, err := shared.watari(30*time.Second, "run", "logs", name)
		lines, whole := meltTable(logs)
		if err == nil && whole {
			return lines, ""
		}
		last = "its output has no whole table: " + logs
	}
	return "", "not within its time: " + last
}

// outcome runs a command and returns its output with a possible error.
func (s *system) outcome(limit time.Duration, args ...string) (ok bool, text string) {
	out, err := s.watari(limit, args...)
	return err == nil, fmt.Sprintf("%s %v", out, err)
}

func TestChaos(t *testing.T) {
	seed, minutes := uint64(defaultSeed), defaultMinutes
	if chaosMinutes != "" {
		var errSeed, errMinutes error
		seed, errSeed = strconv.ParseUint(chaosSeed, 10, 64)
		minutes, errMinutes = strconv.ParseFloat(chaosMinutes, 64)
		if errSeed != nil || errMinutes != nil || minutes <= 0 {
			t.Fatalf("a seed is a number, and so are minutes: SEED=%q MINUTES=%q", chaosSeed, chaosMinutes)
		}
	}
	lasts := time.Duration(minutes * float64(time.Minute))
	jobs := []*job{{cluster: "storm", size: 3, steps: "30"}, {cluster: "squall", size: 2, steps: "20", more: []string{"--transport", "pm"}}}
	if chaosMinutes != "" {
		jobs = append(jobs, &job{cluster: "gale", size: 2, steps: "200", lasting: true})
	}
	var guests []string
	for _, j := range jobs {
		j.make(t)
		for n := range j.size {
			guests = append(guests, fmt.Sprintf("%s-%d", j.cluster, n))
		}
		var failure string
		if j.answer, failure = j.run(fmt.Sprintf("%s-alone-%x", j.cluster, time.Now().Unix()), time.Now().Add(j.patience())); failure != "" {
			t.Fatalf("the undisturbed run of %s: %s", j.cluster, failure)
		}
	}
	applyPolicy(t, fmt.Sprintf(harvestPolicy, "true"))
	plan := planChaos(seed, lasts, guests)
	t.Logf("seed %d, %v, %d faults", seed, lasts, len(plan))
	c := &chaos{t: t, begun: time.Now()}
	var work sync.WaitGroup
	for _, j := range jobs {
		work.Go(func() { c.compute(j, c.begun.Add(lasts)) })
	}
	c.strike(plan)
	work.Wait()
	for _, name := range guests { // some guests may have been given up
		_, _ = shared.outcome(30*time.Second, "guest", "start", name)
	}
	settle0 := settle
	settle = 2 * time.Minute // an owner must have been away for a while
	defer func() { settle = settle0 }()
	hostsReady(t)
	for _, j := range jobs {
		settled(t, j.cluster, j.size)
		if chaosMinutes == "" {
			continue // the last runs have ended after the last fault
		}
		if answer, failure := j.run(fmt.Sprintf("%s-after-%x", j.cluster, time.Now().Unix()), time.Now().Add(j.patience())); failure != "" || answer != j.answer {
			t.Errorf("a run of %s afterwards: %s\n%s", j.cluster, failure, answer)
		}
	}
	c.report(seed, minutes, plan)
}

type chaosReport struct {
	report.Header
	Seed    uint64         `json:"seed"`
	Minutes float64        `json:"minutes"`
	Faults  map[string]int `json:"faults"`
	Right   int            `json:"runs_right"`
	// Restored of these went back to a checkpoint on the way.
	Restored int            `json:"runs_right_after_a_restore"`
	Ended    int            `json:"runs_ended_with_a_guest"`
	Moves    map[string]int `json:"moves"` // by their end state
	Passed   bool           `json:"passed"`
}

// report logs the results, and writes them for `make chaos`.
func (c *chaos) report(seed uint64, minutes float64, plan []strike) {
	r := chaosReport{Header: report.NewHeader("chaos", fmt.Sprintf("make chaos SEED=%d MINUTES=%g", seed, minutes)), Seed: seed, Minutes: minutes,
		Faults: map[string]int{}, Moves: map[string]int{}, Right: c.right, Restored: c.restored, Ended: len(c.excused), Passed: !c.t.Failed()}
	for _, s := range plan {
		r.Faults[s.name]++
	}
	for _, m := range decoded[[]migration](c.t, "migrate", "list", "--all") {
		r.Moves[strings.TrimPrefix(m.State, "MIGRATION_STATE_")]++
	}
	c.t.Logf("%d runs right, %d of them after a restore, %d ended with a guest; faults: %v; moves: %v", r.Right, r.Restored, r.Ended, r.Faults, r.Moves)
	if r.Right == 0 {
		c.t.Error("no run came to its end, so that nothing was shown")
	}
	if chaosMinutes == "" {
		return
	}
	if root, err := exec.Command("git", "rev-parse", "--show-toplevel").Output(); err == nil {
		if err := report.Write(filepath.Join(strings.TrimSpace(string(root)), "build/reports/chaos.json"), r); err != nil {
			c.t.Error(err)
		}
	}
}
