// Package token holds the commands about join tokens.
package token

import (
	"context"
	"fmt"
	"io"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/output"
)

// New returns `watari token`.
func New(env *cli.Env) *cobra.Command {
	return cli.Noun(&cobra.Command{
		Use:     "token",
		Aliases: []string{"tokens"},
		Short:   "Tokens, by which hosts join: create",
		Long:    "A token lets one host join, once, until it expires. It holds the hash of the manager's CA, so that the host knows whom it joins.",
		Example: "  watari token create --host --site kyoto",
	}, newCreate(env))
}

func newCreate(env *cli.Env) *cobra.Command {
	var host bool
	var site string
	var valid time.Duration
	command := &cobra.Command{
		Use:               "create --host",
		Short:             "Make a token for a host",
		Long:              "Make a token for a host and write it to standard output. A person's token is made by `watari user add`.",
		Example:           "  watari token create --host --site kyoto --valid 24h\n  sudo watari up --manager https://192.0.2.1:7070 --token TOKEN    # on the host",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Run(func(ctx context.Context, _ []string) error {
			switch {
			case !host:
				return cli.Usagef("say for what: --host (a person's token is made by `watari user add`)")
			case valid < time.Minute:
				return cli.Usagef("--valid %s: at least 1m", valid)
			case site != "" && cli.CheckName("site", site) != nil:
				return cli.CheckName("site", site)
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			response, err := c.CreateToken(ctx, connect.NewRequest(&v1.CreateTokenRequest{Site: site, Valid: durationpb.New(valid)}))
			if err != nil {
				return fmt.Errorf("make a token: %w", err)
			}
			return env.Show(response.Msg, func(w io.Writer) {
				env.Notef("good once, for %s; on the host: sudo watari up --manager %s --token TOKEN",
					output.Short(response.Msg.Expires.AsTime().Sub(env.Now())), c.Advertised(ctx))
				fmt.Fprintln(w, response.Msg.Token)
			})
		}),
	}
	command.Flags().BoolVar(&host, "host", false, "a host's token")
	command.Flags().StringVar(&site, "site", "", "site that the host joins (default: the host says)")
	command.Flags().DurationVar(&valid, "valid", time.Hour, "how long it is good")
	env.CompleteFlag(command, "site", cli.Sites)
	return command
}
