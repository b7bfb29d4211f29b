package image

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newList(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:               "list",
		Aliases:           []string{"ls"},
		Short:             "List the images",
		Example:           "  watari image list",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			images, err := client.List(ctx, c.ListImages, &v1.ListImagesRequest{}, (*v1.ListImagesResponse).GetImages)
			if err != nil {
				return fmt.Errorf("list images: %w", err)
			}
			return cli.ShowList(env, images, func(w io.Writer) { table(w, env, images) })
		}),
	}
}

func table(w io.Writer, env *cli.Env, images []*v1.Image) {
	if len(images) == 0 {
		env.Notef("there are no images; make one with `watari image build`")
		return
	}
	t := output.NewTable("NAME", "DIGEST", "SIZE", "MPI", "AGE", "SOURCE")
	for _, i := range images {
		t.Row(i.GetMeta().GetName(), output.Digest(i.GetDigest()), output.Size(size(i)), strings.Join(i.GetMpi(), ","),
			output.Age(env.Now(), i.GetMeta().GetCreated()), i.GetSource())
	}
	t.Write(w)
}

// size is that of all blobs together, bytes.
func size(i *v1.Image) uint64 {
	return i.GetKernel().GetSize() + i.GetInitrd().GetSize() + i.GetRoot().GetSize()
}
