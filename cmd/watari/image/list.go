package image

import (
	"context"
	"io"
	"strings"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
)

func newList(env *cli.Env) *cobra.Command {
	return cli.List[*v1.Image]{Things: "images", Short: "List the images", Example: "  watari image list",
		Get: func(ctx context.Context, c *client.Client) ([]*v1.Image, error) {
			return client.List(ctx, c.ListImages, &v1.ListImagesRequest{}, (*v1.ListImagesResponse).GetImages)
		},
		Table: table}.Command(env)
}

func table(w io.Writer, env *cli.Env, images []*v1.Image) {
	if len(images) == 0 {
		env.Notef("there are no images; make one with `watari image build`")
		return
	}
	t := output.NewTable("NAME", "DIGEST", "SIZE", "MPI", "FOR", "AGE", "SOURCE")
	for _, i := range images {
		t.Row(i.GetMeta().GetName(), output.Digest(i.GetDigest()), output.Size(size(i)), strings.Join(i.GetMpi(), ","), whose(i),
			output.Age(env.Now(), i.GetMeta().GetCreated()), i.GetSource())
	}
	t.Write(w)
}

// whose returns who may see and use an image, besides administrators.
func whose(i *v1.Image) string {
	if i.GetPrivate() {
		return i.GetMeta().GetOwner()
	}
	return "all users"
}

// size returns the size of all blobs together, in bytes.
func size(i *v1.Image) uint64 {
	return i.GetKernel().GetSize() + i.GetInitrd().GetSize() + i.GetRoot().GetSize()
}
