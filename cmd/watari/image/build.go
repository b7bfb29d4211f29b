// Package image holds the commands about images.
package image

// build.go - watari image build.

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/guest/image"
)

// buildOptions are the flags of watari image build.
type buildOptions struct {
	packages  []string
	additions []string
	recipe    image.Recipe
	outputDir string
	publish   bool
}

// BuildCommand returns `watari image build`.
func BuildCommand(env *cli.Env) *cobra.Command {
	var o buildOptions
	command := &cobra.Command{
		Use:   "build NAME",
		Short: "Build an image from Debian packages, a directory tree or an OCI archive",
		Long: "Build an image (a kernel, an initial RAM file system with the guest agent, and a read-only root) " +
			"and upload it to the manager.",
		Example: "  watari image build mpi --packages openmpi-bin,lammps\n" +
			"  watari image build mine --tree ./rootfs\n" +
			"  watari image build app --oci app.tar --add ./input:/opt/input",
		Args: cli.Args("NAME"),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			return o.run(ctx, env, args[0])
		}),
	}
	flags := command.Flags()
	flags.StringSliceVar(&o.packages, "packages", nil, "Debian packages to install, from this machine's apt sources")
	flags.StringVar(&o.recipe.Suite, "suite", "", "Debian release of packages and kernel: "+strings.Join(image.Suites, " or ")+" (default: this machine's)")
	flags.StringVar(&o.recipe.Tree, "tree", "", "directory that becomes the root without changes")
	flags.StringVar(&o.recipe.OCI, "oci", "", "OCI or docker archive (a tar file) whose layers become the root")
	flags.StringArrayVar(&o.additions, "add", nil, "SOURCE:DESTINATION: copy a file or directory into the root; may be repeated")
	flags.StringVar(&o.recipe.KernelPackage, "kernel-package", "", "Debian package of the kernel (default: the root's own kernel, or else "+image.DefaultKernelPackage+")")
	flags.StringVar(&o.recipe.KernelArgs, "kernel-args", "", "arguments to append to the kernel's command line")
	flags.StringVar(&o.recipe.GuestAgent, "guest-agent", "", "path of watari-guest, which has watari-guest-rsh beside it (default: beside this program)")
	flags.StringVar(&o.recipe.PM, "pm", "", "path of PM's libfabric provider, libpm-fi.so, for runs over PM (default: beside this program, if it exists); none: without PM")
	flags.StringVar(&o.recipe.Cache, "cache", image.DefaultCache, "directory in which packages, roots and kernels are kept for later builds")
	flags.BoolVar(&o.recipe.Force, "force", false, "ignore cached results and use the latest versions of packages")
	flags.BoolVar(&o.publish, "publish", false, "let all users see and use the image (default: you and administrators; an image that is published stays so)")
	flags.StringVar(&o.outputDir, "output-dir", "", "write the image to this directory instead of uploading it")
	command.ValidArgsFunction = env.Complete(cli.Images)
	cli.CompleteFolders(command, "tree", "cache", "output-dir")
	cli.CompleteFiles(command, "oci", "add", "guest-agent", "pm")
	return command
}

func (o *buildOptions) run(ctx context.Context, env *cli.Env, name string) error {
	if err := cli.CheckName("image", name); err != nil {
		return err
	}
	recipe, err := o.complete()
	if err != nil {
		return err
	}
	folder := o.outputDir
	if folder == "" {
		if _, err := env.Client(); err != nil { // fails before minutes of work
			return err
		}
		if folder, err = image.OutputFolder(recipe.Cache); err != nil {
			return fmt.Errorf("build image %s: %w", name, err)
		}
		defer os.RemoveAll(folder)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return fmt.Errorf("output folder: %w", err)
	}
	if len(recipe.Packages) > 0 {
		env.Notef("note: the packages' scripts run as this machine's root; build only from sources that you trust with it")
	}
	began := time.Now()
	show := newBuildProgress(env.Err)
	built, err := image.Build(ctx, recipe, folder, show.update)
	show.end()
	if err != nil {
		return fmt.Errorf("build image %s: %w", name, err)
	}
	if o.outputDir == "" {
		if built, err = upload(ctx, env, name, built, folder, o.publish); err != nil {
			return err
		}
	}
	return env.Show(built, func(io.Writer) { env.Notef("%s", describe(name, built, time.Since(began))) })
}

// complete returns the recipe that the flags describe.
func (o *buildOptions) complete() (image.Recipe, error) {
	recipe := o.recipe
	sources := 0
	for _, given := range []bool{len(o.packages) > 0, recipe.Tree != "", recipe.OCI != ""} {
		if given {
			sources++
		}
	}
	if o.publish && o.outputDir != "" {
		return recipe, cli.Usagef("--publish and --output-dir exclude each other: the image is not uploaded")
	}
	if sources != 1 {
		return recipe, cli.Usagef("name the source of the image: one of --packages, --tree and --oci, as in `watari image build mpi --packages openmpi-bin`")
	}
	for _, name := range o.packages {
		if name = strings.TrimSpace(name); name != "" {
			recipe.Packages = append(recipe.Packages, name)
		}
	}
	for _, text := range o.additions {
		addition, err := image.ParseAddition(text)
		if err != nil {
			return recipe, cli.Usagef("--add: %v", err)
		}
		recipe.Additions = append(recipe.Additions, addition)
	}
	program, err := os.Executable()
	if err != nil {
		return recipe, fmt.Errorf("find the programs for the image beside this program: %w", err)
	}
	return recipe, findBeside(&recipe, filepath.Dir(program))
}

// findBeside fills in programs of an image that no flag names. They are in the directory of this program in a build
// tree, and in ../libexec/watari in an installation. The guest agent is required.
func findBeside(recipe *image.Recipe, folder string) error {
	find := func(name string) string {
		for _, path := range []string{filepath.Join(folder, name), filepath.Join(folder, "..", "libexec", "watari", name)} {
			if _, err := os.Stat(path); err == nil {
				return path
			}
		}
		return ""
	}
	if recipe.GuestAgent == "" {
		if recipe.GuestAgent = find("watari-guest"); recipe.GuestAgent == "" {
			return fmt.Errorf("the guest agent is not beside this program (%s): build it, or set --guest-agent", filepath.Join(folder, "watari-guest"))
		}
	}
	switch recipe.PM {
	case "none":
		recipe.PM = ""
	case "":
		recipe.PM = find(image.Provider)
	}
	return nil
}

// describe returns a description of the image for people.
func describe(name string, built *v1.Image, took time.Duration) string {
	mpi := "no MPI library found"
	if len(built.GetMpi()) > 0 {
		mpi = strings.Join(built.GetMpi(), ", ")
	}
	if built.GetPm() {
		mpi += ", PM"
	}
	return fmt.Sprintf("image %s: %s; kernel %d MiB, initrd %d MiB, root %d MiB; %s; built in %.1f s", name,
		built.GetDigest(), built.GetKernel().GetSize()>>20, built.GetInitrd().GetSize()>>20, built.GetRoot().GetSize()>>20,
		mpi, took.Seconds())
}
