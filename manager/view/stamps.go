package view

// stamps.go - verifies the stamps that hosts show, and explains a hold to people.

import (
	"crypto/x509"
	"fmt"
	"maps"
	"slices"
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/internal/stamp"
	"watari/manager/store"
)

// Stamps verifies the stamps that hosts show. It caches the last verdict on each host, because a host shows the same
// stamp in many reports.
type Stamps struct {
	authority *x509.Certificate

	mu       sync.Mutex
	verdicts map[string]verdict
	genuine  map[*v1.Term]bool // snapshots share terms
}

type verdict struct {
	stamp *v1.Stamp
	err   error
}

// NewStamps makes a Stamps that verifies with the authority's certificate.
func NewStamps(authority *x509.Certificate) *Stamps {
	return &Stamps{authority: authority, verdicts: map[string]verdict{}, genuine: map[*v1.Term]bool{}}
}

// Shown returns the genuine stamps that connected hosts show, in the order of hosts, and a problem for each host that
// shows a false one. A nil *Stamps returns none.
func (v *Stamps) Shown(s *store.Snapshot, r core.Reports) (shown []core.Shown, problems []string) {
	if v == nil {
		return nil, nil
	}
	for _, host := range slices.Sorted(maps.Keys(s.Hosts)) {
		report, _, connected := r.Observed(host)
		if !connected || report.GetStamp() == nil {
			continue
		}
		if err := v.verify(host, report.Stamp); err != nil {
			problems = append(problems, fmt.Sprintf("host %s shows a stamp that is not genuine: %v; its agent's state was damaged or forged", host, err))
			continue
		}
		shown = append(shown, core.Shown{Host: host, Stamp: report.Stamp})
	}
	return shown, problems
}

func (v *Stamps) verify(host string, shown *v1.Stamp) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if last, known := v.verdicts[host]; known && proto.Equal(last.stamp, shown) {
		return last.err
	}
	err := stamp.Verify(v.authority, shown)
	v.verdicts[host] = verdict{shown, err}
	return err
}

// Terms returns the terms of a snapshot whose records are genuine. It includes terms without a signature: they began,
// but have given no orders.
func (v *Stamps) Terms(s *store.Snapshot) []*v1.Term {
	v.mu.Lock()
	defer v.mu.Unlock()
	var terms []*v1.Term
	for _, t := range s.Terms {
		genuine, known := v.genuine[t]
		if !known {
			genuine = len(t.Signature) == 0 || stamp.VerifyTerm(v.authority, t) == nil
			v.genuine[t] = genuine
		}
		if genuine {
			terms = append(terms, t)
		}
	}
	return terms
}

// HeldBecause returns the reasons why the manager holds, a sentence each, and the next step; nil: it does not hold.
func HeldBecause(s *store.Snapshot) (evidence []string) {
	terms := slices.Collect(maps.Values(s.Terms))
	for _, e := range s.Hold().GetEvidence() {
		found := core.RolledBack(terms, core.Shown{Host: e.GetHost(), Stamp: e.GetStamp()})
		if len(found) > 0 {
			evidence = append(evidence, found[0].String())
			continue
		}
		evidence = append(evidence, core.Evidence{Shown: core.Shown{Host: e.GetHost(), Stamp: e.GetStamp()}, Reason: "contradicted that"}.String())
	}
	return evidence
}

// HoldNext tells a person what to do about a manager that holds.
const HoldNext = "the manager's state was put back from an older copy, so nothing is started, ended or moved; guests run on as they are; " +
	"put the newer state back if you have it, else see what `watari recover` says"
