package agent

// templates.go - makes, uses and removes the templates from which guests are forked.

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/hostlink"
)

// templateTimeout bounds the boot and the save of a template.
const templateTimeout = 6 * time.Minute

// templatePause bounds the pause after a failure to make a template.
const templatePause = 5 * time.Minute

// pauseAfter returns the pause after a failure, by how long the attempt took. A refusal costs little, and its cause may be gone soon.
func pauseAfter(took time.Duration) time.Duration {
	return min(max(10*took, 5*time.Second), templatePause)
}

// mostTemplates is how many templates a host keeps. It removes the least recently used ones.
const mostTemplates = 16

// templates keeps one template for each image, shape and kind of host: a guest that was booted and saved without an
// identity. Guests are restored from it. A template is made on first use; concurrent callers share one making. All guests of
// a template share the random numbers that its kernel drew at boot, so users share a template only of a published image.
type templates struct {
	agent *Agent
	dir   string
	log   *slog.Logger

	mu          sync.Mutex
	making      map[string]*making
	temporaries map[string]bool // keys under way
	failed      map[string]failedMaking
	// unusable are templates that were fetched and could not be restored. This host makes them itself.
	unusable  map[string]bool
	packing   map[string]bool              // made, and being packed for other hosts
	sharing   bool                         // the manager decides which host makes which template
	group     string                       // this host's trust group
	grouped   bool                         // the manager has named the group
	orders    map[string]*v1.TemplateShare // the manager's orders, by key
	reordered chan struct{}                // closed when the orders are replaced
}

// making is a template that is being made or fetched.
type making struct {
	done chan struct{}
	err  error

	mu    sync.Mutex
	step  string
	state v1.TemplateState // WANTED or MAKING
}

type failedMaking struct {
	until time.Time // until then, guests are booted plainly
	err   error
	spec  domain.Spec // of the guest that needed the template
}

func newTemplates(a *Agent) *templates {
	return &templates{agent: a, dir: filepath.Join(a.config.StateDir, "templates"), log: a.log,
		making: map[string]*making{}, temporaries: map[string]bool{}, failed: map[string]failedMaking{}, unusable: map[string]bool{}, packing: map[string]bool{}, reordered: make(chan struct{})}
}

// ensure returns the path of the template for guests like spec.
func (t *templates) ensure(ctx context.Context, spec domain.Spec, step func(string)) (string, error) {
	key := t.agent.hypervisor.TemplateKey(spec)
	if key == "" {
		return "", errors.New("the hypervisor cannot restore templates")
	}
	t.mu.Lock()
	if t.whole(key) {
		t.used(key)
		t.mu.Unlock()
		return t.path(key), nil
	}
	if f, ok := t.failed[key]; ok && time.Now().Before(f.until) && t.orders[key].GetOrder() != v1.TemplateOrder_TEMPLATE_ORDER_FETCH {
		t.mu.Unlock()
		return "", f.err
	}
	m := t.making[key]
	if m == nil {
		m = &making{done: make(chan struct{}), state: v1.TemplateState_TEMPLATE_STATE_WANTED}
		t.making[key] = m
		go t.obtainShared(key, spec, m)
	}
	t.mu.Unlock()
	tick := time.NewTicker(250 * time.Millisecond)
	defer tick.Stop()
	for {
		m.mu.Lock()
		doing := m.step
		m.mu.Unlock()
		step(doing) // without m.mu: step takes the agent's lock, and holders of that lock take the templates' locks
		select {
		case <-m.done:
			if m.err != nil {
				return "", m.err
			}
			return t.path(key), nil
		case <-ctx.Done():
			return "", ctx.Err()
		case <-tick.C:
		}
	}
}

func (t *templates) obtainShared(key string, spec domain.Spec, m *making) {
	began := time.Now()
	m.err = t.obtain(t.agent.ctx, key, spec, m)
	t.mu.Lock()
	delete(t.making, key)
	delete(t.failed, key)
	if m.err != nil && t.agent.ctx.Err() == nil {
		t.failed[key] = failedMaking{time.Now().Add(pauseAfter(time.Since(began))), m.err, spec}
		t.log.Error("make a template", "key", key, "error", m.err)
	}
	t.bound()
	t.mu.Unlock()
	close(m.done)
	t.agent.publish()
}

func (m *making) say(step string) {
	m.mu.Lock()
	m.step = step
	m.mu.Unlock()
}

