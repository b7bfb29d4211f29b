package history

import (
	"math"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

var begin = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// at makes a history whose clock the test moves.
func at(now *time.Time) *History {
	h := New()
	h.Now = func() time.Time { return *now }
	return h
}

func everyGuest(*v1.GuestSample) bool { return true }

func sample(guests, owner float64) *v1.HostSample {
	return &v1.HostSample{Seconds: 1, CpuGuests: guests, CpuOwner: owner, MemoryAvailableBytes: 8 << 30}
}

// close reports whether two values are equal to the precision that is kept.
func close(a, b float64) bool { return math.Abs(a-b) <= 0.005*math.Abs(b) }

func TestAnHourFineAWeekCoarse(t *testing.T) {
	now := begin
	h := at(&now)
	// Two weeks, with a sample a minute, and the last two hours with a sample each second.
	for ; now.Before(begin.Add(14*24*time.Hour - 2*time.Hour)); now = now.Add(time.Minute) {
		h.Add("a1", sample(1, 0), everyGuest)
	}
	for ; now.Before(begin.Add(14 * 24 * time.Hour)); now = now.Add(time.Second) {
		h.Add("a1", sample(float64(now.Unix()%5), 0), everyGuest)
	}
	fine := h.Host("a1", now.Add(-time.Hour))
	if len(fine) != 720 || fine[0].Seconds != 5 || !close(fine[100].CpuGuests, 2) || !close(float64(fine[0].MemoryAvailableBytes), 8<<30) {
		t.Errorf("%d steps in an hour, the first %v", len(fine), fine[0])
	}
	if late := h.Host("a1", now.Add(-time.Hour-time.Second)); len(late) != 721 && len(late) != 720 || late[0].Seconds != 5 {
		t.Errorf("%d steps in an hour and a second, the first %v", len(late), late[0])
	}
	// Steps of the last hour are fine, whatever else is asked for.
	week := h.Host("a1", now.Add(-7*24*time.Hour))
	coarse := slices.IndexFunc(week, func(s *v1.HostSample) bool { return s.Seconds == 5 })
	if coarse < 7*24*6-6 || coarse > 7*24*6-5 || len(week)-coarse < 600 || len(week)-coarse > 720 || !close(week[0].CpuGuests, 1) || !close(week[coarse-1].CpuGuests, 2) {
		t.Errorf("%d coarse steps in a week, and %d fine ones; the first is %v", coarse, len(week)-coarse, week[0])
	}
	for i, s := range week[1:] {
		if end := week[i].At.AsTime().Add(time.Duration(week[i].Seconds) * time.Second); !end.Equal(s.At.AsTime()) {
			t.Errorf("a step ends at %v, and the next one begins at %v", end, s.At.AsTime())
		}
	}
	if older := h.Host("a1", begin); len(older) > 29*36+720 {
		t.Errorf("%d steps are kept, want a week's, a page and an hour's", len(older))
	}
	for i, r := range resolutions {
		if n := len(h.hosts["a1"].rings[i]); n > r.pages {
			t.Errorf("%d pages of %v, want at most %d", n, r.step, r.pages)
		}
	}
}

func TestAStepHasMeansAndTheShortestIdleTime(t *testing.T) {
	now := begin
	h := at(&now)
	for i, idle := range []*float64{proto.Float64(50), proto.Float64(2), nil, proto.Float64(4)} {
		s := sample(float64(i), 0)
		s.Owner = &v1.OwnerActivity{TerminalIdle: idle}
		s.CpuPressure = &v1.Pressure{Some: 0.5}
		h.Add("a1", s, everyGuest)
		now = now.Add(time.Second)
	}
	got := h.Host("a1", begin)
	if len(got) != 1 || !close(got[0].CpuGuests, 1.5) || !close(got[0].Owner.GetTerminalIdle(), 2) || got[0].Owner.InputIdle != nil ||
		!close(got[0].CpuPressure.GetSome(), 0.5) || got[0].IoPressure != nil {
		t.Errorf("%v", got)
	}
}

func TestGapsAndClocksThatJump(t *testing.T) {
	now := begin
	h := at(&now)
	h.Add("a1", sample(1, 0), everyGuest)
	now = begin.Add(time.Minute)
	h.Add("a1", sample(2, 0), everyGuest)
	if got := h.Host("a1", begin); len(got) != 2 || !got[0].At.AsTime().Equal(begin) || !got[1].At.AsTime().Equal(now) {
		t.Errorf("with a gap: %v", got)
	}
	now = begin.Add(1000 * time.Hour)
	h.Add("a1", sample(3, 0), everyGuest)
	now = begin.Add(2 * time.Minute) // the clock goes back
	h.Add("a1", sample(4, 0), everyGuest)
	if got := h.Host("a1", begin); len(got) != 1 || !close(got[0].CpuGuests, 4) {
		t.Errorf("after a clock that was wrong for a while: %v", got)
	}
	if got := h.Host("b1", begin); got != nil {
		t.Errorf("an unknown host: %v", got)
	}
}

func TestWhatAHostMakesUpIsNotKept(t *testing.T) {
	now := begin
	h := at(&now)
	s := sample(math.Inf(1), -3)
	s.CpuSystem, s.MemoryGuestsBytes = math.NaN(), math.MaxUint64
	s.Guests = []*v1.GuestSample{{Uid: "mine", Cpu: 1}, {Uid: "made-up", Cpu: 1}}
	h.Add("a1", s, func(g *v1.GuestSample) bool { return g.Uid == "mine" })
	got := h.Host("a1", begin)
	if len(got) != 1 || got[0].CpuGuests != 0 || got[0].CpuOwner != 0 || got[0].CpuSystem != 0 {
		t.Errorf("%v", got)
	}
	if len(h.guests) != 1 || len(h.Guest("mine", begin)) != 1 || len(h.Latest("a1").Guests) != 1 {
		t.Errorf("guests: %v", h.guests)
	}
}

func TestThePresentSampleGoesStale(t *testing.T) {
	now := begin
	h := at(&now)
	h.Add("a1", &v1.HostSample{CpuGuests: 1}, everyGuest) // a first sample has no time
	if h.Latest("a1") == nil || h.Host("a1", begin) != nil {
		t.Error("a first sample is present, and no part of the history")
	}
	now = now.Add(6 * time.Second)
	if got := h.Latest("a1"); got != nil {
		t.Errorf("after 6 s: %v", got)
	}
}

func TestTheFile(t *testing.T) {
	now := begin
	h := at(&now)
	path := filepath.Join(t.TempDir(), "history")
	if err := h.Load(path); err != nil {
		t.Fatalf("no file: %v", err)
	}
	h.Add("old", sample(1, 0), everyGuest)
	now = begin.Add(9 * 24 * time.Hour)
	s := sample(1.5, 0.25)
	s.Guests = []*v1.GuestSample{{Uid: "u", Cpu: 1, Sent: 1e9}}
	h.Add("a1", s, everyGuest)
	if err := h.Save(path, func(string) bool { return true }); err != nil {
		t.Fatal(err)
	}
	again := at(&now)
	if err := again.Load(path); err != nil {
		t.Fatal(err)
	}
	if got := again.Host("a1", now.Add(-time.Minute)); len(got) != 1 || !close(got[0].CpuOwner, 0.25) {
		t.Errorf("%v", got)
	}
	if got := again.Guest("u", now.Add(-time.Minute)); len(got) != 1 || !close(got[0].Sample.Sent, 1e9) || got[0].Seconds != 5 {
		t.Errorf("%v", got)
	}
	if len(again.hosts) != 1 {
		t.Errorf("a host of which nothing is left was kept: %v", again.hosts)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	data[len(data)/2] ^= 1
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := at(&now).Load(path); err == nil {
		t.Error("a damaged file was read")
	}
}

func TestAStepGoesOnAfterARestart(t *testing.T) {
	now := begin
	h := at(&now)
	for ; now.Before(begin.Add(300 * time.Second)); now = now.Add(time.Second) {
		h.Add("a1", sample(1, 0), everyGuest)
	}
	path := filepath.Join(t.TempDir(), "history")
	if err := h.Save(path, func(string) bool { return true }); err != nil {
		t.Fatal(err)
	}
	again := at(&now)
	if err := again.Load(path); err != nil {
		t.Fatal(err)
	}
	for ; now.Before(begin.Add(600 * time.Second)); now = now.Add(time.Second) {
		again.Add("a1", sample(3, 0), everyGuest)
	}
	now = begin.Add(2 * time.Hour)
	if got := again.Host("a1", begin.Add(-6*24*time.Hour)); len(got) != 1 || !close(got[0].CpuGuests, 2) {
		t.Errorf("half a step of 1 and half a step of 3: %v", got)
	}
}

func TestGuestsThatAreGoneAreForgotten(t *testing.T) {
	now := begin
	h := at(&now)
	s := sample(1, 0)
	s.Guests = []*v1.GuestSample{{Uid: "gone"}, {Uid: "idle"}, {Uid: "idle", Cpu: 7}}
	h.Add("a1", s, everyGuest)
	if got := h.Latest("a1").Guests; len(got) != 2 || got[1].Cpu != 0 {
		t.Errorf("a guest that the host lists twice: %v", got)
	}
	path := filepath.Join(t.TempDir(), "history")
	known := func(uid string) bool { return uid == "idle" }
	for _, want := range []int{2, 1} {
		if err := h.Save(path, known); err != nil {
			t.Fatal(err)
		}
		if len(h.guests) != want {
			t.Errorf("%d guests after %v, want %d", len(h.guests), now.Sub(begin), want)
		}
		now = now.Add(2 * time.Hour)
	}
}

func TestPrecision(t *testing.T) {
	for _, v := range []float64{0, 1e-6, 0.01, 0.333, 1, 127.9, 64 << 30, 1e30} {
		if got := toSmall(v).float(); !close(got, v) {
			t.Errorf("%v is kept as %v", v, got)
		}
	}
	if got := toSmall(math.NaN()).float(); !math.IsNaN(got) {
		t.Errorf("nothing is kept as %v", got)
	}
}

func TestAFileWithFewerFieldsIsRead(t *testing.T) {
	now := begin
	h := at(&now)
	s := sample(1, 0)
	s.Guests = []*v1.GuestSample{{Uid: "u", Cpu: 1, Sent: 1e9, CpuWait: 0.5, DirtyRate: 5e7}}
	h.Add("a1", s, everyGuest)
	path := filepath.Join(t.TempDir(), "history")
	whole := guestFields
	defer func() { guestFields = whole }()
	guestFields = whole[:4] // the fields before CpuWait existed
	h.guests["u"] = &series{}
	h.Add("a1", s, everyGuest)
	if err := h.Save(path, func(string) bool { return true }); err != nil {
		t.Fatal(err)
	}
	guestFields = whole
	again := at(&now)
	if err := again.Load(path); err != nil {
		t.Fatal(err)
	}
	if got := again.Guest("u", now.Add(-time.Minute)); len(got) != 1 || !close(got[0].Sample.Sent, 1e9) || got[0].Sample.CpuWait != 0 {
		t.Errorf("%v", got)
	}
	now = now.Add(time.Minute)
	again.Add("a1", s, everyGuest)
	if got := again.Guest("u", now.Add(-time.Second)); len(got) != 1 || !close(got[0].Sample.CpuWait, 0.5) || !close(got[0].Sample.DirtyRate, 5e7) {
		t.Errorf("%v", got)
	}
}
