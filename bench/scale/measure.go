package main

// measure.go - the measurements with one number of hosts.

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/bench/report"
)

// placed is the number of guests of the clusters whose placing is timed.
const placed = 64

// guestShape returns the shape of all simulated guests.
func guestShape() *v1.GuestShape { return &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 30} }

// plan has the durations and repetitions of the measurements.
type plan struct {
	limit       time.Duration // time limit of each phase
	creations   int           // number of clusters whose placing is timed
	samples     int           // number of samples of the steady state
	sample      time.Duration
	drained     int // number of hosts that are drained
	quiet       time.Duration
	concurrency int // number of clusters that are created at once
}

// result holds the figures for one number of hosts.
type result struct {
	Hosts  int `json:"hosts"`
	Guests int `json:"guests"`
	// Deciding is the time of choosing hosts for 64 guests alone, without etcd.
	Deciding latency `json:"place_64_without_etcd"`
	// Placing is the time from CreateCluster for 64 guests until the last host has its order to start one.
	Placing latency `json:"place_64_by_api"`
	// Creating is the time of the call of CreateCluster alone.
	Creating latency `json:"create_64_call"`
	// Connect is the time until all hosts had joined and counted as ready.
	Connect phase `json:"connect_hosts"`
	Fill    phase `json:"fill"`
	Drain   phase `json:"drain"`
	Drained int   `json:"drained_hosts"`
	Moved   int   `json:"drain_moves"`
	// CPU and Memory are the manager's use while all hosts report and nothing else happens. They need a complete Fill.
	CPU    report.Stat `json:"steady_cpu"`
	Memory report.Stat `json:"steady_memory"`
	// Lost is how many connections of hosts ended by themselves. The manager and the load generator share this machine; if
	// either does not run for three seconds, connections are given up.
	Lost int64 `json:"lost_connections"`
}

// phase is a condition that is awaited once.
type phase struct {
	Seconds float64 `json:"s"`
	CPU     float64 `json:"manager_cpu_s"` // during the phase
	Own     float64 `json:"generator_cpu_s"`
	Done    bool    `json:"done"`    // false: given up after this many seconds
	Reached int     `json:"reached"` // how many guests or hosts had reached the wanted state at the end
}

