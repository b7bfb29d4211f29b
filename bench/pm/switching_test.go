package main

import "testing"

const costsTold = `rail,what,value,unit,spread
shm,instructions per message,282.7,,
shm,instructions per message where rails are fixed,272.7,,
shm,longest gap while a rail is left and joined,879.0,us,357.7..4123.9
shm,longest gap in a span as long without,65.6,us,13.6..2136.7
shm,until a rail is left,885.4,us,380.0..2649.3
shm,longest gap while a rail is left and joined,979.0,us,357.7..36123.9
shm,longest gap in a span as long without,165.6,us,23.6..1136.7
shm,until a rail is left,1885.4,us,380.0..2649.3
shm,longest gap while a rail is left and joined,579.0,us,257.7..3123.9
shm,longest gap in a span as long without,65.6,us,13.6..136.7
shm,until a rail is left,485.4,us,380.0..2649.3
`

func TestCostsOfSwitchingBecomeRowsAndGoals(t *testing.T) {
	rows, err := readCosts(costsTold)
	if err != nil {
		t.Fatal(err)
	}
	r := &result{}
	r.addCosts(rows)
	if len(r.Rows) != 5 {
		t.Fatalf("%d rows", len(r.Rows))
	}
	if gap := r.Rows[3]; gap.Metric != longestGap || gap.Peer != "pm" || gap.Spread.Max != 36123.9 || gap.Value != 4123.9 || len(gap.Spread.Runs) != 3 {
		t.Errorf("gap %+v", gap)
	}
	if len(r.Goals) != 2 || r.Goals[0].Value != 10 || !r.Goals[0].Met || r.Goals[1].Value != 4.1239 || !r.Goals[1].Met {
		t.Errorf("goals %+v", r.Goals)
	}
	r.addCosts(nil)
	if len(r.Rows) != 5 {
		t.Error("nothing counted added rows")
	}
}

func TestCostsThatLackAFigureAreAnError(t *testing.T) {
	for _, told := range []string{"", "rail,what,value,unit,spread\n", costsTold[:120], "a,instructions per message,x,,\n"} {
		if rows, err := readCosts(told); err == nil {
			t.Errorf("%q gave %v", told, rows)
		}
	}
}
