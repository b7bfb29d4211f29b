package agent

// template_share.go - obtains a template: makes it, waits for another host to make it, or fetches it from a host of the
// trust group.

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"time"

	"watari/agent/domain"
	v1 "watari/api/watariv1"
	"watari/sharing"
)

// savedOverhead bounds the state of a saved guest's devices, bytes. A template is larger than the guest's memory by
// this state.
const savedOverhead = 256 << 20

// share stores the manager's orders about templates. If the host has left a trust group, share removes the templates
// fetched in that group: root of a host that is no longer trusted may have changed them.
func (t *templates) share(w *v1.HostWanted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// An agent that has just started does not know the host's last group.
	regrouped := w.Sharing && (!t.grouped || t.group != w.TrustGroup)
	t.sharing, t.orders = w.Sharing, map[string]*v1.TemplateShare{}
	if w.Sharing {
		t.grouped, t.group = true, w.TrustGroup
	}
	for _, order := range w.Templates {
		t.orders[order.Key] = order
	}
	if regrouped {
		t.removeForeign()
		t.packAll()
	}
	close(t.reordered)
	t.reordered = make(chan struct{})
}

// removeForeign removes the templates that were fetched in other groups than the present one. t.mu is held.
func (t *templates) removeForeign() {
	for _, key := range t.described() {
		if info := t.info(key); info != nil && info.Group != "" && info.Group != t.group {
			t.remove(key)
			t.log.Info("template removed: the host left the trust group that it came from", "key", key, "group", info.Group)
		}
	}
}

// packAll packs the templates that are not packed. When they were made, no host was to fetch them, or a crash interrupted
// the packing. t.mu is held.
func (t *templates) packAll() {
	for _, key := range t.described() {
		if info := t.info(key); info != nil && info.Packed == nil && t.making[key] == nil {
			t.packLocked(key)
		}
	}
}

// packLocked packs a template if other hosts may fetch it. t.mu is held.
func (t *templates) packLocked(key string) {
	if t.sharing && t.group != "" && !t.packing[key] {
		t.packing[key] = true
		go t.pack(t.agent.ctx, key)
	}
}

// described returns the keys of the templates with a description.
func (t *templates) described() []string {
	entries, _ := os.ReadDir(t.dir)
	var keys []string
	for _, entry := range entries {
		if key, ok := strings.CutSuffix(entry.Name(), ".json"); ok {
			keys = append(keys, key)
		}
	}
	return keys
}

// report returns the templates' part of the host's report, in the order of keys.
func (t *templates) report() []*v1.TemplateObserved {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[string]*v1.TemplateObserved{}
	for key, f := range t.failed {
		if time.Now().Before(f.until) {
			seen[key] = &v1.TemplateObserved{Key: key, State: v1.TemplateState_TEMPLATE_STATE_FAILED}
		}
	}
	for _, key := range t.described() {
		if info := t.info(key); info != nil && info.Packed != nil && t.whole(key) {
			seen[key] = &v1.TemplateObserved{Key: key, State: v1.TemplateState_TEMPLATE_STATE_HELD, TrustGroup: info.Group,
				Blob: &v1.Blob{Digest: info.Packed.Digest, Size: info.Packed.Size}, MakingMs: info.MakingMS}
		}
	}
	for key := range t.packing {
		seen[key] = &v1.TemplateObserved{Key: key, State: v1.TemplateState_TEMPLATE_STATE_MAKING}
	}
	for key, m := range t.making {
		m.mu.Lock()
		seen[key] = &v1.TemplateObserved{Key: key, State: m.state}
		m.mu.Unlock()
	}
	var list []*v1.TemplateObserved
	for _, key := range slices.Sorted(maps.Keys(seen)) {
		list = append(list, seen[key])
	}
	return list
}

