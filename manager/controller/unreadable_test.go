package controller

import (
	"errors"
	"testing"

	"watari/manager/store"
)

// A controller decides nothing on a snapshot that lacks an object that cannot be read.
func TestNothingIsDecidedWhileAnObjectCannotBeRead(t *testing.T) {
	c := &Controller{}
	again, err := c.decide(t.Context(), &store.Snapshot{Unreadable: map[string]error{"/watari/guests/md-0": errors.New("damaged")}})
	var unreadable *store.UnreadableError
	if !again.IsZero() || !errors.As(err, &unreadable) {
		t.Errorf("%v, %v", again, err)
	}
}
