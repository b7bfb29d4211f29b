// Package metrics serves a daemon's measurements to Prometheus.
package metrics

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	v1 "watari/api/watariv1"
)

// openAgain is the pause before another attempt to open a port that another program uses.
const openAgain = 10 * time.Second

// Serve answers at http://ADDRESS/metrics until ctx ends, with the collector's metrics and those of this process. If the
// port cannot be opened, Serve logs that and tries again: the daemon's work does not depend on the port.
func Serve(ctx context.Context, address string, collector prometheus.Collector, log *slog.Logger) {
	server := &http.Server{Handler: handler(collector), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	go func() {
		<-ctx.Done()
		server.Close()
	}()
	for {
		listener, err := net.Listen("tcp", address)
		if err == nil {
			log.Info("metrics are served", "address", listener.Addr().String())
			err = server.Serve(listener)
		}
		if errors.Is(err, http.ErrServerClosed) {
			return
		}
		log.Error("metrics are not served; it is tried again", "address", address, "after", openAgain.String(), "error", err)
		select {
		case <-time.After(openAgain):
		case <-ctx.Done():
			return
		}
	}
}

func handler(collector prometheus.Collector) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collector, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.ContinueOnError}))
	return mux
}

var (
	hostCPU         = describe("host_cpu_cores", "Cores in use on a host: by guests, by its owner, by the system.", "host", "site", "use")
	hostCores       = describe("host_cores", "Cores that a host has.", "host", "site")
	hostAvailable   = describe("host_memory_available_bytes", "Memory of a host that can be used without swapping.", "host", "site")
	hostGuests      = describe("host_memory_guests_bytes", "Resident memory of the guests on a host.", "host", "site")
	hostPressure    = describe("host_pressure_ratio", "Share of the time in which some tasks waited for cpu, memory or io.", "host", "site", "resource")
	hostIdle        = describe("host_owner_idle_seconds", "Time since a key was pressed or the mouse moved (input), and since somebody typed on a terminal (terminal).", "host", "site", "at")
	hostUsers       = describe("host_owner_users", "Users who are logged in on a host.", "host", "site")
	hostReceived    = describe("host_migration_receive_bytes_per_second", "What moves of guests bring to a host.", "host", "site")
	hostSent        = describe("host_migration_transmit_bytes_per_second", "What moves of guests send from a host.", "host", "site")
	guestCPU        = describe("guest_cpu_cores", "Cores that a guest uses.", "guest", "host")
	guestMemory     = describe("guest_memory_bytes", "Resident memory of a guest on its host.", "guest", "host")
	guestReceived   = describe("guest_receive_bytes_per_second", "What a guest receives from its cluster's network.", "guest", "host")
	guestSent       = describe("guest_transmit_bytes_per_second", "What a guest sends into its cluster's network.", "guest", "host")
	guestDirty      = describe("guest_dirty_bytes_per_second", "Memory pages that a guest changes, measured every 2 minutes.", "guest", "host")
	guestComputing  = describe("guest_computing_ratio", "Share of the time in which a guest's programs computed, by its own account. The rest is idle, or in the guest's kernel.", "guest", "host")
	guestPressure   = describe("guest_pressure_ratio", "Share of the time in which some of a guest's threads waited for cpu, memory or io.", "guest", "host", "resource")
	allDescriptions = []*prometheus.Desc{hostCPU, hostCores, hostAvailable, hostGuests, hostPressure, hostIdle, hostUsers, hostReceived, hostSent, guestCPU, guestMemory, guestReceived, guestSent, guestDirty, guestComputing, guestPressure}
)

func describe(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("watari_"+name, help, labels, nil)
}

// Host is a host with its present sample.
type Host struct {
	Name   string
	Info   *v1.HostInfo
	Sample *v1.HostSample // nil: not measured
}

// Hosts collects the metrics of hosts. It is called at each scrape, and returns the hosts.
type Hosts func() []Host

// Describe implements prometheus.Collector.
func (Hosts) Describe(to chan<- *prometheus.Desc) {
	for _, d := range allDescriptions {
		to <- d
	}
}

// Collect implements prometheus.Collector.
func (all Hosts) Collect(to chan<- prometheus.Metric) {
	for _, h := range all() {
		h.collect(to)
	}
}

func (h Host) collect(to chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	site, s := h.Info.GetSite(), h.Sample
	gauge(hostCores, float64(h.Info.GetCores()), h.Name, site)
	if s == nil {
		return
	}
	rate := func(d *prometheus.Desc, value float64, labels ...string) {
		if s.Seconds > 0 { // otherwise no rates are known, and 0 would be wrong
			gauge(d, value, labels...)
		}
	}
	rate(hostCPU, s.CpuGuests, h.Name, site, "guests")
	rate(hostCPU, s.CpuOwner, h.Name, site, "owner")
	rate(hostCPU, s.CpuSystem, h.Name, site, "system")
	gauge(hostAvailable, float64(s.MemoryAvailableBytes), h.Name, site)
	gauge(hostGuests, float64(s.MemoryGuestsBytes), h.Name, site)
	rate(hostReceived, s.MigrationReceived, h.Name, site)
	rate(hostSent, s.MigrationSent, h.Name, site)
	pressures := func(d *prometheus.Desc, cpu, memory, io *v1.Pressure, labels ...string) {
		for resource, p := range map[string]*v1.Pressure{"cpu": cpu, "memory": memory, "io": io} {
			if p != nil {
				gauge(d, p.Some, append(labels, resource)...)
			}
		}
	}
	pressures(hostPressure, s.CpuPressure, s.MemoryPressure, s.IoPressure, h.Name, site)
	if o := s.Owner; o != nil {
		gauge(hostUsers, float64(len(o.Users)), h.Name, site)
		for at, idle := range map[string]*float64{"input": o.InputIdle, "terminal": o.TerminalIdle} {
			if idle != nil {
				gauge(hostIdle, *idle, h.Name, site, at)
			}
		}
	}
	seen := map[string]bool{}
	for _, g := range s.Guests {
		if seen[g.Name] { // an earlier guest with the same name, whose QEMU has not ended
			continue
		}
		seen[g.Name] = true
		rate(guestCPU, g.Cpu, g.Name, h.Name)
		gauge(guestMemory, float64(g.MemoryBytes), g.Name, h.Name)
		rate(guestReceived, g.Received, g.Name, h.Name)
		rate(guestSent, g.Sent, g.Name, h.Name)
		rate(guestDirty, g.DirtyRate, g.Name, h.Name)
		if g.Computing > 0 {
			gauge(guestComputing, g.Computing, g.Name, h.Name)
		}
		pressures(guestPressure, g.CpuPressure, g.MemoryPressure, g.IoPressure, g.Name, h.Name)
	}
}
