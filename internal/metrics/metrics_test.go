package metrics

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

func hosts() []Host {
	return []Host{
		{Name: "a1", Info: &v1.HostInfo{Site: "a", Cores: 4}, Sample: &v1.HostSample{Seconds: 1, CpuGuests: 1.5, CpuOwner: 0.25, CpuPressure: &v1.Pressure{Some: 0.5},
			MemoryAvailableBytes: 1024, MigrationSent: 25e6, Owner: &v1.OwnerActivity{Users: []string{"ann"}, TerminalIdle: proto.Float64(3)},
			Guests: []*v1.GuestSample{{Name: "md-0", Cpu: 1.5, MemoryBytes: 512, Sent: 10, DirtyRate: 3e6, Computing: 0.75, IoPressure: &v1.Pressure{Some: 0.5}}}}},
		{Name: "b1", Info: &v1.HostInfo{Site: "b", Cores: 2}},
	}
}

func TestMetrics(t *testing.T) {
	want := `
# HELP watari_guest_computing_ratio Share of the time in which a guest's programs computed, by its own account. The rest is idle, or in the guest's kernel.
# TYPE watari_guest_computing_ratio gauge
watari_guest_computing_ratio{guest="md-0",host="a1"} 0.75
# HELP watari_guest_cpu_cores Cores that a guest uses.
# TYPE watari_guest_cpu_cores gauge
watari_guest_cpu_cores{guest="md-0",host="a1"} 1.5
# HELP watari_guest_dirty_bytes_per_second Memory pages that a guest changes, measured every 2 minutes.
# TYPE watari_guest_dirty_bytes_per_second gauge
watari_guest_dirty_bytes_per_second{guest="md-0",host="a1"} 3e+06
# HELP watari_guest_pressure_ratio Share of the time in which some of a guest's threads waited for cpu, memory or io.
# TYPE watari_guest_pressure_ratio gauge
watari_guest_pressure_ratio{guest="md-0",host="a1",resource="io"} 0.5
# HELP watari_host_cores Cores that a host has.
# TYPE watari_host_cores gauge
watari_host_cores{host="a1",site="a"} 4
watari_host_cores{host="b1",site="b"} 2
# HELP watari_host_cpu_cores Cores in use on a host: by guests, by its owner, by the system.
# TYPE watari_host_cpu_cores gauge
watari_host_cpu_cores{host="a1",site="a",use="guests"} 1.5
watari_host_cpu_cores{host="a1",site="a",use="owner"} 0.25
watari_host_cpu_cores{host="a1",site="a",use="system"} 0
# HELP watari_host_migration_transmit_bytes_per_second What moves of guests send from a host.
# TYPE watari_host_migration_transmit_bytes_per_second gauge
watari_host_migration_transmit_bytes_per_second{host="a1",site="a"} 2.5e+07
# HELP watari_host_owner_idle_seconds Time since a key was pressed or the mouse moved (input), and since somebody typed on a terminal (terminal).
# TYPE watari_host_owner_idle_seconds gauge
watari_host_owner_idle_seconds{at="terminal",host="a1",site="a"} 3
# HELP watari_host_pressure_ratio Share of the time in which some tasks waited for cpu, memory or io.
# TYPE watari_host_pressure_ratio gauge
watari_host_pressure_ratio{host="a1",resource="cpu",site="a"} 0.5
`
	err := testutil.CollectAndCompare(Hosts(hosts), strings.NewReader(want), "watari_guest_computing_ratio", "watari_guest_cpu_cores", "watari_guest_dirty_bytes_per_second", "watari_guest_pressure_ratio", "watari_host_cores", "watari_host_cpu_cores",
		"watari_host_migration_transmit_bytes_per_second", "watari_host_owner_idle_seconds", "watari_host_pressure_ratio")
	if err != nil {
		t.Error(err)
	}
	problems, err := testutil.CollectAndLint(Hosts(hosts))
	if err != nil || len(problems) > 0 {
		t.Errorf("promlint: %v, %v", problems, err)
	}
}

// A sample that an owner's return causes has no rates. A rate of 0 would say that the host is idle.
func TestASampleWithoutRatesGivesNoRates(t *testing.T) {
	glance := func() []Host {
		all := hosts()
		all[0].Sample.Seconds = 0
		return all
	}
	for name, want := range map[string]int{"watari_host_cpu_cores": 0, "watari_guest_cpu_cores": 0, "watari_guest_memory_bytes": 1, "watari_host_owner_users": 1} {
		if n := testutil.CollectAndCount(Hosts(glance), name); n != want {
			t.Errorf("%d series of %s, want %d", n, name, want)
		}
	}
}

func TestServe(t *testing.T) {
	server := httptest.NewServer(handler(Hosts(hosts)))
	defer server.Close()
	response, err := http.Get(server.URL + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(response.Body)
	for _, want := range []string{`watari_host_cores{host="b1",site="b"} 2`, "go_goroutines", "process_resident_memory_bytes"} {
		if !strings.Contains(string(body), want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
}

func TestAPortThatIsTakenEndsNothing(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	var log bytes.Buffer
	ctx, stop := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer stop()
	Serve(ctx, taken.Addr().String(), Hosts(hosts), slog.New(slog.NewTextHandler(&log, nil)))
	if !strings.Contains(log.String(), "address already in use") {
		t.Errorf("the log: %s", log.String())
	}
}

// A recreated cluster has guests of the same names, and the QEMU of an old guest may still run.
func TestTwoGuestsOfOneNameAreOneSeries(t *testing.T) {
	twice := func() []Host {
		return []Host{{Name: "a1", Sample: &v1.HostSample{Seconds: 1, Guests: []*v1.GuestSample{{Uid: "1", Name: "md-0"}, {Uid: "2", Name: "md-0"}}}}}
	}
	if n := testutil.CollectAndCount(Hosts(twice), "watari_guest_cpu_cores"); n != 1 {
		t.Errorf("%d series", n)
	}
}
