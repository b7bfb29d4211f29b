package main

import "testing"

func TestNetPIPEsOutputIsRead(t *testing.T) {
	p, err := parsePipe("       1 0.305 0.00002500\n       8 2.1 0.00003000\n 1048576 912.5 0.00876712\n")
	if err != nil || len(p.points) != 3 || p.latency < 24.9 || p.latency > 25.1 || p.highest != 912.5 {
		t.Errorf("%+v, %v", p, err)
	}
	for _, text := range []string{"", "1 x 3\n"} {
		if _, err := parsePipe(text); err == nil {
			t.Errorf("%q is read", text)
		}
	}
}
