package top

import (
	"errors"
	"math"
	"strings"
	"testing"
	"time"

	tea "charm.land/bubbletea/v2"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

var now = time.Date(2026, 5, 6, 7, 8, 9, 0, time.UTC)

func host(name, site string, sample *v1.HostSample) *v1.Host {
	return &v1.Host{Meta: &v1.Meta{Name: name}, Info: &v1.HostInfo{Site: site, Cores: 2}, State: v1.HostState_HOST_STATE_READY, Sample: sample}
}

func guest(name, on string) *v1.Guest {
	return &v1.Guest{Meta: &v1.Meta{Name: name, Uid: "uid-" + name}, Host: on, State: v1.GuestState_GUEST_STATE_RUNNING, Shape: &v1.GuestShape{Vcpus: 1}}
}

func example() picture {
	return newPicture(now, []*v1.Host{
		host("b1", "b", nil),
		host("a1", "a", &v1.HostSample{CpuGuests: 0.98, CpuOwner: 0.2, CpuSystem: 0.07, MemoryAvailableBytes: 12 << 30, MigrationSent: 25 << 20,
			Guests: []*v1.GuestSample{{Uid: "uid-md-0", Name: "md-0", Cpu: 0.98, MemoryBytes: 412 << 20, Received: 1 << 20, Sent: 3 << 20}},
			Owner:  &v1.OwnerActivity{Users: []string{"ann"}, TerminalIdle: proto.Float64(3), InputIdle: proto.Float64(90)}}),
	}, []*v1.Guest{guest("md-0", "a1"), guest("md-1", "b1")}, []*v1.Migration{
		{Guest: "md-0", Target: "b1", State: v1.MigrationState_MIGRATION_STATE_TRANSFERRING, Progress: &v1.MigrationProgress{TotalBytes: 100, RemainingBytes: 57}},
		{Guest: "md-1", Target: "a1", State: v1.MigrationState_MIGRATION_STATE_DONE},
	})
}

func TestThePicture(t *testing.T) {
	p := example()
	want := `watari top   07:08:09   2 hosts, 2 guests, 1 move under way

HOST           SITE     STATE         GUESTS   OWNER  SYSTEM      OF       FREE  OWNER'S ACTIVITY
a1             a        ready           0.98    0.20    0.07       2     12 GiB  moves in 0 B/s, out 25 MiB/s; ann, typed 3s ago
  md-0                  running         0.98                       1    412 MiB  to b1, 43 %  in 1 MiB/s, out 3 MiB/s
b1             b        ready              -       -       -       2          -
  md-1                  running            -                       1
`
	if got := draw(&p, nil, 0); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

func TestAWithdrawnHostSaysByWhichPolicyBeforeItsOwnersActivity(t *testing.T) {
	p := example()
	for _, h := range p.hosts {
		h.Withdrawn = []*v1.Withdrawal{{Policy: "harvest", Since: timestamppb.New(now.Add(-125 * time.Second))}}
	}
	text := draw(&p, nil, 0)
	for _, want := range []string{"12 GiB  withdrawn by harvest for 2m5s; moves in 0 B/s, out 25 MiB/s; ann, typed 3s ago\n", "-  withdrawn by harvest for 2m5s\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

func TestStrips(t *testing.T) {
	s := strips{}
	p := example()
	for range stripLength + 5 {
		s.add(&p)
	}
	if got := s.draw("/a1", stripLength); got != strings.Repeat("▅", stripLength) {
		t.Errorf("five eighths in use: %q", got)
	}
	if got := s.draw("/b1", stripLength); got != strings.Repeat("?", stripLength) {
		t.Errorf("not known: %q", got)
	}
	s = strips{"x": {0, 0.01, 0.5, 1, 7, math.NaN(), -1}}
	if got, want := s.draw("x", stripLength), strings.Repeat(" ", stripLength-7)+"  ▄██? "; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// A strip does not begin empty: the manager knows what was used before.
func TestStripsBeginWithThePast(t *testing.T) {
	s := &screen{width: 200, height: 8, guests: true, strips: strips{}, look: func() tea.Msg { return nil }, past: func(picture) tea.Msg { return nil }}
	s.Update(example())
	s.Update(history{"/a1": repeated(repeated(nil, 0, 5), 1, 40), "gone": {1}})
	if got := s.strips.draw("/a1", stripLength); got != strings.Repeat("█", stripLength-1)+"▅" {
		t.Errorf("%q", got)
	}
	if _, there := s.strips["gone"]; there {
		t.Error("there is a strip of nothing")
	}
}

func TestNamesFromHostsAreMadePrintable(t *testing.T) {
	if got := activity(&v1.OwnerActivity{Users: []string{"\x1b]52;c;x\a", "x\nHOST"}}); strings.ContainsAny(got, "\x1b\a\n") {
		t.Errorf("%q", got)
	}
}

func TestStripsNeedRoom(t *testing.T) {
	p := example()
	s := strips{}
	s.add(&p)
	for width, want := range map[int]string{73: "", 80: "LAST 15 s", 104: "LAST 9 s", 200: "LAST 30 s"} {
		text := draw(&p, s, width)
		if got := strings.Contains(text, "LAST"); got != (want != "") || !strings.Contains(text, want) {
			t.Errorf("%d characters, want %q:\n%s", width, want, text)
		}
	}
}

func key(name string) tea.Msg {
	switch name {
	case "up":
		return tea.KeyPressMsg{Code: tea.KeyUp}
	case "down":
		return tea.KeyPressMsg{Code: tea.KeyDown}
	case "enter":
		return tea.KeyPressMsg{Code: tea.KeyEnter}
	case "esc":
		return tea.KeyPressMsg{Code: tea.KeyEscape}
	}
	return tea.KeyPressMsg{Code: rune(name[0]), Text: name}
}

func TestTheScreenFitsTheTerminal(t *testing.T) {
	s := &screen{width: 40, height: 6, guests: true, strips: strips{}, look: func() tea.Msg { return nil }}
	if got := s.text(); got != "asking the manager ..." {
		t.Errorf("before the first picture: %q", got)
	}
	s.Update(trouble{errors.New("no answer")})
	if got := s.text(); !strings.Contains(got, "no answer") {
		t.Errorf("without a picture: %q", got)
	}
	s.Update(example())
	shows := func(want string) {
		t.Helper()
		lines := strings.Split(s.text(), "\n")
		if len(lines) > 6 || !strings.HasPrefix(lines[headings], want) {
			t.Errorf("want %q first of at most 6 lines, got\n%s", want, s.text())
		}
		for _, line := range lines {
			if n := len([]rune(line)); n > 40 {
				t.Errorf("a line of %d characters: %q", n, line)
			}
		}
	}
	shows("a1")
	s.Update(key("down"))
	shows("  md-0")
	s.Update(key("g"))
	shows("a1")
	s.Update(key("g"))
	for range 9 {
		s.Update(key("down"))
	}
	shows("b1")
	s.Update(key("up"))
	shows("  md-0")
	s.Update(trouble{errors.New("gone")})
	if got := s.text(); !strings.Contains(got, "the picture is old: gone") {
		t.Errorf("after a failure:\n%s", got)
	}
	s.Update(tea.WindowSizeMsg{Width: 10, Height: 1})
	s.text()
	if _, command := s.Update(key("q")); command == nil {
		t.Error("q does not end it")
	}
}

func run(name string, state v1.RunState) *v1.Run {
	return &v1.Run{Meta: &v1.Meta{Name: name}, State: state, Started: timestamppb.New(now.Add(-125 * time.Second)), Spec: &v1.RunSpec{Cluster: "md", Command: []string{"lmp", "-in", "in.melt"}}}
}

func TestTheProcessesOfARunAreAskedForWhileTheyAreShown(t *testing.T) {
	var asked []string
	s := &screen{width: 100, height: 8, guests: true, strips: strips{}, look: func() tea.Msg { return nil }}
	s.ask = func(v *view) tea.Msg {
		asked = append(asked, v.run)
		if v.run == "" {
			return answer{to: v, at: now, runs: running([]*v1.Run{run("fast", v1.RunState_RUN_STATE_RUNNING), run("over", v1.RunState_RUN_STATE_EXITED), run("slow", v1.RunState_RUN_STATE_RUNNING)})}
		}
		return answer{to: v, at: now, guests: []*v1.GuestProcesses{
			{Guest: "md-0", Host: "a1", Processes: []*v1.RunProcess{{Pid: 40, Name: "mpirun", State: "S"}, {Pid: 41, Name: "lmp", Rank: proto.Uint32(0), State: "R", Cpu: 0.98, CpuTimeNs: 125e9, MemoryBytes: 96 << 20}}},
			{Guest: "md-1", Host: "b1", Error: "the guest does not answer within 4s"}}}
	}
	s.Update(example())
	press := func(name string) {
		t.Helper()
		if _, command := s.Update(key(name)); command != nil {
			s.Update(command())
		}
	}
	shows := func(want string) {
		t.Helper()
		if got := s.text(); got != want {
			t.Errorf("got\n%s\nwant\n%s", got, want)
		}
	}
	picture := s.text()
	press("p")
	press("down")
	press("down")
	shows(`watari top   07:08:09   runs under way

  RUN   CLUSTER  STARTED   COMMAND
  slow  md       2m5s ago  lmp -in in.melt
> fast  md       2m5s ago  lmp -in in.melt
esc closes, arrows choose, enter shows the processes`)
	first := s.view
	press("enter")
	shows(`watari top   07:08:09   processes of run fast   2 on 2 guests

RANK  GUEST  HOST  PID  COMMAND  STATE     CPU   TIME  MEMORY  MESSAGE
0     md-0   a1    41   lmp      running   98 %  2m5s  96 MiB  -
-     md-0   a1    40   mpirun   sleeping  0 %   0s    0 B     -
-     md-1   b1    -    -        -         -     -     -       the guest does not answer within 4s
esc closes, arrows scroll`)
	processes := s.view
	s.Update(answer{to: processes, err: errors.New("gone")})
	if got := s.text(); !strings.Contains(got, "gone   esc closes") || !strings.Contains(got, "mpirun") {
		t.Errorf("after a failure:\n%s", got)
	}
	if _, command := s.Update(again{processes}); command == nil {
		t.Error("the open view is not asked for again")
	}
	press("esc")
	shows(picture)
	for _, closed := range []*view{first, processes} {
		for _, message := range []tea.Msg{again{closed}, answer{to: closed, at: now}} {
			if _, command := s.Update(message); command != nil {
				t.Errorf("a view that was closed asks after %T", message)
			}
		}
	}
	shows(picture)
	if got := strings.Join(asked, ","); got != ",fast" {
		t.Errorf("asked for %q", got)
	}
}
