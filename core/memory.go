package core

// memory.go - tells people that a guest's memory ran out.

import (
	"fmt"
	"time"

	"github.com/dustin/go-humanize"

	v1 "watari/api/watariv1"
	"watari/internal/printable"
)

const (
	// memoryEventPause is the least time between two events of one guest about its memory.
	memoryEventPause = time.Minute
	// memoryEventAge is the greatest age of a kill for which an event is written. A manager that has restarted does not
	// know the earlier events.
	memoryEventAge = 5 * time.Minute
)

// MemoryMessage describes how a guest's memory ran out. The name of the process comes from the guest.
func MemoryMessage(guest string, o *v1.OutOfMemory) string {
	return fmt.Sprintf("guest %s ran out of memory: the kernel ended process %s (pid %d, %s); give the cluster more memory with --memory",
		guest, printable.Line(o.GetProcess(), 32), o.GetPid(), humanize.IBytes(o.GetBytes()))
}

// memoryTold is the last event about one guest's memory.
type memoryTold struct {
	kills uint64
	last  time.Time // of the last kill, by the guest's clock
	at    time.Time // of the event
}

// memoryEventDue reports whether a guest's message about its memory needs an event now. After a move there is no
// message until the new host has asked the guest.
func memoryEventDue(told memoryTold, o *v1.OutOfMemory, now time.Time) bool {
	last := o.GetAt().AsTime()
	same := o.GetKills() == told.kills && last.Sub(told.last).Abs() < memoryEventPause // the guest's clock may have been set
	return o.GetKills() > 0 && !same && now.Sub(last) < memoryEventAge && now.Sub(told.at) >= memoryEventPause
}

// outOfMemory writes events for guests' messages about their memory.
func (p *pass) outOfMemory() {
	for _, name := range p.index.guestNames() {
		g := p.Guests[name]
		if g == nil || p.full() {
			continue
		}
		report, _, _ := p.Observed(g.Host)
		o := GuestOn(report, g.Meta.Uid).GetOutOfMemory()
		told := p.memory[g.Meta.Uid]
		if !memoryEventDue(told, o, p.Now) {
			if later := told.at.Add(memoryEventPause); memoryEventDue(told, o, later) && p.Now.Before(later) {
				p.wake(name, later)
			}
			continue
		}
		p.memory[g.Meta.Uid] = memoryTold{o.GetKills(), o.GetAt().AsTime(), p.Now}
		var c Change
		c.event(v1.Severity_SEVERITY_WARNING, "guest", name, "%s", MemoryMessage(name, o))
		p.propose("memory/"+name, c)
	}
}
