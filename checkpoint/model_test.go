package checkpoint

import (
	"testing"
	"time"

	v1 "watari/api/watariv1"
)

// The model: two hosts with a guest each, or one with a guest and one with its volume. Orders and reports are delivered
// late, repeatedly, or never. Agents, guests, hosts, and the processes that stop guests (holders) die at any moment, and a
// holder's time ends at any moment. All orders of events are explored. A checkpoint is never done unless its cut is
// consistent. Once nothing fails any more, every living guest runs, and the record has ended.

type guestState uint8

const (
	runs guestState = iota
	stands
	dead
)

type holderState uint8

const (
	noHolder holderState = iota
	idle
	holding  // it has stopped the guest, and its time runs
	kept     // it has confirmed that the guest stood
	released // it has let the guest go on
)

type cutState uint8

const (
	noSnapshot cutState = iota
	good                // the guest stood, and every other guest stood or had a good snapshot
	bad
)

// begun is a phase of the agent between two acts. The agent then reports STOPPED.
const begun v1.CheckpointPhase = 100

type modelHost struct {
	guest    guestState
	holder   holderState
	snapshot cutState
	written  bool // the file is on disk
	agent    bool // the agent lives
	dead     bool // the host is dead
	volume   bool // the host has the volume and no guest; snapshot is that of the copy
	phase    v1.CheckpointPhase
	order    v1.CheckpointOrder // last delivered
	heard    v1.CheckpointPhase // last reported
}

type world struct {
	state  v1.CheckpointState
	cancel bool
	hosts  [2]modelHost
}

func newWorld(volume bool) world {
	return world{state: v1.CheckpointState_CHECKPOINT_STATE_PENDING, hosts: [2]modelHost{{agent: true}, {agent: true, volume: volume}}}
}

// act makes the agent of a host carry out one act for its order.
func (w *world) act(i int) {
	h := &w.hosts[i]
	if !h.agent {
		return
	}
	fail := func() {
		h.phase = v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED
		h.release()
		h.holder = noHolder
	}
	if h.phase == v1.CheckpointPhase_CHECKPOINT_PHASE_FAILED {
		return
	}
	if h.written && h.order == v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE {
		h.phase = v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN
		return
	}
	if h.volume {
		w.actOnVolume(i, fail)
		return
	}
	// The agent notices the death of its holder, and of the guest.
	if h.guest == dead && !h.written && h.order != 0 ||
		h.phase == v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED && h.holder == noHolder {
		fail()
		return
	}
	switch h.order {
	case v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE:
		if h.phase == 0 && h.holder == noHolder {
			h.phase, h.holder = v1.CheckpointPhase_CHECKPOINT_PHASE_READY, idle
		}
	case v1.CheckpointOrder_CHECKPOINT_ORDER_STOP:
		switch {
		case h.phase == 0, h.phase == v1.CheckpointPhase_CHECKPOINT_PHASE_READY && h.holder == noHolder:
			fail()
		case h.phase == v1.CheckpointPhase_CHECKPOINT_PHASE_READY:
			h.phase, h.holder, h.guest = v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED, holding, stands
		}
	case v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE:
		w.take(i, fail)
	case v1.CheckpointOrder_CHECKPOINT_ORDER_DISCARD:
		fail()
		h.written = false
	}
}

// actOnVolume makes the agent of the volume's host carry out one act.
func (w *world) actOnVolume(i int, fail func()) {
	h := &w.hosts[i]
	switch {
	case h.order == v1.CheckpointOrder_CHECKPOINT_ORDER_DISCARD:
		fail()
		h.written = false
	case h.phase == 0 && h.order == v1.CheckpointOrder_CHECKPOINT_ORDER_PREPARE:
		h.phase = ready
	case h.order != v1.CheckpointOrder_CHECKPOINT_ORDER_TAKE:
	case h.phase == 0:
		fail()
	case h.phase == ready:
		h.phase, h.snapshot = taken, bad
		if w.hosts[1-i].guest == stands {
			h.snapshot = good
		}
	case h.phase == taken:
		h.phase, h.written = written, true
	}
}

func (w *world) take(i int, fail func()) {
	h := &w.hosts[i]
	switch h.phase {
	case 0, v1.CheckpointPhase_CHECKPOINT_PHASE_READY:
		fail()
	case v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED:
		other := w.hosts[1-i]
		h.snapshot = bad
		if h.guest == stands && (other.guest == stands || other.snapshot == good) {
			h.snapshot = good
		}
		h.guest, h.phase = runs, begun
	case begun:
		if h.holder != holding {
			fail()
			return
		}
		h.holder, h.phase = kept, v1.CheckpointPhase_CHECKPOINT_PHASE_TAKEN
	case v1.CheckpointPhase_CHECKPOINT_PHASE_TAKEN:
		h.written, h.phase = true, v1.CheckpointPhase_CHECKPOINT_PHASE_WRITTEN
	}
}

func (h *modelHost) release() {
	if h.guest == stands {
		h.guest = runs
	}
}

func (h *modelHost) report() {
	if h.agent {
		if h.heard = h.phase; h.phase == begun {
			h.heard = v1.CheckpointPhase_CHECKPOINT_PHASE_STOPPED
		}
	}
}

// timeOver is the end of the holder's time, or of its input.
func (h *modelHost) timeOver() {
	switch {
	case !h.agent && h.holder != noHolder:
		h.release()
		h.holder = noHolder
	case h.holder == holding:
		h.release()
		h.holder = released
	}
}

