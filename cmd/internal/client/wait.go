package client

import (
	"context"
	"time"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
)

const (
	firstPause = 200 * time.Millisecond
	longPause  = 2 * time.Second
	// patience is how long a command waits while no manager answers.
	patience = 5 * time.Minute
)

// Patiently repeats a read that fails for a temporary reason. It ends when the read succeeds or fails for good, when
// ctx ends, or when no attempt has made progress for five minutes. notice, if not nil, is called with each failure. An
// attempt that calls alive, or lasts longer than that, has made progress until its end.
func (c *Client) Patiently(ctx context.Context, notice func(error), attempt func(alive func()) error) error {
	pause, since := firstPause, time.Now()
	for {
		begun, reached := time.Now(), false
		err := attempt(func() { pause, since, reached = firstPause, time.Now(), true })
		if reached || time.Since(begun) > patience {
			since = time.Now() // the connection stood until now, though nothing came
		}
		if err == nil || ctx.Err() != nil || !Transient(err) || time.Since(since) > patience {
			return err
		}
		if notice != nil {
			notice(err)
		}
		if connect.CodeOf(err) == connect.CodeUnavailable { // as nextManager does for calls that are no streams
			c.transport.rotate(leaderOf(err))
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
		pause = min(2*pause, longPause)
	}
}

// Watch calls see with an object now and after each change, until see returns done or an error. It continues after a
// restart of the manager.
func (c *Client) Watch(ctx context.Context, kind, name string, notice func(error), see func(*v1.WatchResponse) (done bool, err error)) error {
	return c.Patiently(ctx, notice, func(alive func()) error {
		stream, err := c.ControlServiceClient.Watch(ctx, connect.NewRequest(&v1.WatchRequest{Kind: kind, Name: name}))
		if err != nil {
			return err
		}
		defer stream.Close()
		for stream.Receive() {
			alive()
			if done, err := see(stream.Msg()); done || err != nil {
				return err
			}
		}
		if err := stream.Err(); err != nil {
			return err
		}
		return connect.NewError(connect.CodeUnavailable, errStreamEnded)
	})
}
