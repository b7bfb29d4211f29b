package main

import "testing"

func TestFabricTable(t *testing.T) {
	const table = `bytes   #sent   #ack     total       time     MB/sec    usec/xfer   Mxfers/sec
8       20k     =20k     312k        3.64s      0.09      90.98       0.01
`
	if half, err := readFabric(table); err != nil || half != 90.98 {
		t.Errorf("%v, %v", half, err)
	}
	for _, out := range []string{"", "8\n", table + table} {
		if _, err := readFabric(out); err == nil {
			t.Errorf("%q is taken for a table", out)
		}
	}
}