// make boots a guest without identity, waits until its agent answers, and saves it.
func (t *templates) make(ctx context.Context, key string, spec domain.Spec, m *making) error {
	ctx, cancel := context.WithTimeout(ctx, templateTimeout)
	defer cancel()
	begun, a := time.Now(), t.agent
	spec.Console = filepath.Join(t.dir, key+".console.log")
	err := t.temporary(ctx, key, func(uid string) (err error) {
		spec.UID, spec.Name, spec.Channel = uid, domain.TemplatePrefix+uid[:8], a.channelSocket(uid)
		m.say("making a template: plugging it in")
		spec.Tap, err = a.network.PlugGuest(ctx, machine.Tap{UID: uid, Cluster: "template", Address: templateAddress,
			Prefix: templatePrefix4, MAC: templateMAC}, 0)
		if err != nil {
			return fmt.Errorf("plug its tap: %w", err)
		}
		spec.KernelArgs = strings.TrimSpace(spec.KernelArgs + " watari.template=1")
		m.say("making a template: booting it")
		if err := a.hypervisor.Boot(ctx, spec); err != nil {
			return err
		}
		if err := t.awaitAgent(ctx, uid, spec.Channel); err != nil {
			return err
		}
		m.say("making a template: saving it")
		return a.hypervisor.SaveTemplate(ctx, uid, t.path(key))
	})
	if err != nil {
		return fmt.Errorf("make a template: %w", err)
	}
	took := time.Since(begun)
	if err := t.describe(key, templateInfo{Image: spec.ImageDigest, MakingMS: uint32(took.Milliseconds())}); err != nil {
		return fmt.Errorf("make a template: %w", err)
	}
	t.log.Info("template made", "key", key, "seconds", took.Seconds())
	return nil
}

// temporary calls use with a uid. use may make a domain that is no guest, with that uid and a name with
// domain.TemplatePrefix. All remains of the domain are removed afterwards, or by the next agent. No two calls with the same
// key may be under way.
func (t *templates) temporary(ctx context.Context, key string, use func(uid string) error) error {
	t.mu.Lock()
	t.temporaries[key] = true
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		delete(t.temporaries, key)
		t.mu.Unlock()
	}()
	uid := templateUID(key)
	if err := errors.Join(os.MkdirAll(t.dir, 0o755), os.MkdirAll(t.agent.guestRunDir(uid), 0o755)); err != nil {
		return err
	}
	// The next agent finds the remains after a crash by this mark.
	mark := t.mark(uid)
	if err := writeFile(mark, []byte(key+"\n")); err != nil {
		return err
	}
	defer t.cleanOne(context.WithoutCancel(ctx), uid, mark)
	_ = t.agent.hypervisor.Destroy(ctx, uid)
	return use(uid)
}

// mark returns the path of the file that says that a temporary guest is in use.
func (t *templates) mark(uid string) string { return filepath.Join(t.dir, uid+".making") }

// unfinished reports whether clean is going to remove a temporary guest, or whether it is in use.
func (t *templates) unfinished(uid string) bool {
	_, err := os.Stat(t.mark(uid))
	return err == nil
}

// The addresses of the template's network: addresses for documentation (RFC 5737), to which no host routes.
const (
	templateAddress = "192.0.2.2"
	templatePrefix4 = "192.0.2.0/24"
	templateMAC     = "02:77:c0:00:02:02"
)

