package agent

import (
	"math"
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

func TestWhichPartOfTheTimeAGuestComputes(t *testing.T) {
	start := time.Now()
	at := func(s int) time.Time { return start.Add(time.Duration(s) * time.Second) }
	type message struct{ second, computing, kernel, idle, stolen int }
	for name, c := range map[string]struct {
		messages []message
		now      int
		want     float64
	}{
		"one message":              {[]message{{0, 100, 50, 50, 0}}, 0, 0},
		"half of the time":         {[]message{{0, 100, 50, 50, 0}, {15, 850, 425, 425, 0}}, 15, 0.5},
		"the last half minute":     {[]message{{0, 0, 0, 0, 0}, {15, 1500, 0, 0, 0}, {30, 1500, 0, 1500, 0}, {45, 1500, 0, 3000, 0}, {60, 1500, 0, 4500, 0}}, 60, leastComputing},
		"over half a minute":       {[]message{{0, 0, 0, 0, 0}, {15, 1500, 0, 0, 0}, {30, 1500, 0, 1500, 0}, {45, 3000, 0, 1500, 0}}, 45, 0.5},
		"a checkpoint":             {[]message{{0, 900, 0, 0, 0}, {15, 100, 100, 0, 0}}, 15, 0},
		"after a checkpoint":       {[]message{{0, 900, 0, 0, 0}, {15, 100, 100, 0, 0}, {30, 400, 200, 0, 0}}, 30, 0.75},
		"no time has passed":       {[]message{{0, 100, 100, 0, 0}, {15, 100, 100, 0, 0}}, 15, 0},
		"an old message":           {[]message{{0, 0, 0, 0, 0}, {15, 100, 100, 0, 0}}, 46, 0},
		"three of four share it":   {[]message{{0, 0, 0, 0, 0}, {15, 250, 125, 0, 1125}}, 15, 2.0 / 3},
		"it sleeps half the time":  {[]message{{0, 0, 0, 0, 0}, {15, 250, 0, 750, 500}}, 15, 0.5},
		"the host gave it nothing": {[]message{{0, 0, 0, 0, 0}, {15, 0, 0, 0, 1500}}, 15, leastComputing},
	} {
		var r cpuReadings
		for _, m := range c.messages {
			r.add(&v1.CpuTimes{Computing: uint64(m.computing), Kernel: uint64(m.kernel), Idle: uint64(m.idle), Stolen: uint64(m.stolen)}, at(m.second))
		}
		if got := r.part(at(c.now)); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
	r := cpuReadings{{start, &v1.CpuTimes{}}}
	if r.add(nil, start); r != nil {
		t.Errorf("a guest agent without times has left %v", r)
	}
}
