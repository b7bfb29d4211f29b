package core

// budgets.go - counts what policies' moves have used of their hourly bounds: moves, and bytes between sites.

import (
	"cmp"
	"fmt"
	"time"

	"github.com/dustin/go-humanize"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/migration"
	"watari/placement"
	"watari/policy"
)

// lately is what policies' moves have used within the last hour, with the moves of this decision.
type lately struct {
	begun map[string]int  // moves, by policy
	sent  map[link]uint64 // bytes; of a move that has not ended, all bytes that it will probably send
}

// link is two sites, and a policy that moves guests between them.
type link struct{ policy, a, b string } // a <= b

func linkOf(policy, from, to string) link { return link{policy, min(from, to), max(from, to)} }

// usedLately counts the stored moves. ended returns a guest's ended moves.
func usedLately(o *Objects, r Reports, u *Usage, ended func(uid string) []*v1.Migration, now time.Time) *lately {
	l := &lately{map[string]int{}, map[link]uint64{}}
	within := func(at *timestamppb.Timestamp) bool {
		age := now.Sub(at.AsTime()) // negative: the clock was set back
		return age >= 0 && age < time.Hour
	}
	for _, m := range o.Migrations {
		if m.Policy == "" {
			continue
		}
		if within(m.Meta.Created) {
			l.begun[m.Policy]++
		}
		source, target := o.Hosts[m.Source], o.Hosts[m.Target]
		if source == nil || target == nil {
			continue // nobody knows its sites any more
		}
		sent := m.Progress.GetTransferredBytes()
		switch {
		case !migration.Ended(m.State):
			sent = max(sent, sentSoFar(r, m), bytesOfMove(o.Guests[m.Guest], ended(m.GuestUid), u))
		case !within(m.Ended):
			continue
		}
		l.sent[linkOf(m.Policy, siteOf(source), siteOf(target))] += sent
	}
	return l
}

func siteOf(h *v1.Host) string { return h.GetInfo().GetSite() }

// sentSoFar returns the bytes that a move has sent, as its source reports them.
func sentSoFar(r Reports, m *v1.Migration) uint64 {
	report, _, _ := r.Observed(m.Source)
	if g := GuestOn(report, m.GuestUid); g.GetMigrationId() == m.Meta.Uid {
		return g.GetProgress().GetTransferredBytes()
	}
	return 0
}

// lastMove returns the last of a guest's ended moves that reached its target and tells what it has sent; nil: there is none.
func lastMove(ended []*v1.Migration) (last *v1.Migration) {
	for _, m := range ended {
		if m.State == v1.MigrationState_MIGRATION_STATE_DONE && m.TotalMs > 0 && m.Progress.GetTransferredBytes() > 0 && !m.Ended.AsTime().Before(last.GetEnded().AsTime()) {
			last = m
		}
	}
	return last
}

// passes returns how often a move sends a guest's memory, on average, if the guest changes memory at one rate and the move sends
// it at the other. Each pass over memory sends what the guest has changed during the pass before: a geometric series.
func passes(dirty, rate float64) float64 { return 1 / (1 - min(dirty/rate, mostDirty)) }

// bytesOfMove estimates how many bytes a guest's move sends: as many as its last move has sent or, without one, its memory and
// what it changes meanwhile.
func bytesOfMove(g *v1.Guest, ended []*v1.Migration, u *Usage) uint64 {
	if last := lastMove(ended); last != nil {
		return last.Progress.TransferredBytes
	}
	var used GuestUsage
	if u != nil {
		used = u.Guests[g.GetMeta().GetUid()]
	}
	return uint64(float64(cmp.Or(used.MemoryBytes, g.GetShape().GetMemoryBytes())) * passes(used.DirtyRate, usualRate))
}

// spent says that a policy has begun as many moves as it may; empty: it has not.
func (l *lately) spent(name string, bounds *policy.Bounds) string {
	if bounds.MovesPerHour == 0 || l.begun[name] < bounds.MovesPerHour {
		return ""
	}
	return fmt.Sprintf("%s has begun %d moves within the last hour, as many as it may", name, l.begun[name])
}

// exceeds says why a policy's moves must not send so many more bytes between two sites; empty: they may.
func (l *lately) exceeds(name string, bounds *policy.Bounds, from, to string, bytes uint64) string {
	if bounds == nil || bounds.PerLink == 0 || from == to {
		return ""
	}
	on := linkOf(name, from, to)
	if l.sent[on]+bytes <= bounds.PerLink {
		return ""
	}
	return fmt.Sprintf("the moves of policy %s have sent %s between %s and %s within the last hour, and may send %s; the guest's move would send about %s",
		name, humanize.Bytes(l.sent[on]), on.a, on.b, humanize.Bytes(bounds.PerLink), humanize.Bytes(bytes))
}

// begin counts a move that begins now.
func (l *lately) begin(name, from, to string, bytes uint64) {
	l.begun[name]++
	l.sent[linkOf(name, from, to)] += bytes
}

// usedLately returns what policies' moves have used within the last hour, with those of this decision.
func (p *pass) usedLately() *lately {
	if p.lately == nil {
		p.lately = usedLately(p.Objects, p, p.Usage, func(uid string) []*v1.Migration { return p.index.ended[uid] }, p.Now)
	}
	return p.lately
}

// begins counts a move to a host that a policy begins now.
func (l *look) begins(g *v1.Guest, name, target string) {
	l.lately.begin(name, siteOf(l.Hosts[g.Host]), siteOf(l.Hosts[target]), l.bytes(g))
}

// bytes estimates how many bytes a guest's move sends.
func (l *look) bytes(g *v1.Guest) uint64 { return bytesOfMove(g, l.ended(g.Meta.Uid), l.usage) }

// toSite returns a function that says why a policy must not move a guest to a site now, because of the bytes that its moves
// have sent there. nil: it may move the guest to each site.
func (l *look) toSite(g *v1.Guest, name string) func(site string) string {
	bounds, _ := l.policy.BoundsOf(name)
	if bounds == nil || bounds.PerLink == 0 {
		return nil
	}
	from, bytes := siteOf(l.Hosts[g.Host]), l.bytes(g)
	answers := map[string]string{} // a site has many hosts
	return func(site string) string {
		answer, known := answers[site]
		if !known {
			answer = l.lately.exceeds(name, bounds, from, site, bytes)
			answers[site] = answer
		}
		return answer
	}
}

// bySite makes a request refuse hosts of sites to which the guest must not move. why is as toSite returns it.
func bySite(r *placement.Request, why func(site string) string) {
	if why == nil {
		return
	}
	compatible := r.Compatible
	r.Compatible = func(h *v1.HostInfo) string {
		if answer := why(h.GetSite()); answer != "" {
			return answer
		}
		return compatible(h)
	}
}
