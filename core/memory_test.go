package core

import (
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// outOfMemory is the report of a guest whose kernel ended processes, the last one a while ago.
func outOfMemory(kills uint64, ago time.Duration) *v1.OutOfMemory {
	return &v1.OutOfMemory{Kills: kills, Process: "lmp", Pid: 123, Bytes: 140 << 20, At: timestamppb.New(time.Now().Add(-ago))}
}

func TestNewsOfAGuestsMemory(t *testing.T) {
	now := time.Now()
	told := func(kills uint64, last, at time.Duration) memoryTold {
		return memoryTold{kills, now.Add(-last), now.Add(-at)}
	}
	for name, test := range map[string]struct {
		told memoryTold
		says *v1.OutOfMemory
		news bool
	}{
		"nothing":                      {memoryTold{}, nil, false},
		"the first":                    {memoryTold{}, outOfMemory(1, time.Second), true},
		"told before":                  {told(1, 2*time.Minute, 2*time.Minute), outOfMemory(1, 2*time.Minute), false},
		"another one":                  {told(1, 2*time.Minute, 2*time.Minute), outOfMemory(2, time.Second), true},
		"another one, too soon":        {told(1, 20*time.Second, 10*time.Second), outOfMemory(2, time.Second), false},
		"another life of the guest":    {told(1, time.Hour, time.Hour), outOfMemory(1, time.Second), true},
		"old, as a new manager learns": {memoryTold{}, outOfMemory(1, time.Hour), false},
		"moved, and not asked yet":     {told(1, time.Hour, time.Hour), nil, false},
	} {
		if news := memoryEventDue(test.told, test.says, now); news != test.news {
			t.Errorf("%s: news %v", name, news)
		}
	}
}
