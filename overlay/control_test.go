package overlay

import (
	"errors"
	"testing"
	"time"
)

func TestAProcessThatHangsIsNotWaitedForAndTriedOnceAtATime(t *testing.T) {
	p := callLimiter{limit: 20 * time.Millisecond}
	goesOn := make(chan struct{})
	if err := p.do(func() error { <-goesOn; return nil }); !errors.Is(err, errHangs) {
		t.Fatalf("got %v", err)
	}
	if err := p.do(func() error { t.Error("asked beside the call that hangs"); return nil }); !errors.Is(err, errHangs) {
		t.Fatalf("got %v", err)
	}
	p.limit = time.Minute
	ended := p.ended
	close(goesOn)
	<-ended
	failed := errors.New("no such device")
	if err := p.do(func() error { return failed }); err != failed {
		t.Fatalf("got %v", err)
	}
	if err := p.do(func() error { return nil }); err != nil {
		t.Fatalf("got %v", err)
	}
}
