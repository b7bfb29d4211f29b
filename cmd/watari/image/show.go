package image

import (
	"io"
	"strings"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
)

func newShow(env *cli.Env) *cobra.Command {
	return cli.Show[*v1.Image]{Word: "IMAGE", Short: "Show an image and its blobs",
		Example: "  watari image show mpi", Names: cli.Images, Get: get, Describe: showImage}.Command(env)
}

func showImage(w io.Writer, env *cli.Env, i *v1.Image) {
	blob := func(b *v1.Blob) string { return b.GetDigest() + ", " + output.Size(b.GetSize()) }
	pm := ""
	if i.GetPm() {
		pm = "yes"
	}
	output.Fields(w,
		[2]string{"name", i.GetMeta().GetName()},
		[2]string{"digest", i.GetDigest()},
		[2]string{"source", i.GetSource()},
		[2]string{"MPI", strings.Join(i.GetMpi(), ", ")},
		[2]string{"PM", pm},
		[2]string{"kernel", blob(i.GetKernel())},
		[2]string{"initrd", blob(i.GetInitrd())},
		[2]string{"root", i.GetRootType() + ", " + blob(i.GetRoot())},
		[2]string{"arguments", i.GetKernelArgs()},
		[2]string{"owner", i.GetMeta().GetOwner()},
		[2]string{"for", whose(i)},
		[2]string{"age", output.Age(env.Now(), i.GetMeta().GetCreated())},
	)
}