// obtain makes or fetches a template. sharing.NextStep decides which.
func (t *templates) obtain(ctx context.Context, key string, spec domain.Spec, m *making) error {
	begun := time.Now()
	t.agent.publish() // report that this host wants the template
	t.mu.Lock()
	failed := t.unusable[key]
	t.mu.Unlock()
	for {
		t.mu.Lock()
		order, reordered, sharingOn, group := t.orders[key], t.reordered, t.sharing, t.group
		t.mu.Unlock()
		step := sharing.NextStep(sharing.TemplateTold{Sharing: sharingOn, Order: sharing.TemplateOrder(order.GetOrder()),
			FetchFailed: failed, Waited: time.Since(begun)})
		switch step {
		case sharing.Make:
			m.enter(v1.TemplateState_TEMPLATE_STATE_MAKING)
			t.agent.publish()
			if err := t.make(ctx, key, spec, m); err != nil {
				return err
			}
			t.mu.Lock()
			t.packLocked(key)
			t.mu.Unlock()
			return nil
		case sharing.Fetch:
			err := t.fetch(ctx, key, spec, order, group, m)
			if err == nil {
				return nil
			}
			if errors.Is(err, sharing.ErrNoSource) && ctx.Err() == nil {
				continue // the manager's orders have changed
			}
			t.log.Warn("a template is made here, for it could not be fetched", "key", key, "error", err)
			failed = true
			continue
		}
		m.say("waiting for a template: " + cmp.Or(order.GetReason(), "the manager is asked"))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-reordered:
		case <-time.After(time.Second): // NextStep's time limit may have passed
		}
	}
}

// enter sets the state of a template that is being made or fetched.
func (m *making) enter(state v1.TemplateState) {
	m.mu.Lock()
	m.state = state
	m.mu.Unlock()
}

// fetch fetches a template from other hosts of the trust group.
func (t *templates) fetch(ctx context.Context, key string, spec domain.Spec, order *v1.TemplateShare, group string, m *making) error {
	begun := time.Now()
	ctx, cancel := context.WithTimeout(ctx, sharing.WaitPatience)
	defer cancel()
	if err := os.MkdirAll(t.dir, 0o755); err != nil {
		return fmt.Errorf("fetch a template: %w", err)
	}
	packed := t.packedPath(key)
	err := t.agent.images.Fetch(ctx, order.Blob, packed, func(step string) { m.say("fetching a template: " + step) })
	if err == nil {
		m.say("unpacking a template")
		err = t.agent.images.Unpack(ctx, packed, t.path(key), int64(spec.MemoryBytes)+savedOverhead)
	}
	if err == nil {
		err = t.describe(key, templateInfo{Image: spec.ImageDigest, Group: group,
			Packed: &packedTemplate{order.Blob.GetDigest(), order.Blob.GetSize()}})
	}
	if err != nil {
		t.remove(key)
		return fmt.Errorf("fetch a template: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.group != group {
		t.remove(key)
		return fmt.Errorf("fetch a template: the host left trust group %s meanwhile", group)
	}
	t.log.Info("template fetched", "key", key, "seconds", time.Since(begun).Seconds(), "packed_bytes", order.Blob.GetSize())
	return nil
}

// pack packs a template for other hosts. Until pack ends, the host reports the template as being made.
func (t *templates) pack(ctx context.Context, key string) {
	defer t.agent.publish()
	begun := time.Now()
	blob, err := t.agent.images.Pack(ctx, t.path(key), t.packedPath(key))
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.packing, key)
	info := t.info(key)
	if info == nil { // the template was removed meanwhile
		os.Remove(t.packedPath(key))
		return
	}
	if err == nil {
		info.Packed = &packedTemplate{blob.Digest, blob.Size}
		err = t.writeInfo(key, *info)
	}
	if err != nil {
		t.log.Warn("a template is not shared", "key", key, "error", err)
		return
	}
	t.log.Info("template packed", "key", key, "seconds", time.Since(begun).Seconds(), "packed_bytes", blob.Size)
}