func (h *modelHost) killAgent() { h.agent, h.phase, h.order = false, 0, 0 }

func (h *modelHost) startAgent() {
	if !h.agent && !h.dead {
		h.agent = true
		h.release() // the holder finds the pipe
		h.timeOver()
	}
}

func (h *modelHost) deliver(state v1.CheckpointState) {
	switch {
	case !h.agent:
	case h.volume:
		h.order = VolumeOrder(state)
	default:
		h.order = Order(state)
	}
}

func (w *world) step(t *testing.T, patience time.Duration) {
	c := &v1.Checkpoint{State: w.state, Cancel: w.cancel}
	o := Observed{Turn: true, InState: patience}
	for i, h := range w.hosts {
		seen := Member{Connected: h.agent, Away: patience, Ended: h.dead, Running: h.guest == runs,
			Report: &v1.CheckpointObserved{Phase: h.heard}}
		record := &v1.CheckpointMember{Guest: []string{"md-0", "md-1"}[i], Host: []string{"a1", "b1"}[i]}
		if h.volume {
			c.Volume, o.Volume = record, &seen
			continue
		}
		c.Members, o.Members = append(c.Members, record), append(o.Members, seen)
	}
	before := w.state
	w.state = Step(c, o).State
	if w.state != before && w.state == v1.CheckpointState_CHECKPOINT_STATE_DONE {
		for _, h := range w.hosts {
			if h.snapshot != good || !h.written {
				t.Fatalf("done with %+v", w.hosts)
			}
		}
	}
}

// events returns the worlds after each possible next event.
func (w world) events(t *testing.T) (next []world) {
	add := func(change func(*world)) {
		n := w
		if change(&n); n != w {
			next = append(next, n)
		}
	}
	add(func(n *world) { n.step(t, 0) })
	add(func(n *world) { n.step(t, time.Hour) })
	add(func(n *world) { n.cancel = true })
	for i := range w.hosts {
		add(func(n *world) { n.hosts[i].deliver(n.state) })
		add(func(n *world) { n.act(i) })
		add(func(n *world) { n.hosts[i].report() })
		add(func(n *world) { n.hosts[i].timeOver() })
		add(func(n *world) { n.hosts[i].killAgent() })
		add(func(n *world) { n.hosts[i].startAgent() })
		add(func(n *world) { n.hosts[i].holder = noHolder }) // the holder is killed
		add(func(n *world) {
			if !n.hosts[i].volume {
				n.hosts[i].guest = dead
			}
		})
		add(func(n *world) {
			h := &n.hosts[i]
			*h = modelHost{guest: dead, dead: true, volume: h.volume, snapshot: h.snapshot, written: h.written}
		})
	}
	return next
}

// key is a number for each state of a host.
func (h modelHost) key() (k uint64) {
	flag := func(b bool) uint64 {
		if b {
			return 1
		}
		return 0
	}
	for _, v := range []uint64{uint64(h.guest), uint64(h.holder), uint64(h.snapshot), flag(h.written), flag(h.agent), flag(h.dead),
		uint64(h.phase), uint64(h.order), uint64(h.heard)} {
		k = k<<7 | v
	}
	return k
}

// sorted exchanges the hosts if necessary: both are alike, so half of the worlds suffice.
func (w world) sorted() world {
	if !w.hosts[1].volume && w.hosts[1].key() < w.hosts[0].key() {
		w.hosts[0], w.hosts[1] = w.hosts[1], w.hosts[0]
	}
	return w
}

// calm delivers everything, without faults, until nothing changes.
func (w world) calm(t *testing.T) world {
	for range 20 {
		for i := range w.hosts {
			h := &w.hosts[i]
			h.startAgent()
			if !h.agent {
				h.timeOver()
			}
			h.deliver(w.state)
			w.act(i)
			h.report()
		}
		w.step(t, 0)
	}
	w.step(t, time.Hour)
	for i := range w.hosts {
		w.hosts[i].timeOver()
		w.hosts[i].deliver(w.state)
		w.act(i)
	}
	return w
}

func TestACutIsConsistentOrNotDone(t *testing.T) {
	for name, volume := range map[string]bool{"two guests": false, "a guest and a volume": true} {
		t.Run(name, func(t *testing.T) { explore(t, newWorld(volume)) })
	}
}

func explore(t *testing.T, begin world) {
	if end := begin.calm(t); end.state != v1.CheckpointState_CHECKPOINT_STATE_DONE {
		t.Fatalf("undisturbed, it ends as %+v", end)
	}
	seen, todo, done := map[world]bool{begin: true}, []world{begin}, 0
	for len(todo) > 0 {
		w := todo[len(todo)-1]
		todo = todo[:len(todo)-1]
		if w.state == v1.CheckpointState_CHECKPOINT_STATE_DONE {
			done++
		}
		end := w.calm(t)
		for _, h := range end.hosts {
			if h.guest == stands {
				t.Fatalf("a guest stands for ever, from %+v to %+v", w, end)
			}
		}
		if !Ended(end.state) {
			t.Fatalf("stuck in %v, from %+v to %+v", end.state, w, end)
		}
		for _, n := range w.events(t) {
			if n = n.sorted(); !seen[n] {
				seen[n] = true
				todo = append(todo, n)
			}
		}
	}
	t.Logf("%d worlds, in %d of which it is done", len(seen), done)
}
