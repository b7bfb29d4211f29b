package sim

// shrink.go - the shortest plan that still fails.

// Shrink removes steps from a failing plan as long as it still fails.
func Shrink(seed uint64, plan []Step) []Step {
	fails := func(p []Step) bool { return run(seed, p, nil).Violation != "" }
	for size := max(len(plan)/2, 1); ; size = max(size/2, 1) {
		removed := false
		for i := 0; i+size <= len(plan); {
			shorter := append(append([]Step(nil), plan[:i]...), plan[i+size:]...)
			if fails(shorter) {
				plan, removed = shorter, true
			} else {
				i += size
			}
		}
		if size == 1 && !removed {
			return plan
		}
	}
}