// awaitAgent waits until the guest's agent answers.
func (t *templates) awaitAgent(ctx context.Context, uid, socket string) error {
	channel := t.agent.config.Dial(uid, socket)
	defer channel.Close()
	client := watariv1connect.NewGuestServiceClient(&http.Client{Transport: channel}, "http://guest", hostlink.GuestLimit())
	for {
		askCtx, cancel := context.WithTimeout(ctx, askTimeout)
		_, err := client.Describe(askCtx, connect.NewRequest(&v1.DescribeRequest{}))
		cancel()
		if err == nil {
			return nil
		}
		if t.agent.missing(uid) {
			if list, err := t.agent.hypervisor.List(ctx); err == nil && !slices.ContainsFunc(list, func(d domain.Info) bool { return d.UID == uid }) {
				return errors.New("the booted guest ended by itself")
			}
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("the booted guest's agent did not answer: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// cleanOne removes everything that the making of a template leaves, except the template.
func (t *templates) cleanOne(ctx context.Context, uid, mark string) {
	a := t.agent
	err := a.hypervisor.Destroy(ctx, uid)
	err = errors.Join(err, a.network.UnplugGuest(ctx, uid), os.RemoveAll(a.guestRunDir(uid)))
	if err == nil {
		err = os.Remove(mark)
	}
	if err != nil {
		t.log.Error("clean up after a template", "uid", uid, "error", err)
	}
}

// clean removes the remains of unfinished templates, and templates without a description.
func (t *templates) clean(ctx context.Context) {
	entries, _ := os.ReadDir(t.dir)
	for _, entry := range entries {
		name := entry.Name()
		uid, unfinished := strings.CutSuffix(name, ".making")
		if unfinished {
			key, _ := os.ReadFile(filepath.Join(t.dir, name))
			t.mu.Lock()
			busy := t.temporaries[strings.TrimSpace(string(key))]
			t.mu.Unlock()
			if !busy {
				t.cleanOne(ctx, uid, t.mark(uid))
			}
		}
		if key, ok := strings.CutSuffix(name, ".save"); ok {
			t.mu.Lock()
			if t.making[key] == nil && !t.whole(key) {
				t.remove(key)
				t.log.Info("template discarded: it is damaged, or another version's", "key", key)
			}
			t.mu.Unlock()
		}
		if key, ok := strings.CutSuffix(name, ".zst"); ok {
			t.mu.Lock()
			if t.making[key] == nil && !t.packing[key] && t.info(key) == nil {
				t.remove(key)
			}
			t.mu.Unlock()
		}
	}
}

// sweep removes unfinished files of a killed agent: partial templates, and the copies from which guests were being
// restored. The caller calls it before this agent makes any. libvirt keeps a file open while it reads it, so the
// removal does not harm a restore.
func (t *templates) sweep() {
	entries, _ := os.ReadDir(t.dir)
	for _, entry := range entries {
		if !strings.Contains(entry.Name(), ".save.") && !strings.HasSuffix(entry.Name(), ".zst.part") {
			continue
		}
		if err := os.Remove(filepath.Join(t.dir, entry.Name())); err != nil {
			t.log.Warn("clean up after a template", "error", err)
		}
	}
}

// discard removes a template that could not be restored.
func (t *templates) discard(path string) {
	key := strings.TrimSuffix(filepath.Base(path), ".save")
	t.mu.Lock()
	defer t.mu.Unlock()
	if info := t.info(key); info != nil && info.Group != "" {
		t.unusable[key] = true
	}
	t.remove(key)
	t.log.Warn("template discarded", "key", key)
}

// prune removes the templates of images that this host no longer holds, and those that exceed mostTemplates.
func (t *templates) prune(images []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, key := range t.described() {
		if info := t.info(key); t.making[key] == nil && (info == nil || !slices.Contains(images, info.Image)) {
			t.drop(key)
		}
	}
	t.bound()
}

// bound removes the templates that exceed mostTemplates, except those that are being made or packed. t.mu is held.
func (t *templates) bound() {
	used := map[string]time.Time{} // by key: the last use
	for _, key := range t.described() {
		if stat, err := os.Stat(t.infoPath(key)); err == nil && t.making[key] == nil && !t.packing[key] {
			used[key] = stat.ModTime()
		}
	}
	latest := slices.SortedFunc(maps.Keys(used), func(a, b string) int { return used[b].Compare(used[a]) })
	for _, key := range latest[min(mostTemplates, len(latest)):] {
		t.drop(key)
	}
}

// used records that a template is being used.
func (t *templates) used(key string) {
	now := time.Now()
	_ = os.Chtimes(t.infoPath(key), now, now) // if it fails, the template is only removed earlier
}

// drop removes a template and the console of its making.
func (t *templates) drop(key string) {
	t.remove(key)
	os.Remove(filepath.Join(t.dir, key+".console.log"))
	t.log.Info("template removed", "key", key)
}

// problems returns the failures of templates that a guest needs. The failure of a template that no guest needs is no
// problem, but is kept until the template may be tried again. A host without guests forgets all failures, because their
// cause, such as files of earlier guests, may be gone.
func (t *templates) problems(guests []machine.View) []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []string
	if len(guests) == 0 {
		clear(t.failed)
	}
	for key, f := range t.failed {
		if slices.ContainsFunc(guests, func(g machine.View) bool { return forksLike(g, f.spec) }) {
			list = append(list, "guests are booted plainly: "+f.err.Error())
		} else if time.Now().After(f.until) {
			delete(t.failed, key)
		}
	}
	slices.Sort(list)
	return list
}

// forksLike reports whether the orders want a guest here that is forked from the same template as guests like spec.
func forksLike(g machine.View, spec domain.Spec) bool {
	w := g.Wanted
	return w.GetRole() == v1.GuestRole_GUEST_ROLE_RUN && !w.NoFork && w.GetImage().GetDigest() == spec.ImageDigest &&
		w.GetShape().GetVcpus() == spec.VCPUs && w.GetShape().GetMemoryBytes() == spec.MemoryBytes
}

// templateUID returns the uid of the domain from which a template is made: a UUID (version 8, RFC 9562) derived from
// the template's key.
func templateUID(key string) string {
	sum := sha256.Sum256([]byte("watari template " + key))
	sum[6] = sum[6]&0x0f | 0x80
	sum[8] = sum[8]&0x3f | 0x80
	h := hex.EncodeToString(sum[:16])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
