package core

// leases.go - the manager's side of leases. A copy of a guest with a lease runs only while the manager renews the lease: the
// host ends the copy before the lease ends, whatever happens. When the manager has not renewed a lease for its whole length,
// the copy is known to be gone (docs/design/leases.md).

import (
	"math"
	"time"

	v1 "watari/api/watariv1"
)

// LeaseSeen is what is known of the lease of a guest's granted copy.
type LeaseSeen struct {
	Host  string
	Epoch uint64
	// Unrenewed is the least time for which no manager has renewed the lease, by a monotonic clock.
	Unrenewed time.Duration
}

// Leases has the leases of the copies that hold grants. Times are those of a monotonic clock. It is not safe for concurrent
// use. A new manager has a new value, which counts each lease as renewed when it first sees the lease: the manager before
// may have renewed it until then, but not later.
type Leases struct {
	of       map[string]*lease // by guest uid
	revision int64             // of the newest objects seen
}

type lease struct {
	host    string
	epoch   uint64
	length  time.Duration
	renewed time.Duration
}

// See takes up the grants in the store, and reports whether there are new leases. It ignores objects that are older than
// others it has seen: an ended lease must not come back as a new one.
func (l *Leases) See(o *Objects, now time.Duration) (grown bool) {
	if o.Revision < l.revision {
		return false
	}
	l.revision = o.Revision
	if l.of == nil {
		l.of = map[string]*lease{}
	}
	leased := map[string]bool{}
	for _, g := range o.Guests {
		if g.LeaseMs == 0 || g.Host == "" {
			continue
		}
		leased[g.Meta.Uid] = true
		if known := l.of[g.Meta.Uid]; known == nil || known.host != g.Host || known.epoch != g.Epoch {
			l.of[g.Meta.Uid] = &lease{host: g.Host, epoch: g.Epoch, length: leaseLength(g), renewed: now}
			grown = true
		}
	}
	for uid := range l.of {
		if !leased[uid] {
			delete(l.of, uid)
		}
	}
	return grown
}

// Renew returns the leases on a host that the manager may renew now. A renewed lease counts from heard, when the manager got
// the host's time. An ended lease is not renewed, because the guest may soon run elsewhere.
func (l *Leases) Renew(host string, heard, now time.Duration) (list []*v1.LeasedGuest) {
	for _, uid := range sortedKeys(l.of) {
		if g := l.of[uid]; g.host == host && !g.over(now) {
			g.renewed = max(g.renewed, heard)
			list = append(list, &v1.LeasedGuest{Uid: uid, Epoch: g.epoch, LeaseMs: uint64(g.length.Milliseconds())})
		}
	}
	return list
}

// Seen returns what is known of the leases.
func (l *Leases) Seen(now time.Duration) map[string]LeaseSeen {
	seen := make(map[string]LeaseSeen, len(l.of))
	for uid, g := range l.of {
		seen[uid] = LeaseSeen{Host: g.host, Epoch: g.epoch, Unrenewed: now - g.renewed}
	}
	return seen
}

func (g *lease) over(now time.Duration) bool { return now-g.renewed > g.length }

// leaseLength returns the length of a guest's lease; 0: it has none.
func leaseLength(g *v1.Guest) time.Duration { return time.Duration(g.GetLeaseMs()) * time.Millisecond }

// leaseLeft returns how long the lease of a guest's granted copy still lasts, as far as the manager knows; below 0: the copy
// is known to be gone.
func (p *pass) leaseLeft(g *v1.Guest) time.Duration {
	length := leaseLength(g)
	if length == 0 || g.Host == "" {
		return math.MaxInt64
	}
	if seen, is := p.Leases[g.Meta.Uid]; is && seen.Host == g.Host && seen.Epoch == g.Epoch {
		return length - seen.Unrenewed
	}
	return length // the grant is new
}

// leaseOver reports whether the copy under a guest's grant is known to be gone because its lease has ended.
func (p *pass) leaseOver(g *v1.Guest) bool { return p.leaseLeft(g) < 0 }

// awaitLease has a guest decided about again at the present end of its lease.
func (p *pass) awaitLease(g *v1.Guest) {
	if g.LeaseMs == 0 || g.Host == "" {
		return
	}
	at := p.Now.Add(max(p.leaseLeft(g), 0) + time.Nanosecond) // the lease is over when leaseLeft is below 0
	p.wake(g.Meta.Name, at)
	p.again = earlier(p.again, at)
}
