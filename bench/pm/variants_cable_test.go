package main

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

func TestTwoLinksAreComparedWithEitherAndTheirSum(t *testing.T) {
	b := &bench{programs: "build/bench-pm", cables: map[string]*cable{twoCables: {}}}
	variants := b.variants()
	for carrier, figures := range map[string][]float64{firstLink: {20, 10}, secondLink: {30, 10, 50}, "pm": {40, 30}} {
		for _, figure := range figures {
			find(variants, twoCables, "", carrier).add(key{large, bandwidth}, figure, figure)
		}
	}
	addLinks(variants)
	ratios := map[string][]float64{}
	for _, line := range newResult(variants, nil, map[string]string{whole: "-", lossy: "-", twoGuests: "-"}).Rows {
		ratios[line.Peer] = line.RatioOf.Runs
	}
	want := map[string][]float64{firstLink: {2, 3}, secondLink: {40. / 30, 3}, bothLinks: {40. / 50, 1.5}, "pm": nil}
	if !maps.EqualFunc(ratios, want, slices.Equal) {
		t.Errorf("two links divided by others: %v, not %v", ratios, want)
	}
}

func TestBandwidthOfLinksIsThatOfManyWrites(t *testing.T) {
	b := &bench{}
	w := find(b.linked(&cable{}), twoCables, "", "pm")
	lines := [][]string{strings.Split("write,1048576,latency,us,43783.3,43386,58723.7,5,", ","), strings.Split("write,1048576,bandwidth,MB/s,23.3,22.9,23.4,5,", ",")}
	if err := w.takePerf(lines); err != nil {
		t.Fatal(err)
	}
	if k := (key{large, bandwidth}); !slices.Equal(w.figures[k], []float64{23.3}) || w.best[k] != 23.4 {
		t.Errorf("bandwidth %v, best %v", w.figures[k], w.best[k])
	}
}

func TestEveryWayOverTwoCablesHasItsLinks(t *testing.T) {
	b := &bench{programs: "build/bench-pm", cables: map[string]*cable{twoCables: {}}}
	for _, w := range b.acrossCables() {
		lines, known := linkFiles[w.carrier]
		if w.perf == nil {
			continue // the sum of the links
		}
		if !known || len(w.environment) != 1 || w.environment[0] != "PM_LINKS="+b.linkFile(w.carrier) || strings.Contains(b.linkFile(w.carrier), " ") {
			t.Errorf("%s: links %q, environment %q", w.name(), lines, w.environment)
		}
	}
}
