package image

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
)

func newPublish(env *cli.Env) *cobra.Command {
	var undo bool
	command := &cobra.Command{
		Use:   "publish IMAGE",
		Short: "Let all users see and use an image, until --undo",
		Long: "Publish an image: all users see it and may make clusters of it, until --undo. Clusters that were made of it keep it. " +
			"Guests of one image are forked from one template, so they share what the kernel had drawn at random when it was booted.",
		Example:           "  watari image publish mpi\n  watari image publish mpi --undo",
		Args:              cli.Args("IMAGE"),
		ValidArgsFunction: env.Complete(cli.Images),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			if err := cli.CheckName("image", args[0]); err != nil {
				return err
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			response, err := c.PublishImage(ctx, connect.NewRequest(&v1.PublishImageRequest{Name: args[0], Undo: undo}))
			if err != nil {
				return fmt.Errorf("publish image %s: %w", args[0], err)
			}
			if undo {
				return env.Done(response.Msg.Image, "image %s is for its owner and administrators alone; clusters that were made of it keep it", args[0])
			}
			return env.Done(response.Msg.Image, "image %s is for all users", args[0])
		}),
	}
	command.Flags().BoolVar(&undo, "undo", false, "make the image private again")
	return command
}
