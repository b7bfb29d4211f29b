package core

// quarantine.go - hosts that are not trusted any more. Such a host is drained, and then cut off: the manager and other hosts refuse
// it, as if it were out of reach.

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// cutOff returns when a host was cut off; nil: it is not.
func cutOff(h *v1.Host) *timestamppb.Timestamp { return h.GetQuarantine().GetCutOff() }

// QuarantineHost drains a host, and cuts it off when its guests have left, or after grace. A later call can shorten that
// time. With undo, the host is trusted again; it stays drained.
func (a *Admission) QuarantineHost(name string, grace time.Duration, undo bool) (change Change, err error) {
	h := a.Hosts[name]
	switch {
	case h == nil:
		return change, Missing("host", name, a.Hosts)
	case h.Meta.Deleting != nil:
		return change, precondition("host %s is being removed", name)
	case grace < 0:
		return change, invalid("the grace period %s for host %s is negative", grace, name)
	case undo && h.Quarantine == nil, cutOff(h) != nil && !undo:
		return change, nil
	}
	h = proto.CloneOf(h)
	until := a.Now.Add(grace)
	switch {
	case undo: // the guests' certificates stay revoked
		h.Quarantine = nil
		a.audited(&change, "host", name, "is trusted again; it stays drained")
	case h.Quarantine != nil && !until.Before(h.Quarantine.Until.AsTime()):
		return change, nil
	default:
		if h.Quarantine == nil {
			h.Draining, h.Quarantine = true, &v1.Quarantine{Since: timestamppb.New(a.Now)}
		}
		h.Quarantine.Until = timestamppb.New(until)
		if grace == 0 {
			h.Quarantine.CutOff = h.Quarantine.Until
			change.Ops = append(change.Ops, revokeGuests(a.Objects, a.Now))
			a.audited(&change, "host", name, "quarantined, and cut off; guests on it: %s", listOr(HostGuests(a.Objects, name), "none"))
		} else {
			a.audited(&change, "host", name, "quarantined; it is cut off when its guests have left, or after %s", grace)
		}
	}
	change.write(Update, h)
	return change, nil
}

// cutOffQuarantined cuts off quarantined hosts whose guests have left, or whose grace has passed.
func (p *pass) cutOffQuarantined() {
	var quarantined []string
	for name, h := range p.Hosts {
		if h.Quarantine != nil && h.Quarantine.CutOff == nil {
			quarantined = append(quarantined, name)
		}
	}
	slices.Sort(quarantined)
	for _, name := range quarantined {
		h := p.Hosts[name]
		if p.changed(h) || p.full() || p.changed(p.Revocations[revocationsName]) {
			continue
		}
		guests := HostGuests(p.Objects, name)
		if until := h.Quarantine.Until.AsTime(); len(guests) > 0 && p.Now.Before(until) {
			p.again = earlier(p.again, until)
			continue
		}
		h = proto.CloneOf(h)
		h.Quarantine.CutOff = timestamppb.New(p.Now)
		var c Change
		c.write(Update, h)
		c.Ops = append(c.Ops, revokeGuests(p.Objects, p.Now))
		c.event(v1.Severity_SEVERITY_WARNING, "host", name, "was cut off, because it is quarantined; guests on it: %s", listOr(guests, "none"))
		p.propose("host/"+name, c)
	}
}

// revocationsName is the name of the only Revocations.
const revocationsName = "all"

// revokeGuests returns the write that revokes the certificates of all guests. All guests get new ones, and a guest that has one
// accepts no earlier one.
func revokeGuests(o *Objects, now time.Time) Op {
	if r := o.Revocations[revocationsName]; r != nil {
		r = proto.CloneOf(r)
		r.Guests = NextGeneration(r.Guests, now)
		return Op{Update, r}
	}
	return Op{Create, &v1.Revocations{Meta: &v1.Meta{Name: revocationsName}, Guests: NextGeneration(uint32(0), now)}}
}

// NextGeneration returns the generation of certificates after a revocation, or of a volume: seconds since 1970, so that
// it is also above the generations that the state forgets when an older copy of it is put back.
func NextGeneration[T uint32 | uint64](generation T, now time.Time) T {
	return max(generation+1, T(now.Unix()))
}

// expelled returns the WireGuard keys of the hosts that were cut off, sorted.
func (p *pass) expelled() []string {
	if p.out == nil {
		var keys []string
		for _, h := range p.Hosts {
			if key := h.Info.GetWireguardPublicKey(); cutOff(h) != nil && key != "" {
				keys = append(keys, key)
			}
		}
		slices.Sort(keys)
		p.out = &keys
	}
	return *p.out
}

// revoked returns the hosts of which certificates were revoked, by uid. There are few: a host's generation is 0 until then.
func (p *pass) revoked() []*v1.RevokedHost {
	if p.void == nil {
		var list []*v1.RevokedHost
		for _, h := range p.Hosts {
			if h.Generation > 0 {
				list = append(list, &v1.RevokedHost{Uid: h.Meta.Uid, Generation: h.Generation})
			}
		}
		slices.SortFunc(list, func(a, b *v1.RevokedHost) int { return cmp.Compare(a.Uid, b.Uid) })
		p.void = &list
	}
	return *p.void
}
