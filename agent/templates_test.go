package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

const secondUID = "00000000-0000-4000-8000-000000000002"

func forkedWish(uid string, epoch uint64) *v1.GuestWanted {
	w := guestWish(uid, run, epoch)
	w.NoFork = false
	return w
}

func (o *outside) awaitAllReady(n int) {
	o.t.Helper()
	o.await("all ready", func(h *v1.HostObserved) bool {
		ready := 0
		for _, g := range h.Guests {
			if g.Ready {
				ready++
			}
		}
		return ready == n
	})
}

func TestGuestsShareOneTemplate(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.start()
	o.take(forkedWish(uid, 1), forkedWish(secondUID, 1))
	o.awaitAllReady(2)
	made := templateUID("key")
	if o.count("boot "+made) != 1 || o.count("save") != 1 || o.count("fork "+uid) != 1 || o.count("fork "+secondUID) != 1 ||
		o.count("unplug "+made) != 1 {
		t.Errorf("done: %v", o.log)
	}
	if len(o.entropies) < 2 { // of 64 bytes each
		t.Errorf("two guests that started with the same random numbers got %d other set", len(o.entropies))
	}
	o.take(forkedWish(uid, 2), forkedWish(secondUID, 1))
	o.awaitReady(2)
	if o.count("save") != 1 {
		t.Errorf("the template was made again: %v", o.log)
	}
}

func TestUsersShareATemplateOfAPublishedImageAlone(t *testing.T) {
	for private, templates := range map[bool]int{false: 1, true: 2} {
		o := newOutside(t)
		o.template = "key"
		o.start()
		mine, theirs := forkedWish(uid, 1), forkedWish(secondUID, 1)
		mine.Image.Private, theirs.Image.Private = private, private
		mine.Facts, theirs.Facts = &v1.GuestFacts{OwnerUid: "aiko"}, &v1.GuestFacts{OwnerUid: "goro"}
		o.take(mine, theirs)
		o.awaitAllReady(2)
		if o.count("save") != templates {
			t.Errorf("private %v: done: %v", private, o.log)
		}
	}
}

