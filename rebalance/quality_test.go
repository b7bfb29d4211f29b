package rebalance_test

import (
	"testing"

	"watari/rebalance"
	"watari/rebalance/exact"
)

func TestPlansAreCloseToTheOptimum(t *testing.T) {
	for _, c := range []struct {
		name   string
		policy func() rebalance.Policy
	}{{"balance", exact.Balance}, {"pack", exact.Pack}} {
		q, err := exact.Compare(400, c.policy)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		t.Logf("%s: %+v", c.name, q)
		if q.Within < 0.95 || q.Cost > q.FirstFit || q.Cost > q.FewestGuests {
			t.Errorf("%s: %+v; wanted are 95 %% of the problems within 5 %% of the optimum, and a cost below the plain ways", c.name, q)
		}
	}
}
