package agent

// template_share.go - how a template is come by: made here, waited for, or fetched from another host of the trust
// group.

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

// savedOverhead bounds how much larger a saved guest is than its memory, bytes: the state of its devices.
const savedOverhead = 256 << 20

// share takes up what the manager says about templates. Those fetched in a trust group that the host left are removed:
// the root of a host that is not trusted any more may be in them.
func (t *templates) share(w *v1.HostWanted) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// An agent that has just started does not know its last group.
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
	close(t.told)
	t.told = make(chan struct{})
}

// removeForeign removes the templates that were fetched in another group than the present one. t.mu is held.
func (t *templates) removeForeign() {
	for _, key := range t.described() {
		if info := t.info(key); info != nil && info.Group != "" && info.Group != t.group {
			t.remove(key)
			t.log.Info("template removed: the host left the trust group that it came from", "key", key, "group", info.Group)
		}
	}
}

// packAll packs the templates that are not packed yet: they were made while nobody was to fetch them, or the agent was
// killed meanwhile. t.mu is held.
func (t *templates) packAll() {
	for _, key := range t.described() {
		if info := t.info(key); info != nil && info.Packed == nil && t.making[key] == nil {
			t.packLocked(key)
		}
	}
}

// packLocked packs a template for other hosts, where there may be any. t.mu is held.
func (t *templates) packLocked(key string) {
	if t.sharing && t.group != "" && !t.packing[key] {
		t.packing[key] = true
		go t.pack(t.agent.ctx, key)
	}
}

// described are the keys of the templates that have a description.
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

// report is what the manager is told about templates, by key.
func (t *templates) report() []*v1.TemplateObserved {
	t.mu.Lock()
	defer t.mu.Unlock()
	seen := map[string]*v1.TemplateObserved{}
	for key, f := range t.failed {
		if time.Since(f.at) < templateRetry {
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

// obtain makes a template whole, as sharing.NextStep says.
func (t *templates) obtain(ctx context.Context, key string, spec domain.Spec, m *making) error {
	begun := time.Now()
	t.agent.publish() // the manager is to hear that it is wanted
	t.mu.Lock()
	failed := t.unusable[key]
	t.mu.Unlock()
	for {
		t.mu.Lock()
		order, told, sharingOn, group := t.orders[key], t.told, t.sharing, t.group
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
				continue // the manager has changed its mind
			}
			t.log.Warn("a template is made here, for it could not be fetched", "key", key, "error", err)
			failed = true
			continue
		}
		m.say("waiting for a template: " + cmp.Or(order.GetReason(), "the manager is asked"))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-told:
		case <-time.After(time.Second): // patience may have ended
		}
	}
}

// enter says what is being done about a template.
func (m *making) enter(state v1.TemplateState) {
	m.mu.Lock()
	m.state = state
	m.mu.Unlock()
}

// fetch gets a template from other hosts of the trust group.
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

// pack makes a template ready for other hosts. Until then the host reports that it is making it.
func (t *templates) pack(ctx context.Context, key string) {
	defer t.agent.publish()
	begun := time.Now()
	blob, err := t.agent.images.Pack(ctx, t.path(key), t.packedPath(key))
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.packing, key)
	info := t.info(key)
	if info == nil { // it was removed meanwhile
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
