package controller

// memory.go - asks the guests of a failed run whether they ran out of memory.

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
	"watari/core"
	"watari/hostlink"
)

const (
	// memoryQuestion is the time limit of the question whether memory ran out.
	memoryQuestion = 3 * time.Second
	// memoryQuestions is the number of guests that are asked concurrently.
	memoryQuestions = 32
	// memorySlack is the time before a run's start at which a guest's kernel may have killed a process of the run. The
	// manager records the start only when the process already runs.
	memorySlack = 2 * time.Second
)

// ranOut names the guest of a failed run that ran out of memory; empty: none. It asks the guests, because hosts' reports
// about them may be some seconds old.
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
				messages[i] = core.MemoryMessage(name, d.GetOutOfMemory())
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

// ranOutDuring reports whether the guest's kernel has killed a process since the run's start. It compares ages, because
// the clocks of guest and manager may differ.
func ranOutDuring(run *v1.Run, d *v1.DescribeResponse, now time.Time) bool {
	if d.GetOutOfMemory().GetKills() == 0 {
		return false
	}
	age := d.GetNow().AsTime().Sub(d.GetOutOfMemory().GetAt().AsTime())
	since := cmp.Or(run.GetStarted(), run.GetMeta().GetCreated()) // a run that could not be started has no start
	return age <= now.Sub(since.AsTime())+memorySlack
}

// describe asks a guest for its state.
func describe(ctx context.Context, g *v1.Guest, sessions Sessions) (*v1.DescribeResponse, error) {
	client, err := sessions.HTTPClient(g.GetHost())
	if err != nil {
		return nil, err
	}
	guest := watariv1connect.NewGuestServiceClient(client, hostlink.GuestURL(g.GetMeta().GetUid()), hostlink.GuestLimit())
	response, err := guest.Describe(ctx, connect.NewRequest(&v1.DescribeRequest{}))
	if err != nil {
		return nil, err
	}
	return response.Msg, nil
}