func (p phase) String() string {
	text := fmt.Sprintf("%.1f s, manager's CPU %.1f s", p.Seconds, p.CPU)
	if !p.Done {
		text += fmt.Sprintf(", GIVEN UP at %d", p.Reached)
	}
	return text
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// bed is a manager with its simulated hosts.
type bed struct {
	*process
	fleet *fleet
	plan  plan
}

// measure makes all measurements with one number of hosts.
func measure(ctx context.Context, binary string, hosts, guests int, p plan) (r *result, err error) {
	r = &result{Hosts: hosts, Guests: guests}
	fmt.Printf("== %d hosts, %d guests\n", hosts, guests)
	if r.Deciding, err = measureDeciding(hosts, guests); err != nil {
		return nil, err
	}
	fmt.Printf("place 64 without etcd: %s\n", r.Deciding)
	manager, err := startManager(ctx, binary)
	if err != nil {
		return nil, err
	}
	defer manager.stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the hosts' connections before the manager
	b := &bed{manager, newFleet(hosts), p}
	if err := manager.register(ctx); err != nil {
		return nil, err
	}
	for _, step := range []func(context.Context, *result) error{b.connectHosts, b.fill, b.steady, b.place, b.drain} {
		if err := step(ctx, r); err != nil {
			return nil, err
		}
	}
	if r.Lost = b.fleet.lost.Load(); r.Lost > 0 {
		fmt.Printf("%d connections were lost\n", r.Lost)
	}
	return r, nil
}

// timed waits for a condition, and returns how long that took and how much CPU time the manager used.
func (b *bed) timed(ctx context.Context, what string, done func() bool, reached func() int) (phase, error) {
	cpu, _ := b.usage()
	begin, own := time.Now(), ownCPU()
	err := b.until(ctx, b.plan.limit, what, done)
	p := phase{Seconds: time.Since(begin).Seconds(), Done: err == nil, Reached: reached(), Own: ownCPU() - own}
	after, _ := b.usage()
	p.CPU = after - cpu
	if errors.Is(err, errLate) {
		err = nil
	}
	fmt.Printf("%s: %s\n", what, p)
	return p, err
}

func (b *bed) connectHosts(ctx context.Context, r *result) (err error) {
	joined := make(chan error, 1)
	go func() { joined <- b.fleet.connect(ctx, b.url, b.join) }()
	ready := 0
	var failed error
	look := time.Now()
	r.Connect, err = b.timed(ctx, "connect hosts", func() bool {
		select {
		case failed = <-joined:
		default:
		}
		if now := time.Now(); now.After(look) {
			ready = b.known(ctx)
			look = time.Now().Add(max(200*time.Millisecond, 5*time.Since(now))) // the answer is large
		}
		return failed != nil || ready == r.Hosts
	}, func() int { return ready })
	return errors.Join(err, failed)
}

// known counts the hosts that are connected and whose HostInfo the manager has stored.
func (b *bed) known(ctx context.Context) (n int) {
	list, err := b.ListHosts(ctx, connect.NewRequest(&v1.ListHostsRequest{}))
	if err != nil {
		return 0
	}
	for _, h := range list.Msg.Hosts {
		if h.State == v1.HostState_HOST_STATE_READY && h.Info != nil {
			n++
		}
	}
	return n
}

// fill creates clusters of 64 to 100 guests until there are enough guests, and waits until all are ready.
func (b *bed) fill(ctx context.Context, r *result) error {
	sizes := clusterSizes(r.Guests)
	errs := make(chan error, len(sizes))
	slots := make(chan struct{}, b.plan.concurrency)
	var making sync.WaitGroup
	defer making.Wait()
	making.Go(func() {
		for i, size := range sizes {
			slots <- struct{}{}
			making.Go(func() {
				defer func() { <-slots }()
				if err := b.create(ctx, fmt.Sprintf("fill-%d", i), size); err != nil {
					errs <- err
				}
			})
		}
	})
	var failed error
	ready := func() int { return int(b.fleet.ready.Load()) }
	var err error
	r.Fill, err = b.timed(ctx, "all guests ready", func() bool {
		select {
		case failed = <-errs:
		default:
		}
		return failed != nil || ready() == r.Guests
	}, ready)
	return errors.Join(err, failed)
}

// clusterSizes divides guests into clusters of 64 to 100. The last cluster may be smaller.
func clusterSizes(guests int) (sizes []int) {
	for i := 0; guests > 0; i++ {
		size := min(guests, 64+i*17%37)
		sizes, guests = append(sizes, size), guests-size
	}
	return sizes
}

// steady samples the manager while nothing changes.
func (b *bed) steady(ctx context.Context, r *result) error {
	var cpu, memory []float64
	select {
	case <-time.After(b.plan.quiet):
	case <-ctx.Done():
		return ctx.Err()
	}
	for range b.plan.samples {
		begin := time.Now()
		before, _ := b.usage()
		select {
		case <-time.After(b.plan.sample):
		case <-ctx.Done():
			return ctx.Err()
		}
		after, resident := b.usage()
		cpu = append(cpu, 100*(after-before)/time.Since(begin).Seconds())
		memory = append(memory, float64(resident)/(1<<20))
	}
	r.CPU, r.Memory = report.Summarize("% of a core", cpu...), report.Summarize("MiB", memory...)
	fmt.Printf("steady state: CPU %s, memory %s\n", r.CPU, r.Memory)
	return nil
}

// place times clusters of 64 guests, one after the other, while all other guests run.
func (b *bed) place(ctx context.Context, r *result) error {
	var placing, creating []float64
	deadline := time.Now().Add(b.plan.limit)
	for i := 0; i < b.plan.creations && time.Now().Before(deadline); i++ {
		name := fmt.Sprintf("timed-%d", i)
		all := b.fleet.await(name, placed)
		begin := time.Now()
		if err := b.create(ctx, name, placed); err != nil {
			return err
		}
		creating = append(creating, milliseconds(time.Since(begin)))
		select {
		case last := <-all:
			placing = append(placing, milliseconds(last.Sub(begin)))
		case <-time.After(b.plan.limit):
			placing = append(placing, milliseconds(b.plan.limit))
			fmt.Printf("cluster %s: not all guests were placed within %s\n", name, b.plan.limit)
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := b.remove(ctx, name, b.plan.limit); err != nil && !errors.Is(err, errLate) {
			return err
		}
	}
	r.Placing, r.Creating = summarize(placing), summarize(creating)
	fmt.Printf("place 64 by API: %s\ncall to create them: %s\n", r.Placing, r.Creating)
	return nil
}

// drain drains some hosts at once and waits until they have no guests.
func (b *bed) drain(ctx context.Context, r *result) (err error) {
	r.Drained = min(b.plan.drained, r.Hosts/4)
	hosts := b.fleet.hosts[:r.Drained]
	left := func() (n int) {
		for _, h := range hosts {
			n += h.count("")
		}
		return n
	}
	r.Moved = left()
	asked := make(chan error, 1)
	go func() {
		for _, h := range hosts {
			if _, err := b.DrainHost(ctx, connect.NewRequest(&v1.DrainHostRequest{Name: h.name})); err != nil {
				asked <- fmt.Errorf("drain host %s: %w", h.name, err)
				return
			}
		}
		asked <- nil
	}()
	var failed error
	done := false
	r.Drain, err = b.timed(ctx, fmt.Sprintf("drain %d hosts of %d guests", r.Drained, r.Moved), func() bool {
		select {
		case failed = <-asked:
			done = true
		default:
		}
		return failed != nil || done && left() == 0
	}, func() int { return r.Moved - left() })
	return errors.Join(err, failed)
}
