package monitor

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"watari/agent/load"
	v1 "watari/api/watariv1"
	"watari/internal/utmp"
)

// fake is a host made of files.
type fake struct {
	t       *testing.T
	root    string
	used    load.Used
	unknown bool
	groups  *load.Reader // what control groups report
	monitor *Monitor
	now     time.Time
}

func newFake(t *testing.T) *fake {
	f := &fake{t: t, root: t.TempDir(), now: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
	f.write("proc/net/dev", "Inter-|   Receive\n face |bytes\n")
	if err := os.MkdirAll(filepath.Join(f.root, "proc/self/ns"), 0o755); err != nil {
		t.Fatal(err)
	}
	f.link("proc/self/ns/pid", "pid:[1]")
	f.groups = &load.Reader{Root: f.root}
	m, err := New(Config{Root: f.root, Host: f, Tap: func(uid string) string { return "w" + uid[:4] }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Close)
	f.monitor = m
	return f
}

func (f *fake) Used() (load.Used, bool)         { return f.used, !f.unknown }
func (f *fake) Sessions() (time.Duration, bool) { return f.groups.Sessions() }
func (f *fake) MemoryAvailable() uint64         { return 7 << 30 }

func (f *fake) write(name, content string) {
	f.t.Helper()
	path := filepath.Join(f.root, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fake) link(name, to string) {
	if err := os.Symlink(to, filepath.Join(f.root, name)); err != nil {
		f.t.Fatal(err)
	}
}

// program is a process of the host.
type program struct {
	pid, tty, user int
	name           string
	flags          int
	started        int
	used           time.Duration
	pages          int
	arguments      []string
}

func (f *fake) run(p program) {
	f.t.Helper()
	dir := fmt.Sprintf("proc/%d", p.pid)
	fields := make([]string, 50)
	for i := range fields {
		fields[i] = "0"
	}
	fields[0], fields[4], fields[6] = "S", fmt.Sprint(p.tty), fmt.Sprint(p.flags)
	fields[11], fields[17], fields[19], fields[21] = fmt.Sprint(int(p.used/tick)), "1", fmt.Sprint(p.started), fmt.Sprint(p.pages)
	f.write(dir+"/stat", fmt.Sprintf("%d (%s) %s\n", p.pid, p.name, strings.Join(fields, " ")))
	f.write(dir+"/cmdline", strings.Join(p.arguments, "\x00")+"\x00")
	if err := os.Chown(filepath.Join(f.root, dir), p.user, -1); err != nil {
		f.t.Skipf("needs root, to make processes of several users: %v", err)
	}
	if _, err := os.Lstat(filepath.Join(f.root, dir, "ns/pid")); err != nil {
		if err := os.MkdirAll(filepath.Join(f.root, dir, "ns"), 0o755); err != nil {
			f.t.Fatal(err)
		}
		f.link(dir+"/ns/pid", "pid:[1]")
	}
}

func (f *fake) end(pid int) {
	if err := os.RemoveAll(filepath.Join(f.root, fmt.Sprintf("proc/%d", pid))); err != nil {
		f.t.Fatal(err)
	}
}

// sample makes a second pass in which the host uses the given processor time, and takes a sample.
func (f *fake) sample(used time.Duration) *v1.HostSample {
	f.now, f.used.Programs = f.now.Add(time.Second), f.used.Programs+used
	return f.monitor.Sample(f.now)
}

const uidA = "aaaa1111-0000-4000-8000-000000000001"

func qemu(pid int, uid, name string, used time.Duration) program {
	return program{pid: pid, user: 64055, name: "qemu-system-x86", used: used, pages: 100,
		arguments: []string{"qemu-system-x86_64", "-name", "guest=watari-" + name + ",debug-threads=on", "-uuid", uid}}
}

func near(t *testing.T, what string, got, want float64) {
	t.Helper()
	if math.Abs(got-want) > 1e-9 {
		t.Errorf("%s: %v, want %v", what, got, want)
	}
}

func cpu(t *testing.T, s *v1.HostSample, guests, owner, system float64) {
	t.Helper()
	near(t, "guests", s.CpuGuests, guests)
	near(t, "owner", s.CpuOwner, owner)
	near(t, "system", s.CpuSystem, system)
}

func TestWhoseTimeItIs(t *testing.T) {
	f := newFake(t)
	f.run(program{pid: 2, name: "kthreadd", flags: kernelThread})
	f.run(program{pid: 50, name: "libvirtd", used: time.Minute})
	f.run(program{pid: 60, name: "firefox", user: 1000, used: time.Hour})
	f.run(qemu(70, uidA, "md-0", time.Hour))
	first := f.sample(0)
	cpu(t, first, 0, 0, 0)
	near(t, "first sample's time", first.Seconds, 0)
	f.run(program{pid: 2, name: "kthreadd", flags: kernelThread, used: 100 * time.Millisecond})
	f.run(program{pid: 50, name: "libvirtd", used: time.Minute + 50*time.Millisecond})
	f.run(qemu(70, uidA, "md-0", time.Hour+500*time.Millisecond))
	s := f.sample(1500 * time.Millisecond) // the owner's make started compilers, which have ended
	cpu(t, s, 0.5, 0.85, 0.15)
	if len(s.Guests) != 1 || s.Guests[0].Name != "md-0" || s.MemoryGuestsBytes != 100*uint64(os.Getpagesize()) {
		t.Errorf("guests: %v, memory %d", s.Guests, s.MemoryGuestsBytes)
	}
	near(t, "md-0", s.Guests[0].Cpu, 0.5)
}

func TestTheOwnersControlGroupTellsTheOwnersTime(t *testing.T) {
	f := newFake(t)
	group := func(usec int) {
		f.write("sys/fs/cgroup/user.slice/cpu.stat", fmt.Sprintf("usage_usec %d\nuser_usec 1\n", usec))
	}
	group(5_000_000)
	f.sample(0)
	group(5_300_000)
	cpu(t, f.sample(time.Second), 0, 0.3, 0.7)
}

// domain is the QEMU of a libvirt domain that is not a guest of Watari.
func domain(pid int, name string, used time.Duration) program {
	p := qemu(pid, "dddd1111-0000-4000-8000-000000000001", "", used)
	p.arguments[2] = "guest=" + name + ",debug-threads=on"
	return p
}

func TestTheOwnersGuestCountsAsTheOwner(t *testing.T) {
	const ofLibvirt, ofSession = "/machine.slice/machine-qemu.scope", "/user.slice/user-1000.slice/user@1000.service"
	for name, c := range map[string]struct {
		ownerGuest, domain string // the setting, and whose QEMU runs
		user               int    // QEMU's
		group              string // QEMU's
		sessions           bool   // a control group tells the owner's time
		owner, system      float64
	}{
		"without login sessions":         {"win11", "win11", 64055, ofLibvirt, false, 0.5, 0},
		"beside login sessions":          {"win11", "win11", 64055, ofLibvirt, true, 0.8, 0.2},
		"its QEMU runs as a person":      {"win11", "win11", 1000, ofLibvirt, true, 0.8, 0.2},
		"it was started in a session":    {"win11", "win11", 1000, ofSession, true, 0.3, 0.7},
		"another domain":                 {"win11", "win10", 64055, ofLibvirt, false, 0, 0.5},
		"another domain beside sessions": {"win11", "win11-old", 64055, ofLibvirt, true, 0.3, 0.7},
		"no domain is the owner's":       {"", "win11", 64055, ofLibvirt, true, 0.3, 0.7},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake(t)
			f.monitor.config.OwnerGuest = c.ownerGuest
			use := func(guest, inSessions time.Duration) {
				p := domain(70, c.domain, guest)
				p.user = c.user
				f.run(p)
				f.write("proc/70/cgroup", "0::"+c.group+"\n")
				if c.sessions {
					f.write("sys/fs/cgroup/user.slice/cpu.stat", fmt.Sprintf("usage_usec %d\n", inSessions.Microseconds()))
				}
			}
			use(time.Hour, time.Minute)
			f.sample(0)
			use(time.Hour+500*time.Millisecond, time.Minute+300*time.Millisecond)
			total := 500 * time.Millisecond // the domain's alone
			if c.sessions {
				total = time.Second
			}
			cpu(t, f.sample(total), 0, c.owner, c.system)
		})
	}
}

func TestAGuestsLastTimeIsNotTheOwners(t *testing.T) {
	f := newFake(t)
	f.run(qemu(70, uidA, "md-0", 0))
	f.sample(0)
	f.run(qemu(70, uidA, "md-0", time.Second))
	cpu(t, f.sample(time.Second), 1, 0, 0)
	f.end(70)
	cpu(t, f.sample(900*time.Millisecond), 0.9, 0, 0)
	cpu(t, f.sample(900*time.Millisecond), 0, 0.9, 0)
}

func TestAPidThatIsUsedAgain(t *testing.T) {
	f := newFake(t)
	f.run(program{pid: 60, name: "cron", used: time.Hour})
	f.sample(0)
	f.run(program{pid: 60, name: "backup", started: 500, used: 200 * time.Millisecond})
	cpu(t, f.sample(time.Second), 0, 0.8, 0.2)
	// The same process starts a program of the owner.
	f.run(program{pid: 60, name: "bash", user: 1000, started: 500, used: 700 * time.Millisecond})
	cpu(t, f.sample(time.Second), 0, 1, 0)
}

func TestAClockThatIsSetBackGivesNoRates(t *testing.T) {
	f := newFake(t)
	f.sample(0)
	f.now = f.now.Add(-time.Hour)
	s := f.sample(time.Second)
	cpu(t, s, 0, 0, 0)
	near(t, "time", s.Seconds, 0)
	cpu(t, f.sample(time.Second), 0, 1, 0)
}

func TestTraffic(t *testing.T) {
	f := newFake(t)
	device := func(received, sent int) {
		f.write("proc/net/dev", fmt.Sprintf("Inter-| Receive | Transmit\n face |bytes |bytes\nwaaaa: %d 1 0 0 0 0 0 0 %d 1 0 0 0 0 0 0\n", received, sent))
	}
	f.run(qemu(70, uidA, "md-0", 0))
	device(1000, 5000)
	f.sample(0)
	device(1300, 5000)
	g := f.sample(0).Guests[0]
	near(t, "sent", g.Sent, 300) // what the tap receives
	near(t, "received", g.Received, 0)
	device(10, 20) // the tap was made anew
	g = f.sample(0).Guests[0]
	near(t, "sent", g.Sent, 0)
}

func TestTrafficOfMoves(t *testing.T) {
	f := newFake(t)
	received, sent := uint64(5000), uint64(0)
	f.monitor.config.Moved = func() (uint64, uint64) { return received, sent }
	s := f.sample(0)
	near(t, "received before the first sample", s.MigrationReceived, 0)
	received, sent = 5300, 700
	s = f.sample(0)
	near(t, "received", s.MigrationReceived, 300)
	near(t, "sent", s.MigrationSent, 700)
	s = f.sample(0)
	near(t, "received", s.MigrationReceived, 0)
}

func TestPressure(t *testing.T) {
	f := newFake(t)
	pressure := func(some, full int) {
		f.write("proc/pressure/cpu", fmt.Sprintf("some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n", some, full))
	}
	pressure(1000, 0)
	if s := f.sample(0); s.CpuPressure != nil {
		t.Errorf("pressure in the first sample: %v", s.CpuPressure)
	}
	pressure(251_000, 100_000)
	s := f.sample(0)
	near(t, "some", s.CpuPressure.GetSome(), 0.25)
	near(t, "full", s.CpuPressure.GetFull(), 0.1)
	if s.IoPressure != nil {
		t.Errorf("pressure that the kernel does not tell: %v", s.IoPressure)
	}
}

// The pressure on a guest is that of its control group, read every few seconds and repeated in the samples between.
func TestGuestPressure(t *testing.T) {
	const scope = "machine.slice/machine-qemu-1-md-0.scope"
	for group, dir := range map[string]string{
		scope + "/libvirt/emulator":                 scope, // systemd
		"machine/qemu-1-md-0.libvirt-qemu/emulator": "machine/qemu-1-md-0.libvirt-qemu",
	} {
		f := newFake(t)
		f.run(qemu(7, uidA, "md-0", 0))
		f.write("proc/7/cgroup", "5:cpu:/elsewhere\n0::/"+group+"\n")
		pressure := func(resource string, some int) {
			f.write("sys/fs/cgroup/"+dir+"/"+resource+".pressure", fmt.Sprintf("some avg10=1.50 avg60=0.00 avg300=0.00 total=%d\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n", some))
		}
		pressure("memory", 1000)
		f.write("sys/fs/cgroup/"+dir+"/io.pressure", "none avg\n")
		if g := f.sample(0).Guests[0]; g.MemoryPressure != nil {
			t.Errorf("pressure in the first sample: %v", g.MemoryPressure)
		}
		pressure("memory", 1_251_000)
		for range 4 {
			if g := f.sample(0).Guests[0]; g.MemoryPressure != nil {
				t.Errorf("pressure after one reading: %v", g.MemoryPressure)
			}
		}
		for range 3 {
			g := f.sample(0).Guests[0]
			near(t, "some", g.MemoryPressure.GetSome(), 0.25)
			if g.CpuPressure != nil || g.IoPressure != nil {
				t.Errorf("pressure that the kernel does not tell: %v", g)
			}
		}
	}
	for _, groups := range []string{"5:cpu:/" + scope + "/libvirt/emulator\n", "0::/system.slice/libvirtd.service\n"} { // version 1; none of its own
		f := newFake(t)
		f.run(qemu(7, uidA, "md-0", 0))
		f.write("proc/7/cgroup", groups)
		for i, dir := range []string{scope, "system.slice/libvirtd.service"} {
			f.write("sys/fs/cgroup/"+dir+"/cpu.pressure", fmt.Sprintf("some avg10=0.00 avg60=0.00 avg300=0.00 total=%d\n", i))
		}
		for range 10 {
			if g := f.sample(0).Guests[0]; g.CpuPressure != nil {
				t.Errorf("%q: pressure of others: %v", groups, g)
			}
		}
	}
}

func utmpEntry(kind uint16, pid int, terminal, user string) string {
	return string(utmp.Entry{Kind: kind, PID: pid, Line: terminal, User: user}.Bytes())
}

func TestWhoIsLoggedIn(t *testing.T) {
	f := newFake(t)
	f.write("dev/pts/5", "") // no terminal
	for _, name := range []string{"3", "4"} {
		if err := unix.Mknod(filepath.Join(f.root, "dev/pts", name), unix.S_IFCHR|0o600, int(unix.Mkdev(1, 3))); err != nil {
			t.Skipf("needs root, to make a terminal: %v", err)
		}
	}
	for name, ago := range map[string]time.Duration{"3": 10 * time.Second, "4": time.Minute} {
		then := f.now.Add(time.Second - ago)
		if err := os.Chtimes(filepath.Join(f.root, "dev/pts", name), then, then); err != nil {
			t.Fatal(err)
		}
	}
	f.run(program{pid: 61, name: "bash", user: 1000})
	f.run(program{pid: 62, name: "bash", user: 1001})
	f.run(program{pid: 63, name: "bash", user: 1002})
	f.write("run/utmp", utmpEntry(utmp.UserProcess, 61, "pts/3", "ann")+utmpEntry(utmp.UserProcess, 62, "pts/4", "ben")+
		utmpEntry(utmp.UserProcess, 99, "pts/5", "gone")+utmpEntry(utmp.DeadProcess, 61, "pts/3", "ended")+utmpEntry(utmp.UserProcess, 61, "../../etc/passwd", "odd")+utmpEntry(utmp.UserProcess, 63, "pts/5", "file")+"torn")
	a := f.sample(0).Owner
	if !slices.Equal(a.Users, []string{"ann", "ben", "file", "odd"}) {
		t.Errorf("users: %v", a.Users)
	}
	near(t, "terminal idle", a.GetTerminalIdle(), 10)
	if a.InputIdle != nil {
		t.Errorf("input idle for %v on a host without keyboard", a.GetInputIdle())
	}
}

func TestInputDevices(t *testing.T) {
	f := newFake(t)
	f.write("proc/bus/input/devices", `N: Name="AT keyboard"
H: Handlers=sysrq kbd event0 leds
B: EV=120013

N: Name="Power Button"
H: Handlers=kbd event1
B: EV=3

N: Name="mouse"
H: Handlers=mouse0 event2 js0
B: EV=17

N: Name="accelerometer"
H: Handlers=event3
B: EV=9

`)
	if got := f.monitor.inputs.devices(); !slices.Equal(got, []string{"event0", "event2"}) {
		t.Errorf("devices: %v", got)
	}
}

func TestNobodyElseIsAGuest(t *testing.T) {
	f := newFake(t)
	f.sample(0)
	owners := qemu(70, uidA, "md-0", time.Second)
	owners.user = 1000
	f.run(owners)
	f.run(qemu(71, "not a uid", "md-1", 0))
	f.run(qemu(72, uidA, "md\xff", 0))
	s := f.sample(time.Second)
	if len(s.Guests) != 0 {
		t.Errorf("guests: %v", s.Guests)
	}
	cpu(t, s, 0, 1, 0)
}

// The name of a process changes before its arguments do.
func TestAProcessThatBecomesQEMU(t *testing.T) {
	f := newFake(t)
	early := qemu(70, uidA, "md-0", 0)
	early.arguments = nil
	f.run(early)
	f.sample(0)
	f.run(qemu(70, uidA, "md-0", time.Second))
	cpu(t, f.sample(time.Second), 1, 0, 0)
}

func TestAReadingThatFailsGivesNoFigures(t *testing.T) {
	f := newFake(t)
	f.used.Programs = 100 * time.Hour
	f.sample(0)
	f.unknown = true
	cpu(t, f.sample(time.Second), 0, 0, 0)
	f.unknown = false
	cpu(t, f.sample(time.Second), 0, 0, 0)
	cpu(t, f.sample(time.Second), 0, 1, 0)
	f.used.Programs = 0 // the count began anew
	cpu(t, f.sample(time.Second), 0, 0, 0)
}

func TestInterruptsAreTheSystems(t *testing.T) {
	f := newFake(t)
	f.sample(0)
	f.used.Interrupts += 200 * time.Millisecond
	cpu(t, f.sample(500*time.Millisecond), 0, 0.5, 0.2)
}

func TestVirtualCPUsThatWait(t *testing.T) {
	f := newFake(t)
	thread := func(id int, name string, waited time.Duration) {
		f.write(fmt.Sprintf("proc/70/task/%d/comm", id), name+"\n")
		f.write(fmt.Sprintf("proc/70/task/%d/schedstat", id), fmt.Sprintf("5 %d 1\n", waited.Nanoseconds()))
	}
	f.run(qemu(70, uidA, "md-0", 0))
	thread(70, "qemu-system-x86", 0)
	thread(71, "CPU 0/TCG", time.Hour)
	thread(72, "CPU 1/TCG", time.Hour)
	near(t, "in the first sample", f.sample(0).Guests[0].CpuWait, 0)
	thread(70, "qemu-system-x86", time.Minute) // is no virtual CPU
	thread(71, "CPU 0/TCG", time.Hour+500*time.Millisecond)
	thread(72, "CPU 1/TCG", time.Hour+250*time.Millisecond)
	near(t, "two virtual CPUs", f.sample(0).Guests[0].CpuWait, 0.75)
	if err := os.RemoveAll(filepath.Join(f.root, "proc/70/task/72")); err != nil {
		t.Fatal(err)
	}
	near(t, "one that ended", f.sample(0).Guests[0].CpuWait, 0)
	thread(73, "CPU 1/TCG", time.Hour)
	thread(71, "CPU 0/TCG", time.Hour+time.Second)
	near(t, "one that began", f.sample(0).Guests[0].CpuWait, 0.5)
	thread(73, "CPU 1/TCG", time.Hour+time.Second)
	near(t, "and then", f.sample(0).Guests[0].CpuWait, 1)
}

func TestSamplesHaveTheLastDirtyRates(t *testing.T) {
	f := newFake(t)
	f.run(qemu(70, uidA, "md-0", 0))
	near(t, "before the first measurement", f.sample(0).Guests[0].DirtyRate, 0)
	for _, c := range []struct {
		rates map[string]float64
		err   error
		want  float64
	}{
		{map[string]float64{uidA: 5e6}, nil, 5e6},
		{map[string]float64{uidA: 7e6}, nil, 7e6},
		{map[string]float64{"another": 7e6}, nil, 0},
		{map[string]float64{uidA: 5e6}, nil, 5e6},
		{nil, errors.New("no daemon"), 0},
	} {
		f.monitor.config.DirtyRates = func(context.Context) (map[string]float64, error) { return c.rates, c.err }
		f.monitor.measureDirtyRates(t.Context())
		for range 2 {
			near(t, fmt.Sprint(c), f.sample(time.Second).Guests[0].DirtyRate, c.want)
		}
	}
}
