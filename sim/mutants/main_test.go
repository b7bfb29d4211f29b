package main

import "testing"

// The product's text changes, and a mutant whose text is gone tests nothing.
func TestEveryMutantApplies(t *testing.T) {
	t.Chdir("../..")
	for _, m := range mutants {
		if _, err := m.apply(); err != nil {
			t.Errorf("%s: %v", m.name, err)
		}
	}
}
