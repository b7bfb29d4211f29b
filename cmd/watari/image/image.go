package image

// image.go - watari image.

import (
	"context"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

// New returns `watari image`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "image",
		Aliases: []string{"images"},
		Short:   "Images that guests boot: build, list, show, publish, remove",
		Long: "Guests boot an image: a kernel, an initial RAM file system and a read-only root, each identified by its " +
			"content's hash. Hosts fetch it from the manager when a guest needs it. Its owner alone sees and uses an image, and " +
			"administrators do, unless it is published.",
		Example: "  watari image list\n  watari image show mpi",
	}, BuildCommand(env), newList(env), newShow(env), newPublish(env), newRemove(env))
}

// get fetches one image.
func get(ctx context.Context, c *client.Client, name string) (*v1.Image, error) {
	return cli.Find("image", name, func() ([]*v1.Image, error) {
		return client.List(ctx, c.ListImages, &v1.ListImagesRequest{Name: name}, (*v1.ListImagesResponse).GetImages)
	})
}
