package core

// admission_policies.go - decides about requests that concern policies.

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"unicode/utf8"

	v1 "watari/api/watariv1"
	"watari/internal/printable"
	"watari/policy"
)

const (
	// keepPolicies is the number of versions that are kept.
	keepPolicies = 100
	// maxNote bounds an administrator's note, in bytes.
	maxNote = 200
)

// NewPolicy returns a version of the policy.
func NewPolicy(version uint64, text, note, owner string) *v1.Policy {
	return &v1.Policy{Meta: &v1.Meta{Name: fmt.Sprintf("v%d", version), Owner: owner}, Version: version, Text: text, Note: note}
}

// Policies returns the kept versions, newest first.
func Policies(s *Objects) []*v1.Policy {
	return slices.SortedFunc(maps.Values(s.Policies), func(a, b *v1.Policy) int { return cmp.Compare(b.Version, a.Version) })
}

// PolicyVersion returns a kept version.
func PolicyVersion(s *Objects, version uint64) (*v1.Policy, error) {
	for _, stored := range s.Policies {
		if stored.Version == version {
			return stored, nil
		}
	}
	return nil, refuse(NotFound, "there is no policy version %d; `watari policy history` lists those that are kept", version)
}

// ApplyPolicy puts a text in force, as a new version. The change has no operations if the text is in force already.
func (a *Admission) ApplyPolicy(r *v1.ApplyPolicyRequest) (change Change, err error) {
	text, err := a.policyText(r)
	if err != nil {
		return change, err
	}
	if !utf8.ValidString(text) {
		return change, invalid("the policy is not UTF-8 text")
	}
	if _, err := policy.Parse(text); err != nil {
		return change, invalid("%v", err)
	}
	if len(r.Note) > maxNote || printable.Line(r.Note, maxNote) != r.Note {
		return change, invalid("the note must be one line of printable text, at most %d bytes", maxNote)
	}
	latest := InForce(a.Objects)
	if r.ExpectVersion != 0 && r.ExpectVersion != latest.GetVersion() {
		return change, precondition("policy version %d is in force, not %d: somebody else has changed it; look at it with `watari policy show`", latest.GetVersion(), r.ExpectVersion)
	}
	if latest != nil && latest.Text == text {
		return change, nil
	}
	next := NewPolicy(latest.GetVersion()+1, text, r.Note, a.Caller.Name)
	next.Meta.OwnerUid = a.Caller.UID
	change.write(Create, next)
	if kept := Policies(a.Objects); len(kept) >= keepPolicies {
		for _, old := range kept[keepPolicies-1:] {
			change.write(Delete, old)
		}
	}
	what := ""
	if r.Note != "" {
		what = ": " + r.Note
	}
	a.audited(&change, "policy", next.Meta.Name, "is in force%s", what)
	return change, nil
}

// policyText returns the text that a request names.
func (a *Admission) policyText(r *v1.ApplyPolicyRequest) (string, error) {
	given := 0
	for _, is := range []bool{r.Text != "", r.UseDefault, r.Version != 0} {
		if is {
			given++
		}
	}
	if given != 1 {
		return "", invalid("a policy is a text, the default, or an earlier version: name one of them")
	}
	switch {
	case r.UseDefault:
		return policy.Default, nil
	case r.Version != 0:
		stored, err := PolicyVersion(a.Objects, r.Version)
		return stored.GetText(), err
	}
	return r.Text, nil
}
