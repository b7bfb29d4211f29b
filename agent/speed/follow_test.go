package speed

import "testing"

// A disturbed measurement is corrected by the next, also if it was the first. Noise changes nothing. A host that has become
// slower is known as that when no measurement of before is left.
func TestTheBestOfTheLastMeasurementsCounts(t *testing.T) {
	for _, c := range []struct {
		name     string
		measured []float64 // the first at the start
		told     []float64 // after each of the others
	}{
		{"first disturbed", []float64{0.37, 0.78, 0.8}, []float64{0.78, 0.78}},
		{"noise", []float64{0.8, 0.84, 0.76, 0.8, 0.82, 0.79, 0.77}, []float64{0.8, 0.8, 0.8, 0.8, 0.8, 0.8}},
		{"one disturbed", []float64{0.8, 0.8, 0.3, 0.8}, []float64{0.8, 0.8, 0.8}},
		{"slower", []float64{1, 0.5, 0.5, 0.5, 0.5, 0.5}, []float64{1, 1, 1, 1, 0.5}},
		{"not measured at the start", []float64{0, 0.9}, []float64{0.9}},
	} {
		h := history{speeds: c.measured[:1:1], told: c.measured[0]}
		for i, speed := range c.measured[1:] {
			before := h.told
			if another := h.add(speed); another != (h.told != before) || h.told != c.told[i] {
				t.Errorf("%s: after measurement %d the speed is %v (another: %v), want %v", c.name, i+1, h.told, another, c.told[i])
			}
		}
	}
}
