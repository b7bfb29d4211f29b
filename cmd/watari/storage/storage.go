// Package storage holds `watari storage`: folders of file servers outside that clusters may mount.
package storage

import (
	"context"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/cmd/internal/output"
	"watari/internal/mounts"
)

// New returns `watari storage`.
func New(env *cli.Env) *cobra.Command {
	command := cli.Noun(&cobra.Command{
		Use:   "storage",
		Short: "Folders of file servers outside that clusters may mount: allow, list, forbid",
		Long: "Guests reach nothing outside their cluster. An administrator can let clusters mount a folder of a file server (NFS 4); " +
			"`watari cluster create --mount` then mounts it in all guests. The server sees the hosts as its clients, not the guests.",
	})
	command.AddCommand(newAllow(env), newList(env), newForbid(env))
	return command
}

func newAllow(env *cli.Env) *cobra.Command {
	var s v1.Storage
	command := &cobra.Command{
		Use:   "allow STORAGE SERVER:/PATH",
		Short: "Let clusters mount a folder of a file server",
		Long: "Let clusters mount a folder of a file server, and the folders below it. Hosts open the way to that server's port, and to nothing else. The server " +
			"must export the folder to the hosts (NFS 4). It must itself refuse what guests are not to have: a guest's owner is root in the " +
			"guest, may claim to be any user, and can ask the server for its other exports, too. So export with all_squash, or with ro.",
		Example: "  watari storage allow inputs nfs.lab:/data --read-only\n  watari storage allow results nfs.lab:/results --user aiko --site berlin",
		Args:    cli.Args("STORAGE", "SERVER:/PATH"),
	}
	command.RunE = env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
		if err := cli.CheckName("storage", args[0]); err != nil {
			return err
		}
		var ok bool
		if s.Server, s.Path, ok = mounts.Cut(args[1]); !ok {
			return cli.Usagef("%q: give a server and a folder on it, such as nfs.lab:/data", args[1])
		}
		s.Meta = &v1.Meta{Name: args[0]}
		response, err := c.AllowStorage(ctx, connect.NewRequest(&v1.AllowStorageRequest{Storage: &s}))
		if err != nil {
			return fmt.Errorf("allow storage %s: %w", args[0], err)
		}
		made := response.Msg.Storage
		return env.Done(made, "clusters may mount %s: --mount %s:/data%s", where(made), where(made), map[bool]string{true: ":ro"}[made.GetReadOnly()])
	})
	f := command.Flags()
	f.BoolVar(&s.ReadOnly, "read-only", false, "guests can only mount it read-only (the server must refuse writes itself, too)")
	f.StringSliceVar(&s.Users, "user", nil, "user who may mount it, may be repeated (default: all)")
	f.StringSliceVar(&s.Sites, "site", nil, "site whose hosts reach the server, may be repeated (default: all do)")
	f.Uint32Var(&s.Port, "port", 2049, "the server's TCP port")
	env.CompleteFlag(command, "user", cli.Users)
	env.CompleteFlag(command, "site", cli.Sites)
	return command
}

// where formats a folder for people, and for --mount.
func where(s *v1.Storage) string { return mounts.Source(s.GetServer(), s.GetPath()) }

func newList(env *cli.Env) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the storage that you may mount",
		Example: "  watari storage list",
		Args:    cli.Args(),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			list, err := client.List(ctx, c.ListStorage, &v1.ListStorageRequest{}, (*v1.ListStorageResponse).GetStorage)
			if err != nil {
				return fmt.Errorf("list storage: %w", err)
			}
			return cli.ShowList(env, list, func(w io.Writer) {
				if len(list) == 0 {
					env.Notef("no storage is allowed; an administrator allows some with `watari storage allow STORAGE SERVER:/PATH`")
					return
				}
				t := output.NewTable("NAME", "FOLDER", "PORT", "ACCESS", "USERS", "SITES")
				for _, s := range list {
					access := "read, write"
					if s.GetReadOnly() {
						access = "read"
					}
					t.Row(s.GetMeta().GetName(), where(s), fmt.Sprint(s.GetPort()), access, orAll(s.GetUsers()), orAll(s.GetSites()))
				}
				t.Write(w)
			})
		}),
	}
}

func orAll(names []string) string {
	if len(names) == 0 {
		return "all"
	}
	return strings.Join(names, ", ")
}

func newForbid(env *cli.Env) *cobra.Command {
	var force bool
	command := &cobra.Command{
		Use:     "forbid STORAGE",
		Short:   "Let clusters no longer mount a folder",
		Long:    "Let clusters no longer mount a folder. Clusters that have it mounted are named, and nothing is changed. With --force they lose it at once.",
		Example: "  watari storage forbid inputs",
		Args:    cli.Args("STORAGE"), ValidArgsFunction: env.Complete(cli.Storage),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			if err := cli.CheckName("storage", args[0]); err != nil {
				return err
			}
			if _, err := c.ForbidStorage(ctx, connect.NewRequest(&v1.ForbidStorageRequest{Name: args[0], Force: force})); err != nil {
				return fmt.Errorf("forbid storage %s: %w", args[0], err)
			}
			env.Notef("storage %s is forbidden", args[0])
			return nil
		}),
	}
	command.Flags().BoolVar(&force, "force", false, "even if clusters have it mounted: their programs then fail when they use it")
	return command
}
