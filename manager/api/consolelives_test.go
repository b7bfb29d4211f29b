package api

import (
	"testing"

	v1 "watari/api/watariv1"
)

func TestConsolesAreNumberedByLife(t *testing.T) {
	part := func(host string, epoch uint64, source, target string) *v1.KeptConsole {
		return &v1.KeptConsole{Host: host, Epoch: epoch, Source: source, Target: target}
	}
	// The guest started on a1, moved to b1 and ended there; started on a1 and ended; started on b1 and moved to a1.
	all := func() []*v1.KeptConsole {
		return []*v1.KeptConsole{part("b1", 4, "", "a1"), part("a1", 1, "", "b1"), part("a1", 3, "", ""), part("b1", 2, "a1", "")}
	}
	for name, c := range map[string]struct {
		guest *v1.Guest
		kept  []*v1.KeptConsole
		want  []uint32
	}{
		"the last was moved and runs": {&v1.Guest{Host: "a1", StartedEpoch: 4, Epoch: 5}, all(), []uint32{2, 2, 1, 0}},
		"the last ended elsewhere":    {&v1.Guest{StartedEpoch: 4, Epoch: 5}, all(), []uint32{3, 3, 2, 1}},
		"another was started since":   {&v1.Guest{Host: "a1", StartedEpoch: 6, Epoch: 6}, all(), []uint32{3, 3, 2, 1}},
		// a1 does not list its part of the first life.
		"a host is missing":   {&v1.Guest{Host: "a1", StartedEpoch: 6}, []*v1.KeptConsole{part("b1", 2, "a1", ""), part("b1", 4, "", "a1")}, []uint32{2, 1}},
		"nothing is kept yet": {&v1.Guest{Host: "a1", StartedEpoch: 1}, nil, nil},
	} {
		numberLives(c.guest, c.kept)
		for i, k := range c.kept {
			if k.Life != c.want[i] {
				t.Errorf("%s: epoch %d is of life %d, not %d", name, k.Epoch, k.Life, c.want[i])
			}
		}
	}
}
