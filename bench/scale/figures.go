package main

// figures.go - percentiles, and the growth of figures with the number of hosts.

import (
	"fmt"
	"math"
	"slices"
)

// latency summarizes repeated measurements of a time in ms.
type latency struct {
	P50  float64   `json:"p50_ms"`
	P99  float64   `json:"p99_ms"`
	Min  float64   `json:"min_ms"`
	Max  float64   `json:"max_ms"`
	Runs []float64 `json:"runs_ms"` // in the order of measurement
}

func summarize(runs []float64) latency {
	if len(runs) == 0 {
		return latency{Runs: runs}
	}
	sorted := slices.Sorted(slices.Values(runs))
	return latency{percentile(sorted, 50), percentile(sorted, 99), sorted[0], sorted[len(sorted)-1], runs}
}

func (l latency) String() string {
	return fmt.Sprintf("p50 %.3g, p99 %.3g (%.3g..%.3g) ms, %d runs", l.P50, l.P99, l.Min, l.Max, len(l.Runs))
}

// percentile returns the smallest of the sorted values that at least p percent of the values do not exceed.
func percentile(sorted []float64, p float64) float64 {
	rank := int(math.Ceil(p / 100 * float64(len(sorted))))
	return sorted[max(rank, 1)-1]
}

// exponent returns b if y grows like x to the power of b. It is the slope of the least-squares line through the
// logarithms of the points. It is NaN for fewer than two points.
func exponent(x, y []float64) float64 {
	var sumX, sumY, sumXX, sumXY float64
	n := float64(len(x))
	for i := range x {
		lx, ly := math.Log(x[i]), math.Log(y[i])
		sumX, sumY, sumXX, sumXY = sumX+lx, sumY+ly, sumXX+lx*lx, sumXY+lx*ly
	}
	return (n*sumXY - sumX*sumY) / (n*sumXX - sumX*sumX)
}

// nLogN returns the exponent of n log n over the same x.
func nLogN(x []float64) float64 {
	y := make([]float64, len(x))
	for i, n := range x {
		y[i] = n * math.Log(n)
	}
	return exponent(x, y)
}
