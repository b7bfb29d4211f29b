package agent

import (
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"

	"watari/agent/domain"
	"watari/agent/watchdog"
	v1 "watari/api/watariv1"
)

// stubWatchdog records what it is told, and ends no guest.
type stubWatchdog struct {
	mu     sync.Mutex
	guests map[string]time.Duration
	err    error
	mute   int // how often Kept gets no answer
}

func (w *stubWatchdog) Keep(guests map[string]time.Duration) (map[string]string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return nil, w.err
	}
	w.guests = maps.Clone(guests)
	return nil, nil
}

func (w *stubWatchdog) Kept() (map[string]time.Duration, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.mute > 0 {
		w.mute--
		return nil, errors.New("it does not answer")
	}
	return maps.Clone(w.guests), nil
}

// known is Kept without its error.
func (w *stubWatchdog) known() map[string]time.Duration {
	known, _ := w.Kept()
	return known
}

func (w *stubWatchdog) fails(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.err = err
}

func newLeased(t *testing.T) (*outside, *stubWatchdog) {
	o, w := newOutside(t), &stubWatchdog{}
	o.bootID, o.watchdog = "this boot", w
	return o, w
}

func leasedWish(role v1.GuestRole, epoch uint64) *v1.GuestWanted {
	w := guestWish(uid, role, epoch)
	w.LeaseMs = 5000
	return w
}

// renew renews the lease of an epoch, from a time of this boot or of another one.
func (o *outside) renew(epoch uint64, boot string, heard time.Duration) *v1.RenewLeasesResponse {
	o.t.Helper()
	r, err := service{o.agent}.RenewLeases(o.t.Context(), connect.NewRequest(&v1.RenewLeasesRequest{BootId: boot, HeardNs: uint64(heard),
		Guests: []*v1.LeasedGuest{{Uid: uid, Epoch: epoch, LeaseMs: 5000}}}))
	if err != nil {
		o.t.Fatal(err)
	}
	return r.Msg
}

func TestAGuestRunsOnlyWithItsLease(t *testing.T) {
	o, w := newLeased(t)
	o.start()
	o.take(leasedWish(run, 3))
	told := o.renew(2, "this boot", watchdog.Clock()) // another epoch
	if told.BootId != "this boot" || told.NowNs == 0 {
		t.Errorf("the host tells %v", told)
	}
	o.renew(3, "another boot", time.Duration(told.NowNs))
	o.renew(3, "this boot", watchdog.Clock()+time.Hour) // as if from another boot
	time.Sleep(300 * time.Millisecond)
	if o.state(uid) != domain.Absent {
		t.Fatal("it runs without a lease")
	}
	o.renew(3, "this boot", time.Duration(told.NowNs))
	o.awaitReady(3)
	if until := w.known()[uid]; until != time.Duration(told.NowNs)+4500*time.Millisecond {
		t.Errorf("the watchdog lets it run until %v, the host's time was %v", until, time.Duration(told.NowNs))
	}
	told = o.renew(3, "this boot", watchdog.Clock())
	for range 10 { // the lease is renewed, and the guest runs on
		time.Sleep(600 * time.Millisecond)
		told = o.renew(3, "this boot", time.Duration(told.NowNs))
	}
	if o.state(uid) != domain.Running {
		t.Fatal("it has ended though its lease was renewed")
	}
	gone := o.awaitCondition(uid, 3, v1.GuestCondition_GUEST_CONDITION_GONE)
	if !strings.Contains(gone.Message, "lease") || o.state(uid) != domain.Absent {
		t.Errorf("it is %s, %q", o.state(uid), gone.Message)
	}
	o.await("the watchdog forgets it", func(*v1.HostObserved) bool { return len(w.known()) == 0 })
}

func TestNoGuestStartsThatNothingWouldEnd(t *testing.T) {
	o, w := newLeased(t)
	w.fails(errors.New("no more processes"))
	o.start()
	o.take(leasedWish(run, 1))
	o.renew(1, "this boot", watchdog.Clock())
	failed := o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_FAILED)
	if !strings.Contains(failed.Message, "no more processes") || o.count("boot") > 0 {
		t.Errorf("it failed with %q, and %v was done", failed.Message, o.log)
	}
	o.await("the problem is reported", func(h *v1.HostObserved) bool {
		return strings.Contains(strings.Join(h.Problems, "\n"), "guests with leases may not be started")
	})
}

// The next agent reads the leases from the watchdog, which may answer late. Without a watchdog, the guests with leases have ended, or end
// now.
func TestTheNextAgentKnowsTheLeases(t *testing.T) {
	for _, watched := range []bool{true, false} {
		o, w := newLeased(t)
		stop := o.start()
		o.take(leasedWish(run, 1))
		o.renew(1, "this boot", watchdog.Clock())
		o.awaitReady(1)
		stop()
		begun := time.Now()
		if !watched {
			o.watchdog = &stubWatchdog{}
		}
		w.mute = 1
		o.start()
		o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
		if lived := time.Since(begun); watched != (lived > 2*time.Second) {
			t.Errorf("watched: %v, it lived for %v under the next agent; the watchdog knows %v", watched, lived, w.known())
		}
	}
}
