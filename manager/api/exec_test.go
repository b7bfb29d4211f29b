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

// Each command in a guest holds input of its caller in the manager's memory.
func TestAUserHasSoManyCommandsInGuestsAtOnce(t *testing.T) {
	var c callers
	for range mostExecs {
		if !c.enter("ann", false) {
			t.Fatal("refused")
		}
	}
	if c.enter("ann", false) {
		t.Error("one more is taken")
	}
	if !c.enter("bob", false) {
		t.Error("another user is refused")
	}
	for range mostExecs { // all connections broke, and the manager counts the earlier ones still
		if !c.enter("ann", true) {
			t.Fatal("a command that goes on is refused")
		}
	}
	if c.enter("ann", true) {
		t.Error("there is no bound")
	}
	for range 2 * mostExecs {
		c.leave("ann")
	}
	if c.leave("bob"); len(c.users.of) != 0 || !c.enter("ann", false) {
		t.Errorf("left: %v", c.users.of)
	}
}
