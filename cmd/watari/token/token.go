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
		Short:   "Tokens for hosts that join: create",
		Long:    "With a token one host can join, once, until the token expires. The token contains the hash of the manager's CA, so that the host can verify the manager.",
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
		Long:              "Make a token for a host and print it. `watari user add` makes tokens for users.",
		Example:           "  watari token create --host --site kyoto --valid 24h\n  sudo watari up --manager https://192.0.2.1:7070 --token TOKEN    # on the host",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Run(func(ctx context.Context, _ []string) error {
			switch {
			case !host:
				return cli.Usagef("--host is missing (`watari user add` makes tokens for users)")
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
				env.Notef("the token is valid once, for %s; on the host: sudo watari up --manager %s --token TOKEN",
					output.Short(response.Msg.Expires.AsTime().Sub(env.Now())), c.Advertised(ctx))
				fmt.Fprintln(w, response.Msg.Token)
			})
		}),
	}
	command.Flags().BoolVar(&host, "host", false, "make a token for a host (required)")
	command.Flags().StringVar(&site, "site", "", "site of the host (default: the host chooses)")
	command.Flags().DurationVar(&valid, "valid", time.Hour, "how long the token is valid")
	env.CompleteFlag(command, "site", cli.Sites)
	return command
}
