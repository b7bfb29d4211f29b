package core

// admission.go - what every admission has in common: the caller, refusals, names.

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"strings"
	"time"

	v1 "watari/api/watariv1"
)

// Admission decides about users' requests. Each method returns the change that grants a request, or a Refusal. A change
// without operations means that nothing is to be done. A change depends on more objects than it writes, so the caller must
// write it before another admission decides.
type Admission struct {
	*Objects
	Caller Caller
	// Reports are what the hosts last reported.
	Reports Reports
	Now     time.Time
	// Began is when the manager began to lead.
	Began time.Time
	// Pool is the prefix from which clusters' prefixes are taken.
	Pool netip.Prefix
}

// Caller is the user who makes a request. The zero value owns nothing.
type Caller struct {
	Name, UID string
	Admin     bool
}

// Owns tells whether the caller may see and change an object. A new user of a removed user's name does not own the
// removed user's objects.
func (c Caller) Owns(meta *v1.Meta) bool {
	return c.Admin || c.Name != "" && meta.GetOwner() == c.Name && (meta.GetOwnerUid() == "" || meta.GetOwnerUid() == c.UID)
}

// RefusalKind is the kind of reason for which a request is refused.
type RefusalKind int

// The kinds of refusals.
const (
	// Invalid refuses a request that can never be granted as it is.
	Invalid RefusalKind = iota + 1
	// NotFound refuses a request about an object that does not exist, or that belongs to another user.
	NotFound
	// Exists refuses to create an object whose name is taken.
	Exists
	// Precondition refuses a request that the present state of an object does not permit.
	Precondition
	// Exhausted refuses a request for which a quota, the hosts or the addresses do not suffice.
	Exhausted
	// Unauthenticated refuses a caller who was removed.
	Unauthenticated
	// Denied refuses a request that other callers may make.
	Denied
	// Lost refuses a request that builds on files that are gone.
	Lost
)

// Refusal says why a request is refused.
type Refusal struct {
	Kind    RefusalKind
	Message string
}

func (r *Refusal) Error() string { return r.Message }

// KindOf returns the kind of a refusal; 0: the error is not a refusal.
func KindOf(err error) RefusalKind {
	var r *Refusal
	if !errors.As(err, &r) {
		return 0
	}
	return r.Kind
}

func refuse(kind RefusalKind, format string, a ...any) error {
	return &Refusal{kind, fmt.Sprintf(format, a...)}
}

func invalid(format string, a ...any) error { return refuse(Invalid, format, a...) }

func precondition(format string, a ...any) error { return refuse(Precondition, format, a...) }

// audited adds an event to a change that records what the caller asked for.
func (a *Admission) audited(c *Change, kind, name, format string, args ...any) {
	c.Events = append(c.Events, &v1.Event{Severity: v1.Severity_SEVERITY_INFO, Kind: kind, Name: name, Actor: a.Caller.Name,
		Message: fmt.Sprintf(format, args...)})
}

var nameRule = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)

// CheckName refuses names of new objects that do not follow the rule in types.proto.
func CheckName(kind, name string) error {
	if nameRule.MatchString(name) {
		return nil
	}
	if name == "" {
		return invalid("the %s has no name", kind)
	}
	return invalid("%q cannot be a %s's name: 1 to 40 of a-z, 0-9 and -, beginning with a letter and ending with a letter or digit", name, kind)
}

// Missing refuses a request about an object that does not exist. It names the objects that do.
func Missing[T any](kind, name string, there map[string]T) error {
	names := sortedKeys(there)
	if len(names) == 0 {
		return refuse(NotFound, "there is no %s %q; there is none at all", kind, name)
	}
	const shown = 20
	more := ""
	if len(names) > shown {
		names, more = names[:shown], ", ..."
	}
	return refuse(NotFound, "there is no %s %q; there are: %s%s", kind, name, strings.Join(names, ", "), more)
}

// UsableImages returns the images that the caller may see and use: the published ones and the caller's own.
func (c Caller) UsableImages(all map[string]*v1.Image) map[string]*v1.Image {
	usable := map[string]*v1.Image{}
	for name, image := range all {
		if !image.Private || c.Owns(image.Meta) {
			usable[name] = image
		}
	}
	return usable
}

// Own returns the objects that the caller may see.
func Own[T Object](c Caller, all map[string]T) map[string]T {
	if c.Admin {
		return all
	}
	mine := map[string]T{}
	for name, o := range all {
		if c.Owns(o.GetMeta()) {
			mine[name] = o
		}
	}
	return mine
}

// Find returns an object that the caller may see. It reports another user's object as missing.
func Find[T Object](c Caller, kind, name string, all map[string]T) (T, error) {
	o, found := all[name]
	if !found || !c.Owns(o.GetMeta()) {
		return o, Missing(kind, name, Own(c, all))
	}
	return o, nil
}

// sites returns the sites of the hosts.
func sites(s *Objects) map[string]bool {
	found := map[string]bool{}
	for _, h := range s.Hosts {
		if site := h.GetInfo().GetSite(); site != "" {
			found[site] = true
		}
	}
	return found
}

// beingDeleted refuses requests about a cluster that is gone or that is being deleted.
func beingDeleted(s *Objects, cluster string) error {
	if c := s.Clusters[cluster]; c == nil || c.Meta.Deleting != nil {
		return precondition("cluster %s is being deleted", cluster)
	}
	return nil
}

// beingRemoved refuses requests about a guest that is being removed, alone or with its cluster.
func beingRemoved(s *Objects, g *v1.Guest) error {
	if removing(g) {
		return precondition("guest %s is being removed from cluster %s", g.Meta.Name, g.Cluster)
	}
	return beingDeleted(s, g.Cluster)
}

func listOr(list []string, empty string) string {
	if len(list) == 0 {
		return empty
	}
	return strings.Join(list, " ")
}
