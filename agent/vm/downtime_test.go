package vm

import "testing"

func TestDowntimeLimit(t *testing.T) {
	for _, c := range []struct{ pass, dirty, sent, want uint64 }{
		{0, 0, 0, 50}, {1, 1e9, 1e6, 50}, {2, 1e9, 1e6, 50}, // the first passes measure how fast memory changes
		{3, 1e6, 1e8, 100}, {4, 1e6, 1e8, 200}, {5, 1e6, 1e8, 300}, {1000, 1e6, 1e8, 300},
		{3, 6e7, 1e8, 300}, // more passes would not help
		{3, 1e6, 0, 100},   // the link's speed is not known
	} {
		if got := downtimeLimit(c.pass, c.dirty, c.sent); got != c.want {
			t.Errorf("pass %d, %d bytes/s changed, %d sent: %d ms, want %d", c.pass, c.dirty, c.sent, got, c.want)
		}
	}
}
