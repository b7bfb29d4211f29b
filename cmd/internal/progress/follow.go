package progress

// follow.go - shows an object while a command waits for it.

import (
	"context"
	"errors"
	"fmt"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

// Follow calls each with an object's present state and then with each change, until each reports that the wait has ended, or
// returns an error. each sets the lines. doing names the wait in errors. continues says what goes on after Ctrl-C, which ends
// only the waiting, and where to look.
func Follow(ctx context.Context, env *cli.Env, c *client.Client, kind, name string, each func(now *v1.WatchResponse, lines *Lines) (ended bool, err error), doing, continues string) error {
	lines := New(env.Err)
	err := c.Watch(ctx, kind, name, lines.Trouble, func(now *v1.WatchResponse) (bool, error) { return each(now, lines) })
	if ctx.Err() != nil {
		lines.Keep()
		return cli.Interruptedf("stopped waiting: %s", continues)
	}
	lines.Clear()
	if err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

// FailedForGood returns an error if all guests of a cluster are stopped, or a guest has failed and will not be started again automatically.
func FailedForGood(now *v1.WatchResponse) error {
	if c := now.GetCluster(); c.GetState() == v1.ClusterState_CLUSTER_STATE_STOPPED {
		return errors.New(c.GetMessage())
	}
	for _, guest := range now.GetGuests() {
		if guest.GetState() == v1.GuestState_GUEST_STATE_FAILED && guest.GetFailure() != "" {
			return fmt.Errorf("guest %s: %s; its console: `watari guest console %[1]s`", guest.GetMeta().GetName(), guest.GetFailure())
		}
	}
	return nil
}
