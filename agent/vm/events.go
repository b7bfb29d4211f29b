package vm

// events.go - passes on libvirt's events. It never blocks libvirt's event loop.

import (
	"sync"
	"time"

	"libvirt.org/go/libvirt"
)

// eventRoom is the number of waiting events after which one event without a uid replaces further ones.
const eventRoom = 1024

// eventQueue passes on events. Pushing never blocks. If the reader is too slow, the queue drops events, and sends an
// event without a uid instead: any domain may have changed.
type eventQueue struct {
	out chan Event

	lock    sync.Mutex
	dropped bool
	closed  bool
}

func newEventQueue() *eventQueue { return &eventQueue{out: make(chan Event, eventRoom)} }

func (q *eventQueue) push(e Event) {
	q.lock.Lock()
	defer q.lock.Unlock()
	if q.closed {
		return
	}
	// One place stays free for the event that replaces the dropped ones.
	if len(q.out) >= cap(q.out)-1 {
		if !q.dropped {
			q.dropped = true
			q.out <- Event{At: e.At}
		}
		return
	}
	q.dropped = false
	q.out <- e
}

func (q *eventQueue) close() {
	q.lock.Lock()
	defer q.lock.Unlock()
	q.closed = true
	close(q.out)
}

// registerEvents asks for the events of all domains, until unregister is called.
func (l *Libvirt) registerEvents(conn *libvirt.Connect) (unregister func(), err error) {
	var ids []int
	unregister = func() {
		for _, id := range ids {
			_ = conn.DomainEventDeregister(id)
		}
	}
	id, err := conn.DomainEventLifecycleRegister(nil, func(_ *libvirt.Connect, d *libvirt.Domain, event *libvirt.DomainEventLifecycle) {
		if uid, err := d.GetUUIDString(); err == nil {
			l.endings.note(uid, event.Event, event.Detail)
		}
		l.changed(d)
	})
	if err != nil {
		return unregister, err
	}
	ids = append(ids, id)
	id, err = conn.DomainEventJobCompletedRegister(nil, func(_ *libvirt.Connect, d *libvirt.Domain, event *libvirt.DomainEventJobCompleted) {
		if uid, err := d.GetUUIDString(); err == nil {
			l.finals.put(uid, &event.Info)
		}
		l.changed(d)
	})
	if err == nil {
		ids = append(ids, id)
	}
	return unregister, err
}

// changed passes on an event if its domain is one of Watari's. It does not call the daemon: name and UUID are part of
// the handle.
func (l *Libvirt) changed(d *libvirt.Domain) {
	name, err := d.GetName()
	if _, ours := guestName(name); err != nil || !ours {
		return
	}
	if uid, err := d.GetUUIDString(); err == nil {
		l.events.push(Event{UID: uid, At: time.Now()})
	}
}
