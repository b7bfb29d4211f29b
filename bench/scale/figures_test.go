package main

import (
	"math"
	"testing"
)

func TestPercentilesAreOfTheValuesThemselves(t *testing.T) {
	var runs []float64
	for i := range 200 {
		runs = append(runs, float64(200-i))
	}
	if l := summarize(runs); l.P50 != 100 || l.P99 != 198 || l.Min != 1 || l.Max != 200 || l.Runs[0] != 200 {
		t.Error(l)
	}
	if l := summarize([]float64{3}); l.P50 != 3 || l.P99 != 3 {
		t.Error(l)
	}
	if l := summarize(nil); l.P99 != 0 {
		t.Error(l)
	}
}

func TestExponentOfGrowth(t *testing.T) {
	x := []float64{100, 300, 1000, 3000}
	for want, f := range map[float64]func(float64) float64{
		0: func(float64) float64 { return 7 }, 1: func(n float64) float64 { return 3 * n }, 2: func(n float64) float64 { return n * n },
	} {
		y := make([]float64, len(x))
		for i := range x {
			y[i] = f(x[i])
		}
		if got := exponent(x, y); math.Abs(got-want) > 1e-9 {
			t.Errorf("got %v, want %v", got, want)
		}
	}
	if got := nLogN(x); got < 1.1 || got > 1.3 {
		t.Errorf("n log n grows with exponent %v", got)
	}
	if got := exponent(x[:1], x[:1]); !math.IsNaN(got) {
		t.Errorf("one point has exponent %v", got)
	}
}
