package agent

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
)

// stubLimiter records the limits in force for the process of the only guest.
type stubLimiter struct{ o *outside }

func (l stubLimiter) Limit(pid int, limits *v1.GuestLimits) error {
	l.o.mu.Lock()
	defer l.o.mu.Unlock()
	if l.o.limitErr != nil {
		return l.o.limitErr
	}
	l.o.limits = append(l.o.limits, limits)
	return nil
}

func (l stubLimiter) Sweep() bool        { return false }
func (l stubLimiter) GiveWay(bool) error { return nil }

// limited waits until the last limits that were set are want.
func (o *outside) limited(want *v1.GuestLimits) {
	o.t.Helper()
	var last *v1.GuestLimits
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		o.mu.Lock()
		n := len(o.limits)
		if n > 0 {
			last = o.limits[n-1]
		}
		o.mu.Unlock()
		if n > 0 && proto.Equal(last, want) && (last == nil) == (want == nil) {
			return
		}
	}
	o.t.Fatalf("limits %v, want %v", last, want)
}

func (o *outside) limitsSet() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.limits)
}

func limitedWish(role v1.GuestRole, limits *v1.GuestLimits) *v1.GuestWanted {
	w := guestWish(uid, role, 1)
	w.Limits = limits
	return w
}

func newLimited(t *testing.T) (o *outside, stop func()) {
	o = newOutside(t)
	o.pids = func() []int { return []int{7} }
	o.limiter = stubLimiter{o}
	stop = o.start()
	o.take(guestWish(uid, run, 1))
	o.awaitReady(1)
	return o, stop
}

func TestLimitsFollowTheOrders(t *testing.T) {
	o, stop := newLimited(t)
	slow := &v1.GuestLimits{CpuWeight: 1, CpuPermille: 5}
	o.limited(nil) // an earlier agent may have left limits
	before := o.limitsSet()
	begun := time.Now()
	o.take(limitedWish(run, slow))
	o.limited(slow)
	took := time.Since(begun)
	t.Logf("after %v", took)
	if n := o.limitsSet(); n != before+1 && took < limitsCheckEvery/2 {
		t.Errorf("set %d times", n-before)
	}

	// Another limit comes into force during a migration.
	leaves := make(chan struct{})
	o.mu.Lock()
	o.migrate = func(context.Context, string) error {
		<-leaves
		return errors.New("it stays")
	}
	o.mu.Unlock()
	o.take(limitedWish(outgoing, slow))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_SENDING)
	stopped := &v1.GuestLimits{CpuWeight: 1, CpuPermille: 1}
	o.take(limitedWish(outgoing, stopped))
	o.limited(stopped)
	close(leaves)
	o.take(limitedWish(run, nil))
	o.limited(nil)

	// Without limits, orders cause no calls; a new agent removes limits once.
	before = o.limitsSet()
	o.take(guestWish(uid, run, 1))
	o.await("taken up", func(h *v1.HostObserved) bool { return h.Generation == generation })
	time.Sleep(20 * time.Millisecond)
	if n := o.limitsSet(); n != before {
		t.Errorf("set %d times without need", n-before)
	}
	stop()
	o.start()
	time.Sleep(20 * time.Millisecond)
	if n := o.limitsSet(); n != before {
		t.Error("changed something before there were orders")
	}
	o.take(limitedWish(run, nil))
	for deadline := time.Now().Add(5 * time.Second); o.limitsSet() == before && time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
	}
	if o.limitsSet() == before {
		t.Error("a new agent did not look at what is in force")
	}
}

func TestAGuestThatComesIsNotLimited(t *testing.T) {
	o := newOutside(t)
	o.pids = func() []int { return []int{7} }
	o.limiter = stubLimiter{o}
	o.start()
	o.take(limitedWish(incoming, &v1.GuestLimits{CpuPermille: 5}))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_RESERVED)
	if n := o.limitsSet(); n != 0 {
		t.Errorf("limited %d times: %v", n, o.limits)
	}
}

func TestLimitsThatFailAreReportedAndTriedAgain(t *testing.T) {
	o, _ := newLimited(t)
	const reason = "guests cannot be slowed down: no controller"
	o.mu.Lock()
	o.limitErr = errors.New(reason)
	o.mu.Unlock()
	slow := &v1.GuestLimits{CpuPermille: 5}
	o.take(limitedWish(run, slow))
	o.await("the problem", func(h *v1.HostObserved) bool { return slices.Contains(h.Problems, reason) })
	o.mu.Lock()
	o.limitErr = nil
	o.mu.Unlock()
	o.limited(slow)
	o.await("no problem", func(h *v1.HostObserved) bool {
		return !strings.Contains(strings.Join(h.Problems, " "), "slowed down")
	})
	if o.state(uid) != domain.Running {
		t.Error("the guest does not run")
	}
}

// failsOnce fails the first time that giving way is to end.
type failsOnce struct {
	stubLimiter
	asked []bool
}

func (f *failsOnce) Limit(int, *v1.GuestLimits) error { return nil }
func (f *failsOnce) GiveWay(giveWay bool) error {
	f.asked = append(f.asked, giveWay)
	if !giveWay && len(f.asked) == 2 {
		return errors.New("not now")
	}
	return nil
}

func TestTheEndOfGivingWayIsTriedAgain(t *testing.T) {
	limits := map[string]*v1.GuestLimits{"u": {CpuWeight: 1}}
	f := &failsOnce{}
	k := &limitKeeper{limiter: f, wanted: func() map[string]*v1.GuestLimits { return maps.Clone(limits) }, log: slog.Default(), free: map[string]bool{},
		processes: func(context.Context) (map[string][]int, error) { return map[string][]int{"u": {1}}, nil }}
	k.apply(t.Context())
	limits["u"] = nil
	for range 3 {
		k.apply(t.Context())
	}
	if !slices.Equal(f.asked, []bool{true, false, false}) {
		t.Errorf("asked %v", f.asked)
	}
}
