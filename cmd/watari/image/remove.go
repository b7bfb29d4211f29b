package image

import (
	"context"
	"fmt"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
)

func newRemove(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "remove IMAGE",
		Aliases:           []string{"rm", "delete"},
		Short:             "Remove an image that no cluster uses",
		Example:           "  watari image remove mpi",
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
			if _, err := c.RemoveImage(ctx, connect.NewRequest(&v1.RemoveImageRequest{Name: args[0]})); err != nil {
				return fmt.Errorf("remove image %s: %w", args[0], err)
			}
			env.Notef("image %s is removed", args[0])
			return nil
		}),
	}
}
