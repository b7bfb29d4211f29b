package client

import "testing"

// A manager that is cut off from the store names a leader that has gone. The others are tried nevertheless.
func TestAHintIsFollowedOnceAndThenTheNextManagerIsTried(t *testing.T) {
	transport, err := newTransport([]string{"https://b:1", "https://c:1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	var tried []string
	for range 4 {
		managers := transport.rotate("https://a:1") // that a does not answer, so that b does, is not known here
		tried = append(tried, transport.managers[transport.first])
		if managers != 3 {
			t.Errorf("%d managers", managers)
		}
		if transport.first == 2 {
			transport.first = 0 // dial has gone on to b
		}
	}
	if got := tried; got[0] != "https://a:1" || got[1] != "https://c:1" || got[2] != "https://a:1" || got[3] != "https://c:1" {
		t.Errorf("tried %v", got)
	}
	if transport.rotate("no URL"); len(transport.managers) != 3 {
		t.Errorf("managers %v", transport.managers)
	}
}
