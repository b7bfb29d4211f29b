package api

import (
	"testing"

	v1 "watari/api/watariv1"
)

func TestCallersOfEqualIDsInTwoGuestsAreCountedApart(t *testing.T) {
	var c callers
	one, other := (&execution{uid: "g1", start: &v1.StartProcessRequest{Id: "x"}}).process(), (&execution{uid: "g2", start: &v1.StartProcessRequest{Id: "x"}}).process()
	c.begin(one)
	c.begin(other)
	if left := c.end(other); left != 0 || c.count(one) != 1 {
		t.Errorf("%d are left at one guest, %d at the other", c.count(one), left)
	}
}