func TestTheTemplatesOfAHostAreBounded(t *testing.T) {
	const most = 16 // as the page on threats says
	// An agent that runs would remove the templates at once: it holds no image.
	templates := newTemplates(&Agent{config: Config{StateDir: t.TempDir()}, log: slog.New(slog.DiscardHandler)})
	if err := os.MkdirAll(templates.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range most + 3 {
		key := fmt.Sprint("key", n)
		if err := errors.Join(os.WriteFile(templates.path(key), nil, 0o600), templates.writeInfo(key, templateInfo{Image: "sha256:1"})); err != nil {
			t.Fatal(err)
		}
		long := time.Now().Add(-time.Duration(n) * time.Hour)
		if err := os.Chtimes(templates.infoPath(key), long, long); err != nil {
			t.Fatal(err)
		}
	}
	templates.used(fmt.Sprint("key", most+2))
	templates.prune([]string{"sha256:1"})
	for n := range most + 3 {
		kept := templates.info(fmt.Sprint("key", n)) != nil
		if want := n < most-1 || n == most+2; kept != want {
			t.Errorf("template %d kept: %v", n, kept)
		}
	}
}

func TestAGuestIsBootedPlainlyWhereNoTemplateCanBeMade(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	made := templateUID("key")
	o.boot = func(_ context.Context, s domain.Spec) error {
		if s.UID == made {
			return errors.New("no room for it")
		}
		return nil
	}
	o.start()
	o.take(forkedWish(uid, 1))
	o.awaitReady(1)
	o.await("a problem", func(h *v1.HostObserved) bool {
		return strings.Contains(strings.Join(h.Problems, ";"), "no room for it")
	})
	if o.count("boot "+uid) != 1 {
		t.Errorf("done: %v", o.log)
	}
}

func TestAFailedTemplateIsNoProblemOnceNoGuestNeedsIt(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	made := templateUID("key")
	o.boot = func(_ context.Context, s domain.Spec) error {
		if s.UID == made {
			return errors.New("no room for it")
		}
		return nil
	}
	told := func(h *v1.HostObserved) bool {
		return strings.Contains(strings.Join(h.Problems, ";"), "no room for it")
	}
	larger := guestWish(secondUID, run, 1)
	larger.Shape = &v1.GuestShape{Vcpus: 2, MemoryBytes: 256 << 20}
	o.start()
	o.take(forkedWish(uid, 1), larger)
	o.awaitAllReady(2)
	o.await("a problem", told)
	o.take(guestWish(uid, absent, 1), larger)
	o.await("no problem", func(h *v1.HostObserved) bool { return !told(h) })
	// The last attempt has just failed, so callers do not wait for another one.
	o.take(forkedWish(uid, 2), larger)
	o.await("a problem again", told)
	o.awaitAllReady(2)
	if o.count("boot "+made) != 1 {
		t.Errorf("the template was tried again at once: %v", o.log)
	}
}

func TestAGuestThatIsGivenUpWhileItWaitsForATemplateLeavesNoTap(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	booting := make(chan struct{})
	o.boot = func(ctx context.Context, s domain.Spec) error {
		close(booting)
		<-ctx.Done()
		return ctx.Err()
	}
	o.start()
	o.take(forkedWish(uid, 1))
	<-booting
	o.take(guestWish(uid, absent, 1))
	o.await("the tap is gone", func(*v1.HostObserved) bool {
		return o.count("plug "+uid) == 1 && o.count("unplug "+uid) > 0
	})
}

func TestATemplateThatCannotBeRestoredIsDiscarded(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.fork = func() error { return fmt.Errorf("damaged: %w", domain.ErrTemplateUnusable) }
	o.start()
	o.take(forkedWish(uid, 1))
	o.awaitReady(1)
	if o.count("boot "+uid) != 1 || o.agent.templates.whole("key") {
		t.Errorf("done: %v", o.log)
	}
}

func TestATemplateIsKeptWhereTheHostIsToBlame(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.fork = func() error { return syscall.ENOSPC }
	o.start()
	o.take(forkedWish(uid, 1))
	o.awaitReady(1)
	if o.count("boot "+uid) != 1 || !o.agent.templates.whole("key") {
		t.Errorf("done: %v", o.log)
	}
}

func TestARestoreOfUnknownOutcomeIsNotRepeated(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.fork = func() error { return domain.ErrUnavailable }
	o.start()
	o.take(forkedWish(uid, 1))
	o.awaitCondition(uid, 1, v1.GuestCondition_GUEST_CONDITION_GONE)
	if o.count("boot "+uid) != 0 {
		t.Errorf("done: %v", o.log)
	}
}

func TestWhatACrashLeftOfATemplateIsTakenAway(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	made := templateUID("key")
	dir := filepath.Join(o.dir, "state", "templates")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	killed := []string{"key.save.part", "old.save.part", "key.save." + uid} // in the middle of a save, and of a restore
	files := map[string]string{made + ".making": "key\n", "key.save": "half"}
	for _, name := range killed {
		files[name] = "half"
	}
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o.domains[made] = domain.Running
	o.start()
	o.take(forkedWish(uid, 1))
	o.awaitReady(1)
	if o.state(made) != domain.Absent || o.count("save") != 1 {
		t.Errorf("done: %v", o.log)
	}
	entries, _ := os.ReadDir(dir)
	for _, entry := range entries {
		if strings.HasSuffix(entry.Name(), ".making") || slices.Contains(killed, entry.Name()) {
			t.Errorf("left: %s", entry.Name())
		}
	}
}

func TestAnAttemptThatTookLongIsRepeatedLater(t *testing.T) {
	for took, want := range map[time.Duration]time.Duration{200 * time.Millisecond: 5 * time.Second, 20 * time.Second: 200 * time.Second, 6 * time.Minute: 5 * time.Minute} {
		if got := pauseAfter(took); got != want {
			t.Errorf("after %v the pause is %v, want %v", took, got, want)
		}
	}
}

// A template could not be made because earlier guests held a file. After their end it is made.
func TestAHostWithoutGuestsForgetsWhichTemplatesCouldNotBeMade(t *testing.T) {
	spec := domain.Spec{ImageDigest: "sha256:x", VCPUs: 1, MemoryBytes: 1 << 28}
	templates := &templates{failed: map[string]failedMaking{"key": {time.Now().Add(time.Minute), errors.New("in use"), spec}}}
	guest := machine.View{Wanted: &v1.GuestWanted{Role: v1.GuestRole_GUEST_ROLE_RUN, Image: &v1.Image{Digest: "sha256:x"},
		Shape: &v1.GuestShape{Vcpus: 1, MemoryBytes: 1 << 28}}}
	if problems := templates.problems([]machine.View{guest}); len(problems) != 1 {
		t.Errorf("problems %v", problems)
	}
	if templates.problems(nil); len(templates.failed) != 0 {
		t.Error("the failure is remembered though no guest is here")
	}
}
