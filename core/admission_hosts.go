package core

// admission_hosts.go - adding, draining and removing hosts.

import (
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
	"watari/migration"
)

// NewHost makes the object of a host that joins.
func NewHost(s *Objects, name, uid string) (*v1.Host, error) {
	if err := CheckName("host", name); err != nil {
		return nil, err
	}
	if s.Hosts[name] != nil {
		return nil, refuse(Exists, "there is a host %s; take another name, or, if that host has lost its state, remove it first", name)
	}
	return &v1.Host{Meta: &v1.Meta{Name: name, Uid: uid}}, nil
}

// DrainHost drains a host: it takes no guests, and its guests move away. With drain false, it ends the drain.
func (a *Admission) DrainHost(name string, drain bool) (change Change, err error) {
	h := a.Hosts[name]
	switch {
	case h == nil:
		return change, Missing("host", name, a.Hosts)
	case h.Meta.Deleting != nil:
		return change, precondition("host %s is being removed", name)
	case h.Draining == drain:
		return change, nil
	case h.Quarantine != nil:
		return change, precondition("host %s is quarantined; trust it again first, with `watari host quarantine %s --undo`", name, name)
	}
	h = proto.CloneOf(h)
	h.Draining = drain
	what := "to be drained"
	if !drain {
		what = "to take guests again"
	}
	change.write(Update, h)
	a.audited(&change, "host", name, "%s", what)
	return change, nil
}

// SpareHost keeps a host free for guests that are lost elsewhere, or ends that.
func (a *Admission) SpareHost(name string, spare bool) (change Change, err error) {
	h := a.Hosts[name]
	switch {
	case h == nil:
		return change, Missing("host", name, a.Hosts)
	case h.Meta.Deleting != nil:
		return change, precondition("host %s is being removed", name)
	case h.Spare == spare:
		return change, nil
	}
	h = proto.CloneOf(h)
	h.Spare = spare
	what := "is a spare: it takes only guests that are lost elsewhere"
	if !spare {
		what = "is no spare any more: it takes guests"
	}
	change.write(Update, h)
	a.audited(&change, "host", name, "%s", what)
	return change, nil
}

// TrustHost puts a host into a trust group. A host of the empty group trusts no other.
func (a *Admission) TrustHost(name, group string) (change Change, err error) {
	if group != "" {
		if err := CheckName("trust group", group); err != nil {
			return change, err
		}
	}
	h := a.Hosts[name]
	switch {
	case h == nil:
		return change, Missing("host", name, a.Hosts)
	case h.TrustGroup == group:
		return change, nil
	}
	h = proto.CloneOf(h)
	h.TrustGroup = group
	what := "is in trust group " + group
	if group == "" {
		what = "trusts no other host"
	}
	change.write(Update, h)
	a.audited(&change, "host", name, "%s from now on", what)
	return change, nil
}

// RemoveHost begins to remove a host. The host must have no guests, unless the caller vouches that it is lost: then its
// guests are started elsewhere.
func (a *Admission) RemoveHost(name string, lost bool) (change Change, err error) {
	h := a.Hosts[name]
	if h == nil {
		return change, Missing("host", name, a.Hosts)
	}
	// A host that is being removed may turn out to be lost while guests still depend on it.
	if h.Meta.Deleting != nil && (!lost || h.FencedBootId == h.GetInfo().GetBootId()) {
		return change, nil
	}
	_, _, connected := a.Reports.Observed(name)
	guests := HostGuests(a.Objects, name)
	if !lost {
		for _, stranger := range Strangers(a.Objects, a.Reports) {
			if stranger.Host == name {
				return change, precondition("host %s would end a guest that may be the only copy: %v", name, stranger)
			}
		}
	}
	switch {
	case lost && connected:
		return change, precondition("host %s is connected, so it is not lost; drain it and remove it without --lost", name)
	case !lost && len(guests) > 0:
		return change, precondition("host %s has guests: %s; drain it first, or, if it is off for good, say so with --lost", name, strings.Join(guests, ", "))
	}
	if kept := volumesOn(a.Objects, name); !lost && len(kept) > 0 {
		return change, precondition("host %s has volumes, which would be lost: %s; delete them first, or, if it is off for good, say so with --lost", name, strings.Join(kept, ", "))
	}
	h = proto.CloneOf(h)
	h.Draining, h.Meta.Deleting = true, timestamppb.New(a.Now)
	what := "removed"
	if lost {
		h.FencedBootId = h.GetInfo().GetBootId()
		what = "removed as lost; its guests are started elsewhere: " + listOr(guests, "none")
	}
	change.write(Update, h)
	change.Ops = append(change.Ops, remember(a.Objects, h, lost))
	a.audited(&change, "host", name, "%s", what)
	return change, nil
}

// remember returns the write that records a host's removal.
func remember(s *Objects, h *v1.Host, lost bool) Op {
	if r := s.Removed[h.Meta.Uid]; r != nil {
		r = proto.CloneOf(r)
		r.Lost = r.Lost || lost
		return Op{Update, r}
	}
	return Op{Create, &v1.RemovedHost{Meta: &v1.Meta{Name: h.Meta.Uid}, Host: h.Meta.Name, BootId: h.GetInfo().GetBootId(), Lost: lost}}
}

// HostGuests returns the names of the guests that have, or are about to have, their grant on a host.
func HostGuests(s *Objects, host string) []string {
	names := map[string]bool{}
	for name, g := range s.Guests {
		if g.Host == host {
			names[name] = true
		}
	}
	for _, m := range s.Migrations {
		if m.Target == host && !migration.Ended(m.State) {
			names[m.Guest] = true
		}
	}
	return sortedKeys(names)
}

// ForgetHost deletes a host that is being removed, unless guests depend on it. The caller repeats it until the host is gone.
func ForgetHost(s *Objects, name string) (change Change) {
	h := s.Hosts[name]
	if h != nil && h.Meta.Deleting != nil && len(HostGuests(s, name)) == 0 {
		change.write(Delete, proto.CloneOf(h))
	}
	return change
}
