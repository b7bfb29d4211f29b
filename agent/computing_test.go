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
	type message struct {
		second         int
		computing, all uint64
	}
	for name, c := range map[string]struct {
		messages []message
		now      int
		want     float64
	}{
		"one message":          {[]message{{0, 100, 200}}, 0, 0},
		"half of the time":     {[]message{{0, 100, 200}, {15, 850, 1700}}, 15, 0.5},
		"the last half minute": {[]message{{0, 0, 0}, {15, 1500, 1500}, {30, 1500, 3000}, {45, 1500, 4500}, {60, 1500, 6000}}, 60, leastComputing},
		"over half a minute":   {[]message{{0, 0, 0}, {15, 1500, 1500}, {30, 1500, 3000}, {45, 3000, 4500}}, 45, 0.5},
		"a checkpoint":         {[]message{{0, 900, 900}, {15, 100, 200}}, 15, 0},
		"after a checkpoint":   {[]message{{0, 900, 900}, {15, 100, 200}, {30, 400, 600}}, 30, 0.75},
		"no time has passed":   {[]message{{0, 100, 200}, {15, 100, 200}}, 15, 0},
		"more than all":        {[]message{{0, 0, 0}, {15, 900, 1}}, 15, 1},
		"an old message":       {[]message{{0, 0, 0}, {15, 100, 200}}, 46, 0},
	} {
		var r cpuReadings
		for _, m := range c.messages {
			r.add(&v1.CpuTimes{Computing: m.computing, All: m.all}, at(m.second))
		}
		if got := r.part(at(c.now)); math.Abs(got-c.want) > 1e-9 {
			t.Errorf("%s: %v, not %v", name, got, c.want)
		}
	}
	r := cpuReadings{{start, 1, 2}}
	if r.add(nil, start); r != nil {
		t.Errorf("a guest agent without times has left %v", r)
	}
}
