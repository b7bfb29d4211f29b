package main

// host.go - a simulated agent. It takes orders and reports like watari-agent, but its guests exist only in its memory.

import (
	"context"
	"crypto/tls"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/hostlink"
	"watari/internal/protocol"
)

type host struct {
	watariv1connect.UnimplementedAgentServiceHandler
	name  string
	fleet *fleet
	info  *v1.HostInfo
	dirty chan struct{} // has a token if there is something to report

	mu                        sync.Mutex
	guests                    map[string]*guest // by uid
	term, generation, network uint64            // of the latest orders
}

func newHost(f *fleet, i int) *host {
	return &host{name: fmt.Sprintf("h%04d", i), fleet: f, info: hostInfo(i), dirty: make(chan struct{}, 1), guests: map[string]*guest{}}
}

// hostInfo returns a HostInfo that is about as large as that of a real agent: it lists the CPUs for guests.
func hostInfo(i int) *v1.HostInfo {
	support := &v1.GuestSupport{Cpu: &v1.CPU{Model: "EPYC-Rome", Vendor: "AMD"}}
	for n := range 10 {
		support.Machines = append(support.Machines, fmt.Sprintf("pc-i440fx-%d.2", n))
	}
	for n := range 90 {
		name := fmt.Sprintf("feature-%02d", n)
		support.Cpu.Features, support.ModelFeatures = append(support.Cpu.Features, name), append(support.ModelFeatures, name)
	}
	support.Models = []*v1.CPUModel{{Name: support.Cpu.Model, Usable: true}}
	for n := range 60 {
		support.Models = append(support.Models, &v1.CPUModel{Name: fmt.Sprintf("Model-%02d", n), Usable: n%2 == 0})
	}
	return &v1.HostInfo{
		AgentVersion: "bench", BootId: fmt.Sprintf("boot-%04d", i), Site: fmt.Sprintf("s%d", i/100),
		LanAddress: fmt.Sprintf("10.%d.%d.%d", 200+i/65536, i/256%256, i%256), TunnelPort: 7071,
		WireguardPublicKey: "bm8ga2V5IG9mIGFueWJvZHkgYXQgYWxsLCBub25lIQ==", WireguardPort: 7072,
		Cores: 16, MemoryBytes: 64 << 30, Mtu: 1500, LibvirtVersion: "9.0.0", QemuVersion: "7.2.0", KernelVersion: "6.1.0",
		CpuModel: "AMD EPYC", Acceleration: &v1.Acceleration{Kind: v1.AccelerationKind_ACCELERATION_KIND_KVM, Reason: "simulated"},
		Confinement: &v1.Confinement{User: "libvirt-qemu", SecurityModel: "apparmor"}, GuestSupport: support,
	}
}

// dial keeps the host connected until ctx ends.
func (h *host) dial(ctx context.Context, url string, config *tls.Config) {
	mux := http.NewServeMux()
	mux.Handle(watariv1connect.NewAgentServiceHandler(h))
	for ctx.Err() == nil {
		hostlink.Dial(ctx, url, config, mux)
		if ctx.Err() == nil {
			h.fleet.lost.Add(1)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
}

// Sync reports when something has changed and every few seconds, and receives orders.
func (h *host) Sync(ctx context.Context, stream *connect.BidiStream[v1.HostWanted, v1.HostObserved]) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		for {
			wanted, err := stream.Receive()
			if err != nil {
				cancel(err)
				return
			}
			h.take(wanted)
		}
	}()
	// Spread the reports of the hosts over time.
	timer := time.NewTimer(rand.N(reportEvery))
	defer timer.Stop()
	for {
		if err := stream.Send(h.report()); err != nil {
			return err
		}
		select {
		case <-h.dirty:
		case <-timer.C:
			timer.Reset(reportEvery)
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Samples sends a sample with all guests every second.
func (h *host) Samples(ctx context.Context, _ *connect.Request[v1.SamplesRequest], stream *connect.ServerStream[v1.HostSample]) error {
	timer := time.NewTimer(rand.N(sampleEvery))
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
			timer.Reset(sampleEvery)
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := stream.Send(h.sample()); err != nil {
			return err
		}
	}
}

// sample returns figures that differ from each other and from the last ones.
func (h *host) sample() *v1.HostSample {
	s := &v1.HostSample{At: timestamppb.Now(), Seconds: sampleEvery.Seconds(), CpuGuests: 8 * rand.Float64(), CpuOwner: rand.Float64(), CpuSystem: rand.Float64(),
		MemoryAvailableBytes: rand.Uint64N(1 << 36), CpuPressure: &v1.Pressure{Some: rand.Float64()}, Owner: &v1.OwnerActivity{}}
	h.mu.Lock()
	defer h.mu.Unlock()
	for uid, g := range h.guests {
		s.Guests = append(s.Guests, &v1.GuestSample{Uid: uid, Name: g.name, Cpu: rand.Float64(), MemoryBytes: rand.Uint64N(1 << 32), Sent: 1e9 * rand.Float64()})
	}
	return s
}

// changed makes the host report soon.
func (h *host) changed() {
	select {
	case h.dirty <- struct{}{}:
	default:
	}
}

// take carries out orders.
func (h *host) take(w *v1.HostWanted) {
	h.mu.Lock()
	h.term, h.generation, h.network = w.Term, w.Generation, w.GetNetwork().GetGeneration()
	for _, g := range w.Guests {
		h.order(g)
	}
	h.mu.Unlock()
	h.changed()
}

func (h *host) report() *v1.HostObserved {
	h.mu.Lock()
	defer h.mu.Unlock()
	o := &v1.HostObserved{
		Protocol: protocol.Version, Info: h.info, Term: h.term, Generation: h.generation, NetworkGeneration: h.network, Sharing: true,
		Load:   &v1.HostLoad{CpuBusy: rand.Float64(), MemoryAvailableBytes: rand.Uint64N(64 << 30), DiskAvailableBytes: 1 << 40, At: timestamppb.Now()},
		Images: []string{imageDigest()},
	}
	for _, part := range imageParts {
		o.Blobs = append(o.Blobs, &v1.BlobObserved{Digest: part.blob().Digest, Whole: true})
	}
	for _, uid := range slices.Sorted(maps.Keys(h.guests)) {
		o.Guests = append(o.Guests, h.guests[uid].report(h.info.BootId))
	}
	return o
}

// count counts the guests of a cluster; if cluster is empty, of all clusters.
func (h *host) count(cluster string) (n int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, g := range h.guests {
		if cluster == "" || g.cluster == cluster {
			n++
		}
	}
	return n
}
