package agent

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
	"watari/sharing"
)

// shareOrder is the manager's order about the template.
func shareOrder(order v1.TemplateOrder) []*v1.TemplateShare {
	t := &v1.TemplateShare{Key: "key", Order: order, Reason: "as the test says"}
	if order == v1.TemplateOrder_TEMPLATE_ORDER_FETCH {
		t.Blob = &v1.Blob{Digest: "sha256:packed", Size: 8}
	}
	return []*v1.TemplateShare{t}
}

// takeSharing gives the agent orders for guests, from a manager that shares.
func (o *outside) takeSharing(group string, templates []*v1.TemplateShare, guests ...*v1.GuestWanted) {
	o.t.Helper()
	generation++
	err := o.agent.Take(&v1.HostWanted{Term: 1, Generation: generation, Guests: guests, Network: &v1.NetworkWanted{Generation: generation},
		Sharing: true, TrustGroup: group, Templates: templates})
	if err != nil {
		o.t.Fatal(err)
	}
}

func (o *outside) awaitTemplate(state v1.TemplateState) *v1.TemplateObserved {
	o.t.Helper()
	var seen *v1.TemplateObserved
	o.await(state.String(), func(h *v1.HostObserved) bool {
		for _, t := range h.Templates {
			if t.Key == "key" && t.State == state {
				seen = t
				return true
			}
		}
		return false
	})
	return seen
}

const (
	templateWanted = v1.TemplateState_TEMPLATE_STATE_WANTED
	templateHeld   = v1.TemplateState_TEMPLATE_STATE_HELD
	orderMake      = v1.TemplateOrder_TEMPLATE_ORDER_MAKE
	orderWait      = v1.TemplateOrder_TEMPLATE_ORDER_WAIT
	orderFetch     = v1.TemplateOrder_TEMPLATE_ORDER_FETCH
)

func TestATemplateIsAskedForAndFetched(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.start()
	o.takeSharing("g", nil, forkedWish(uid, 1))
	o.awaitTemplate(templateWanted)
	o.takeSharing("g", shareOrder(orderWait), forkedWish(uid, 1))
	o.await("it says what it waits for", func(h *v1.HostObserved) bool {
		return strings.Contains(find(h, uid).GetStep(), "as the test says")
	})
	o.takeSharing("g", shareOrder(orderFetch), forkedWish(uid, 1))
	o.awaitReady(1)
	if held := o.awaitTemplate(templateHeld); held.TrustGroup != "g" || held.Blob.GetDigest() != "sha256:packed" || held.MakingMs != 0 {
		t.Errorf("reported as %v", held)
	}
	if o.count("save") != 0 || o.count("fork "+uid) != 1 {
		t.Errorf("done: %v", o.log)
	}
}

// While a host fetches a template, another host of its site may begin to make it. The manager then makes the first host
// wait, and names no source any more.
func TestAHostThatIsToldToWaitWhileItFetchesWaits(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.fetch = func(context.Context) error { return sharing.ErrNoSource }
	o.start()
	o.takeSharing("g", shareOrder(orderFetch), forkedWish(uid, 1))
	o.await("it fetches", func(*v1.HostObserved) bool { return o.count("fetch sha256:packed") > 0 })
	o.takeSharing("g", shareOrder(orderWait), forkedWish(uid, 1))
	o.await("it waits", func(h *v1.HostObserved) bool {
		return strings.Contains(find(h, uid).GetStep(), "waiting for a template")
	})
	o.mu.Lock()
	o.fetch = nil
	o.mu.Unlock()
	o.takeSharing("g", shareOrder(orderFetch), forkedWish(uid, 1))
	o.awaitReady(1)
	if o.count("save") != 0 || o.count("fork "+uid) != 1 {
		t.Errorf("done: %v", o.log)
	}
}

func TestATemplateThatIsMadeIsPackedForOthers(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.start()
	o.takeSharing("g", nil, forkedWish(uid, 1))
	o.awaitTemplate(templateWanted)
	o.takeSharing("g", shareOrder(orderMake), forkedWish(uid, 1))
	o.awaitReady(1)
	if held := o.awaitTemplate(templateHeld); held.TrustGroup != "" || held.Blob.GetDigest() != "sha256:packed" {
		t.Errorf("reported as %v", held)
	}
	if o.count("save") != 1 || o.count("pack") != 1 {
		t.Errorf("done: %v", o.log)
	}
}

