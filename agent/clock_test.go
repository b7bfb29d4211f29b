package agent

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"
)

// A guest's clock is set whenever it is wrong, and not because the guest was slow to answer.
func TestAGuestsClockIsSetWhenItDrifts(t *testing.T) {
	asked := time.Unix(1_000_000, 0)
	answered := asked.Add(5 * time.Second)
	for offset, want := range map[time.Duration]bool{0: false, 5 * time.Second: false, -900 * time.Millisecond: false, 5900 * time.Millisecond: false,
		-1100 * time.Millisecond: true, 6100 * time.Millisecond: true, 12 * time.Hour: true, -12 * time.Hour: true} {
		if got := clockIsOff(timestamppb.New(asked.Add(offset)), asked, answered); got != want {
			t.Errorf("%v after the question: %t", offset, got)
		}
	}
	if clockIsOff(nil, asked, answered) {
		t.Error("a guest that does not say its time")
	}
}
