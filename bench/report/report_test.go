package report

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
)

func TestSummarizeGivesMedianAndSpread(t *testing.T) {
	for _, c := range []struct {
		runs             []float64
		median, min, max float64
	}{
		{nil, 0, 0, 0},
		{[]float64{3}, 3, 3, 3},
		{[]float64{9, 1, 5}, 5, 1, 9},
		{[]float64{4, 1, 2, 3}, 2.5, 1, 4},
	} {
		s := Summarize("s", c.runs...)
		if s.Median != c.median || s.Min != c.min || s.Max != c.max {
			t.Errorf("%v: got %v", c.runs, s)
		}
		for i := range c.runs {
			if s.Runs[i] != c.runs[i] {
				t.Errorf("%v: order of runs changed: %v", c.runs, s.Runs)
			}
		}
	}
}

func TestRatiosAreTakenRunByRun(t *testing.T) {
	s := Ratios([]float64{10, 4, 9, 1}, []float64{5, 4, 3, 0})
	if s.Median != 2 || s.Min != 1 || s.Max != 3 {
		t.Errorf("got %v", s)
	}
}

func TestWriteEmbedsTheHeader(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a", "b.json")
	type figures struct {
		Header
		Ratio float64 `json:"ratio"`
	}
	if err := Write(path, figures{NewHeader("bench-x", "make bench-x"), 1.5}); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var got map[string]any
	if err := json.Unmarshal(data, &got); err != nil {
		t.Fatal(err)
	}
	if got["benchmark"] != "bench-x" || got["ratio"] != 1.5 || got["commit"] == "" {
		t.Errorf("got %s", data)
	}
	if m := got["machine"].(map[string]any); m["cores"].(float64) < 1 || m["kernel"] == "" {
		t.Errorf("machine: %v", m)
	}
}