func TestATemplateThatCannotBeFetchedIsMade(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.fetch = func(context.Context) error { return errors.New("it broke off") }
	o.start()
	o.takeSharing("g", shareOrder(orderFetch), forkedWish(uid, 1))
	o.awaitReady(1)
	if o.count("save") != 1 || o.count("fork "+uid) != 1 {
		t.Errorf("done: %v", o.log)
	}
	o.awaitTemplate(templateHeld) // it is packed
}

func TestAFetchedTemplateThatCannotBeRestoredIsMadeTheNextTime(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.fork = func() error { return domain.ErrTemplateUnusable }
	o.start()
	o.takeSharing("g", shareOrder(orderFetch), forkedWish(uid, 1))
	o.awaitReady(1)
	o.mu.Lock()
	o.fork = nil
	o.mu.Unlock()
	o.takeSharing("g", shareOrder(orderFetch), forkedWish(uid, 1), forkedWish(secondUID, 1))
	o.awaitAllReady(2)
	if o.count("fetch sha256:packed") != 1 || o.count("save") != 1 || o.count("boot "+uid) != 1 {
		t.Errorf("done: %v", o.log)
	}
	o.awaitTemplate(templateHeld) // it is packed
}

func TestAManagerThatSaysNothingIsNotWaitedFor(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	o.start()
	begun := time.Now()
	o.takeSharing("g", nil, forkedWish(uid, 1))
	o.awaitReady(1)
	if o.count("save") != 1 || time.Since(begun) > 8*time.Second {
		t.Errorf("after %v: %v", time.Since(begun), o.log)
	}
	o.awaitTemplate(templateHeld) // it is packed
}

func TestAHostThatLeavesItsTrustGroupDropsItsTemplates(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	stop := o.start()
	o.takeSharing("g", shareOrder(orderFetch), forkedWish(uid, 1))
	o.awaitTemplate(templateHeld)
	o.awaitReady(1) // a guest that still has to start would need another template
	// A restarted agent continues.
	stop()
	o.start()
	o.takeSharing("g", nil, forkedWish(uid, 1))
	o.awaitTemplate(templateHeld)
	o.takeSharing("h", nil, forkedWish(uid, 1))
	o.await("it is gone", func(h *v1.HostObserved) bool { return len(h.Templates) == 0 })
	left, _ := filepath.Glob(filepath.Join(o.dir, "state", "templates", "key.*"))
	for _, path := range left {
		if !strings.HasSuffix(path, ".console.log") {
			t.Errorf("%s is left", path)
		}
	}
}

func TestAHostThatLeavesItsTrustGroupWhileItsAgentIsOffDropsItsTemplates(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	stop := o.start()
	o.takeSharing("g", shareOrder(orderFetch), forkedWish(uid, 1))
	o.awaitTemplate(templateHeld)
	stop()
	o.start()
	o.takeSharing("", nil, forkedWish(uid, 1))
	o.await("it is gone", func(h *v1.HostObserved) bool { return len(h.Templates) == 0 })
	if _, err := os.Stat(filepath.Join(o.dir, "state", "templates", "key.save")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the template is there: %v", err)
	}
}

func TestATemplateThatArrivesAfterTheHostLeftItsTrustGroupIsDropped(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	begun, arrive := make(chan struct{}), make(chan struct{})
	o.fetch = func(context.Context) error {
		close(begun)
		<-arrive
		return nil
	}
	o.start()
	o.takeSharing("g", shareOrder(orderFetch), forkedWish(uid, 1))
	<-begun
	o.takeSharing("h", shareOrder(orderMake), forkedWish(uid, 1))
	close(arrive)
	o.awaitReady(1)
	if o.count("save") != 1 || o.count("fetch sha256:packed") != 1 {
		t.Errorf("the guest was forked from what came from the group before: %v", o.log)
	}
	o.awaitTemplate(templateHeld) // it is packed
}

// An agent that was killed before its template was packed packs it at its next start.
func TestATemplateIsPackedAfterACrash(t *testing.T) {
	o := newOutside(t)
	o.template = "key"
	stop := o.start()
	o.take(forkedWish(uid, 1)) // from a manager that does not share
	o.awaitReady(1)
	stop()
	dir := filepath.Join(o.dir, "state", "templates")
	if err := os.WriteFile(filepath.Join(dir, "key.zst.part"), []byte("half"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.start()
	o.takeSharing("g", nil, forkedWish(uid, 1))
	o.awaitTemplate(templateHeld)
	if _, err := os.Stat(filepath.Join(dir, "key.zst.part")); !errors.Is(err, os.ErrNotExist) {
		t.Error("what the crash left is there")
	}
	if o.count("save") != 1 || o.count("pack") != 1 {
		t.Errorf("done: %v", o.log)
	}
}
