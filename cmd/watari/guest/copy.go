package guest

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/progress"
)

func newCopy(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "cp SOURCE DESTINATION",
		Aliases: []string{"copy"},
		Short:   "Copy a file to or from a guest",
		Long: "Copy a file to or from a guest. GUEST:PATH names a file in a guest; PATH must begin with /. With \"-\" as " +
			"the destination, the file goes to standard output. A destination that ends with / is a directory.",
		Example:           "  watari guest cp in.melt md-0:/home/watari/in.melt\n  watari guest cp md-0:/var/log/dmesg ./",
		Args:              cli.Args("SOURCE", "DESTINATION"),
		ValidArgsFunction: completePlaces(env, cli.Guests),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			return copyFile(ctx, env, c, args[0], args[1], "guest", place)
		}),
	}
}

// NewVolumeCopy returns `watari volume cp`.
func NewVolumeCopy(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "cp SOURCE DESTINATION",
		Aliases: []string{"copy"},
		Short:   "Copy a file to or from a volume that a cluster uses",
		Long: "Copy a file to or from a volume, through the guest of the cluster that uses it. VOLUME:PATH names a file on a volume. With \"-\" as the " +
			"destination, the file goes to standard output. A destination that ends with / is a directory.",
		Example: "  watari volume cp in.melt data:inputs/in.melt\n  watari volume cp data:results/log.lammps ./",
		Args:    cli.Args("SOURCE", "DESTINATION"), ValidArgsFunction: completePlaces(env, cli.Volumes),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			return copyFile(ctx, env, c, args[0], args[1], "volume", func(word string) (client.Place, bool, error) { return onVolume(ctx, c, word) })
		}),
	}
}

// completePlaces completes the source and the destination of a copy: one of them is a local file, the other begins with a name and a
// colon.
func completePlaces(env *cli.Env, names cli.Names) cobra.CompletionFunc {
	return func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 1 || remote(begun) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		if len(args) == 1 && remote(args[0]) {
			return nil, cobra.ShellCompDirectiveDefault
		}
		found, _ := env.Complete(names)(command, nil, begun)
		if len(found) == 0 && len(args) == 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		for i := range found {
			found[i] += ":"
		}
		return found, cobra.ShellCompDirectiveNoSpace | cobra.ShellCompDirectiveNoFileComp
	}
}

// remote reports whether a word names a file elsewhere. A word without a colon, or with a slash before the colon, is a local file.
func remote(word string) bool {
	name, _, colon := strings.Cut(word, ":")
	return colon && !strings.Contains(name, "/")
}

// onVolume parses VOLUME:PATH, and finds the guest that has the volume.
func onVolume(ctx context.Context, c *client.Client, word string) (client.Place, bool, error) {
	volume, file, _ := strings.Cut(word, ":")
	if !remote(word) {
		return client.Place{}, false, nil
	}
	v, err := cli.Find("volume", volume, func() ([]*v1.Volume, error) {
		return client.List(ctx, c.ListVolumes, &v1.ListVolumesRequest{Name: volume}, (*v1.ListVolumesResponse).GetVolumes)
	})
	if err != nil {
		return client.Place{}, true, err
	}
	if v.GetCluster() == "" {
		return client.Place{}, true, fmt.Errorf("no cluster uses volume %s, and a guest is needed to read it: watari cluster create NAME --guests 1 --image IMAGE --volume %s --wait", volume, volume)
	}
	guests, err := client.List(ctx, c.ListGuests, &v1.ListGuestsRequest{Cluster: v.GetCluster()}, (*v1.ListGuestsResponse).GetGuests)
	if err != nil {
		return client.Place{}, true, err
	}
	for _, g := range guests {
		if g.GetIndex() == 0 {
			return client.Place{Guest: g.GetMeta().GetName(), Path: path.Join(home, path.Join("/", file)) + slash(file), User: homeUser}, true, nil
		}
	}
	return client.Place{}, true, fmt.Errorf("cluster %s, which uses volume %s, has no first guest", v.GetCluster(), volume)
}

// home is where guests mount the volume, and homeUser owns its files.
const home, homeUser = "/home/watari", "watari"

// slash returns the slash with which the name of a directory ends.
func slash(file string) string {
	if file == "" || strings.HasSuffix(file, "/") {
		return "/"
	}
	return ""
}

// place parses GUEST:PATH.
func place(word string) (client.Place, bool, error) {
	guest, file, _ := strings.Cut(word, ":")
	if !remote(word) {
		return client.Place{}, false, nil
	}
	if err := cli.CheckName("guest", guest); err != nil {
		return client.Place{}, true, err
	}
	if !path.IsAbs(file) {
		return client.Place{}, true, cli.Usagef("%q: use an absolute path in the guest, as in %s:/home/watari/%s", word, guest, file)
	}
	return client.Place{Guest: guest, Path: file}, true, nil
}

// copyFile copies a file. where is the kind of the remote place, whose words place parses.
func copyFile(ctx context.Context, env *cli.Env, c *client.Client, source, destination, where string, place func(word string) (client.Place, bool, error)) error {
	from, out, err := place(source)
	if err != nil {
		return err
	}
	to, in, err := place(destination)
	if err != nil {
		return err
	}
	if in == out {
		return cli.Usagef("one of the two must be on a %s, as %s:PATH, and the other on this machine", where, strings.ToUpper(where))
	}
	lines := progress.New(env.Err)
	defer lines.Clear()
	show := func(done, size int64) {
		if lines.Terminal() {
			lines.Set(progress.Line{Key: source, Text: source + " " + lines.Bar(uint64(done), uint64(size))})
		}
	}
	switch {
	case in:
		if strings.HasSuffix(to.Path, "/") {
			to.Path += filepath.Base(source)
		}
		err = c.Put(ctx, source, to, lines.Trouble, show)
	case destination == "-":
		_, err = c.Read(ctx, from, env.Out, lines.Trouble, nil)
	default:
		if strings.HasSuffix(destination, "/") {
			if err := os.MkdirAll(destination, 0o777); err != nil {
				return err
			}
		}
		err = c.Get(ctx, from, destination, lines.Trouble, show)
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", source, destination, err)
	}
	return nil
}
