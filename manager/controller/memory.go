package controller

// memory.go - tells people that a guest's memory ran out: by events, and by the message of a run that failed.

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/dustin/go-humanize"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/internal/printable"
	"watari/manager/session"
	"watari/manager/store"
	"watari/manager/view"
)

const (
	// memoryEventPause is the least time between two events of one guest about its memory.
	memoryEventPause = time.Minute
	// memoryEventAge is how old a kill may be of which people were not told: a manager that was started anew knows of no
	// event.
	memoryEventAge = 5 * time.Minute
	// memoryQuestion is how long the guests of a run that failed may take to say whether memory ran out.
	memoryQuestion = 3 * time.Second
	// memoryQuestions is how many of them are asked at a time.
	memoryQuestions = 32
	// memorySlack is how much earlier than a run's start a guest's kernel may have ended a process of the run: the
	// manager notes the start only when the process runs.
	memorySlack = 2 * time.Second
)

// memoryMessage says what became of a guest's memory. The name of the process comes from the guest.
func memoryMessage(guest string, o *v1.OutOfMemory) string {
	return fmt.Sprintf("guest %s ran out of memory: the kernel ended process %s (pid %d, %s); give the cluster more memory with --memory",
		guest, printable.Line(o.GetProcess(), 32), o.GetPid(), humanize.IBytes(o.GetBytes()))
}

// memoryTold is what people were told last of one guest's memory.
type memoryTold struct {
	kills uint64
	last  time.Time // of the last kill, by the guest's clock
	at    time.Time // when they were told
}

// memoryNews decides whether people are told now what a guest says of its memory. A guest that has moved says nothing
// until its new host has asked it.
func memoryNews(told memoryTold, o *v1.OutOfMemory, now time.Time) bool {
	last := o.GetAt().AsTime()
	same := o.GetKills() == told.kills && last.Sub(told.last).Abs() < memoryEventPause // a clock may have been set
	return o.GetKills() > 0 && !same && now.Sub(last) < memoryEventAge && now.Sub(told.at) >= memoryEventPause
}

// tellMemory makes events of what guests say of their memory.
func (c *Controller) tellMemory(ctx context.Context, s *store.Snapshot, now time.Time) {
	uids := map[string]bool{}
	for _, g := range s.Guests {
		uids[g.Meta.Uid] = true
	}
	maps.DeleteFunc(c.memory, func(uid string, _ memoryTold) bool { return !uids[uid] })
	for name, g := range s.Guests {
		report, _, _ := c.Sessions.Observed(g.Host)
		seen := view.GuestOn(report, g.Meta.Uid)
		o := seen.GetOutOfMemory()
		if !memoryNews(c.memory[g.Meta.Uid], o, now) {
			continue
		}
		c.memory[g.Meta.Uid] = memoryTold{o.GetKills(), o.GetAt().AsTime(), now}
		c.event(ctx, v1.Severity_SEVERITY_WARNING, "guest", name, "%s", memoryMessage(name, o))
	}
}

// ranOut says that memory ran out in a guest that ran a part of a run which has failed; empty: it did in none. The guests
// are asked now, for what hosts report of them may be some seconds old.
func (r *runner) ranOut(ctx context.Context, run *v1.Run) string {
	ctx, cancel := context.WithTimeout(ctx, memoryQuestion)
	defer cancel()
	s := r.c.Store.Snapshot()
	names := slices.Sorted(maps.Keys(run.StartedEpochs))
	messages := make([]string, len(names))
	turns := make(chan struct{}, memoryQuestions)
	var asked sync.WaitGroup
	for i, name := range names {
		asked.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			d, err := describe(ctx, s.Guests[name], r.c.Sessions)
			if err == nil && ranOutDuring(run, d, time.Now()) {
				messages[i] = memoryMessage(name, d.GetOutOfMemory())
			}
		})
	}
	asked.Wait()
	for _, message := range messages {
		if message != "" {
			return message
		}
	}
	return ""
}

// ranOutDuring: the guest's kernel ended a process since the run's start. Clocks of guest and manager may differ, so that
// ages are compared.
func ranOutDuring(run *v1.Run, d *v1.DescribeResponse, now time.Time) bool {
	if d.GetOutOfMemory().GetKills() == 0 {
		return false
	}
	age := d.GetNow().AsTime().Sub(d.GetOutOfMemory().GetAt().AsTime())
	return age <= now.Sub(run.GetStarted().AsTime())+memorySlack
}

// describe asks a guest how it is.
func describe(ctx context.Context, g *v1.Guest, sessions Sessions) (*v1.DescribeResponse, error) {
	client, err := sessions.HTTPClient(g.GetHost())
	if err != nil {
		return nil, err
	}
	guest := watariv1connect.NewGuestServiceClient(client, "http://agent/guest/"+g.GetMeta().GetUid(), session.GuestLimit())
	response, err := guest.Describe(ctx, connect.NewRequest(&v1.DescribeRequest{}))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}
