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

func TestAProgramsOwnTimeIsRead(t *testing.T) {
	for output, want := range map[string]float64{
		"Time in seconds = 1250e-3\nTime in seconds = 900e-3\n":                           1.25,
		" Time in seconds =                     0.50\n Verification    =  SUCCESSFUL\n":   0.5,
		"Step Temp\n0 3\nLoop time of 12.5535 on 2 procs for 200 steps with 4000 atoms\n": 12.5535,
	} {
		if got, err := seconds(output); err != nil || got != want {
			t.Errorf("%q: %v, %v", output, got, err)
		}
	}
	if _, err := seconds("no time"); err == nil {
		t.Error("an output without a time has one")
	}
}
