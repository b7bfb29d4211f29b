package image

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newRemove(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "remove IMAGE",
		Aliases:           []string{"rm", "delete"},
		Short:             "Remove an image that no cluster uses",
		Example:           "  watari image remove mpi",
		Args:              cli.Args("IMAGE"),
		ValidArgsFunction: env.Complete(cli.Images),
		RunE: env.Removal("image", func(ctx context.Context, c *client.Client, name string) error {
			_, err := c.RemoveImage(ctx, connect.NewRequest(&v1.RemoveImageRequest{Name: name}))
			return err
		}),
	}
}
