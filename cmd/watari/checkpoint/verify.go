package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/cmd/internal/progress"
)

func newVerify(env *cli.Env) *cobra.Command {
	var detach bool
	command := &cobra.Command{
		Use:   "verify CHECKPOINT",
		Short: "Look whether a checkpoint can be restored",
		Long: "Look whether a checkpoint can be restored. All hosts that have its files read them; one that is damaged is removed, and copied anew from another " +
			"host. Then a host restores one of the guests on trial, under another name and in a network of its own, and ends it; the guest does not run. " +
			"The cluster is not disturbed.\n\n" +
			"The latest checkpoint of each cluster, and the latest snapshot of each volume, is verified once a week by itself. Ctrl-C ends only the waiting.",
		Example: "  watari checkpoint verify md-c3",
		Args:    cli.Args("CHECKPOINT"), ValidArgsFunction: env.Complete(cli.Checkpoints),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("checkpoint", args[0]); err != nil {
				return err
			}
			response, err := c.VerifyCheckpoint(ctx, connect.NewRequest(&v1.VerifyCheckpointRequest{Name: args[0]}))
			if err != nil {
				return fmt.Errorf("verify checkpoint %s: %w", args[0], err)
			}
			if detach {
				return env.Done(response.Msg.Checkpoint, "checkpoint %s is being verified; see `watari checkpoint show %s`", args[0], args[0])
			}
			last, err := followVerification(ctx, env, c, args[0])
			if err != nil {
				return err
			}
			return env.Done(last, "checkpoint %s is whole: %s", args[0], trial(last.GetVerification()))
		}),
	}
	command.Flags().BoolVarP(&detach, "detach", "d", false, "return at once")
	return command
}

// followVerification shows the verification of a checkpoint until it has ended.
func followVerification(ctx context.Context, env *cli.Env, c *client.Client, name string) (last *v1.Checkpoint, err error) {
	err = progress.Follow(ctx, env, c, "checkpoint", name, func(now *v1.WatchResponse, lines *progress.Lines) (bool, error) {
		if now.Gone {
			return false, errors.New("it was deleted")
		}
		last = now.Checkpoint
		v := last.GetVerification()
		doing := "its files are read"
		if v.GetState() == v1.VerificationState_VERIFICATION_STATE_TRYING {
			doing = fmt.Sprintf("host %s restores guest %s on trial", v.GetHost(), v.GetGuest())
		}
		lines.Set(progress.Line{Key: name, Text: strings.TrimSuffix(fmt.Sprintf("checkpoint %s: %s: %s", name, doing, v.GetMessage()), ": ")})
		if v.GetState() == v1.VerificationState_VERIFICATION_STATE_FAILED {
			return false, errors.New(v.GetMessage())
		}
		return v.GetState() == v1.VerificationState_VERIFICATION_STATE_DONE, nil
	}, "verify checkpoint "+name, fmt.Sprintf("checkpoint %s is being verified; see `watari checkpoint show %s`", name, name))
	return last, err
}

// trial describes the result of a verification for people.
func trial(v *v1.Verification) string {
	switch {
	case v.GetMessage() != "":
		return "all its files were read; " + v.GetMessage()
	case v.GetGuest() != "":
		return fmt.Sprintf("all its files were read, and host %s has restored guest %s on trial", v.GetHost(), v.GetGuest())
	}
	return "all its files were read"
}

// verifiedText returns when a checkpoint was verified, for people; empty: never.
func verifiedText(env *cli.Env, v *v1.Verification) string {
	switch v.GetState() {
	case v1.VerificationState_VERIFICATION_STATE_UNSPECIFIED:
		return ""
	case v1.VerificationState_VERIFICATION_STATE_DONE:
		return output.Time(env.Now(), v.GetEnded()) + ": " + trial(v)
	case v1.VerificationState_VERIFICATION_STATE_FAILED:
		return output.Time(env.Now(), v.GetEnded()) + ": failed: " + v.GetMessage()
	}
	return strings.TrimSuffix("under way: "+v.GetMessage(), ": ")
}
