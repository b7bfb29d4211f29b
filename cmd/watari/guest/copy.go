package guest

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

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
		Example: "  watari guest cp in.melt md-0:/home/watari/in.melt\n  watari guest cp md-0:/var/log/dmesg ./",
		Args:    cli.Args("SOURCE", "DESTINATION"),
		ValidArgsFunction: func(command *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
			guests, _ := env.Complete(cli.Guests, cli.Guests)(command, args, begun)
			for i := range guests {
				guests[i] += ":"
			}
			return guests, cobra.ShellCompDirectiveNoSpace
		},
		RunE: env.Run(func(ctx context.Context, args []string) error { return copyFile(ctx, env, args[0], args[1]) }),
	}
}

// place parses GUEST:PATH. A word without a colon, or with a slash before the colon, is a local file.
func place(word string) (client.Place, bool, error) {
	guest, file, remote := strings.Cut(word, ":")
	if !remote || strings.Contains(guest, "/") {
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

func copyFile(ctx context.Context, env *cli.Env, source, destination string) error {
	from, out, err := place(source)
	if err != nil {
		return err
	}
	to, in, err := place(destination)
	if err != nil {
		return err
	}
	if in == out {
		return cli.Usagef("one of the two must be in a guest, as GUEST:PATH, and the other on this machine")
	}
	c, err := env.Client()
	if err != nil {
		return err
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
		err = c.Put(ctx, source, to, show)
	case destination == "-":
		_, err = c.Read(ctx, from, env.Out, nil)
	default:
		if strings.HasSuffix(destination, "/") {
			if err := os.MkdirAll(destination, 0o777); err != nil {
				return err
			}
		}
		err = c.Get(ctx, from, destination, show)
	}
	if err != nil {
		return fmt.Errorf("copy %s to %s: %w", source, destination, err)
	}
	return nil
}
