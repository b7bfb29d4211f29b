package image

import (
	"context"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newPublish(env *cli.Env) *cobra.Command {
	return cli.Switch[*v1.Image]{Verb: "publish", Kind: "image", Short: "Let all users see and use an image, until --undo",
		Long: "Publish an image: all users see it and may make clusters of it, until --undo. Clusters that were made of it keep it. " +
			"Guests of one image are forked from one template, so they share what the kernel had drawn at random when it was booted.",
		Example: "  watari image publish mpi\n  watari image publish mpi --undo",
		Undo:    "make the image private again", Names: cli.Images,
		Set: func(ctx context.Context, c *client.Client, name string, undo bool) (*v1.Image, error) {
			response, err := c.PublishImage(ctx, connect.NewRequest(&v1.PublishImageRequest{Name: name, Undo: undo}))
			if err != nil {
				return nil, err
			}
			return response.Msg.Image, nil
		},
		Doing: "publish image %[1]s", Done: "image %[1]s is for all users",
		Undone: "image %[1]s is for its owner and administrators alone; clusters that were made of it keep it"}.Command(env)
}
