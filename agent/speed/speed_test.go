package speed

import (
	"math"
	"testing"
)

func TestACoreHasASpeed(t *testing.T) {
	first, err := Core()
	if err != nil {
		t.Fatal(err)
	}
	second, err := Core()
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("speed %v, again %v", first, second)
	if first < 0.01 || first > 100 || math.IsNaN(second) {
		t.Errorf("speed %v", first)
	}
}

func TestASpeedHasTwoDigits(t *testing.T) {
	for speed, want := range map[float64]float64{1.234: 1.2, 0.987: 0.99, 12.7: 13, 0.0456: 0.046} {
		if got := rounded(speed); math.Abs(got-want) > 1e-9 {
			t.Errorf("%v becomes %v, want %v", speed, got, want)
		}
	}
}
