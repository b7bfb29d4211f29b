package vm

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

func TestGuestLife(t *testing.T) {
	need(t)
	ctx := context.Background()
	h := startHost(t, "h1")
	spec := newSpec("life", "")
	h.prepare(t, spec)

	begun := time.Now()
	if err := h.driver.Boot(ctx, spec); err != nil {
		t.Fatal(err)
	}
	t.Logf("Boot returned after %v", time.Since(begun))
	if d := h.domain(t, spec.UID); d.State != StateRunning || d.Name != "life" || d.MemoryBytes == 0 {
		t.Errorf("after Boot: %+v", d)
	}
	if err := h.driver.Boot(ctx, spec); err == nil {
		t.Error("a second Boot of the same guest did not fail")
	}
	h.counts(t, spec, 3)
	t.Logf("it counted after %v", time.Since(begun))
	if err := h.driver.Resume(ctx, spec.UID); err != nil {
		t.Errorf("Resume of a running domain: %v", err)
	}

	// The daemon dies. The guest runs on; the driver reconnects by itself and sends an event.
	before := h.count(spec)
	h.killDaemon(t)
	waitEvent(t, h.driver, "")
	if d := h.domain(t, spec.UID); d.State != StateRunning {
		t.Errorf("after the daemon's restart: %+v", d)
	}
	h.counts(t, spec, before+5)

	// Events are there again, too.
	h.killGuest(t, "life")
	waitEvent(t, h.driver, spec.UID)
	eventually(t, 10*time.Second, "the killed guest is gone", func() bool { return h.domain(t, spec.UID).State == StateGone })

	for range 2 {
		if err := h.driver.Destroy(ctx, spec.UID); err != nil {
			t.Errorf("Destroy of none: %v", err)
		}
	}
	if err := h.driver.Resume(ctx, spec.UID); !errors.Is(err, ErrNotFound) {
		t.Errorf("Resume of none: %v", err)
	}
	if err := h.driver.Boot(ctx, spec); err != nil {
		t.Fatal(err)
	}
	begun = time.Now()
	if err := h.driver.Destroy(ctx, spec.UID); err != nil {
		t.Error(err)
	}
	t.Logf("Destroy took %v", time.Since(begun))
	if d := h.domain(t, spec.UID); d.State != StateGone {
		t.Errorf("after Destroy: %+v", d)
	}
}

// waitEvent reads events until one of a domain comes; an empty uid: until libvirt answers.
func waitEvent(t *testing.T, l *Libvirt, uid string) {
	t.Helper()
	limit := patient(30 * time.Second)
	deadline := time.After(limit)
	for {
		select {
		case e, ok := <-l.Events():
			if !ok {
				t.Fatalf("events ended before one of %q", uid)
			}
			if e.UID == uid && !e.Lost {
				return
			}
		case <-deadline:
			t.Fatalf("no event of %q within %v", uid, limit)
		}
	}
}

func TestADaemonThatIsNotThereIsWaitedForAndNamed(t *testing.T) {
	l, err := Connect("qemu+unix:///system?socket=/nonexistent/libvirt-sock", Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if _, _, err := l.Versions(); !errors.Is(err, ErrUnavailable) {
		t.Errorf("versions that nobody told: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	list, err := l.List(ctx)
	if !errors.Is(err, ErrUnavailable) || !strings.Contains(fmt.Sprint(err), "/nonexistent/libvirt-sock") || strings.Contains(err.Error(), "\n") {
		t.Errorf("listed %v, %v", list, err)
	}
	if err := l.Boot(ctx, Spec{}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("booted: %v", err)
	}
	if key := l.TemplateKey(Spec{}); key != "" {
		t.Errorf("a template's key %q, though what restores it is not known", key)
	}
}
