package root

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
)

func newLogin(env *cli.Env) *cobra.Command {
	var managers []string
	var token string
	command := &cobra.Command{
		Use:   "login --manager URL --token TOKEN",
		Short: "Get a certificate from a manager with a token",
		Long: "Get a certificate from a manager with the token that an administrator got from `watari user add`, and store it in " +
			"the client config. The token is valid once. It contains the hash of the manager's CA, so that the command talks " +
			"only to the right manager. An existing config is kept beside the new one.",
		Example:           "  watari login --manager https://192.0.2.1:7070 --token watari1.…\n  watari login --manager https://192.0.2.1:7070 --token - < token",
		Args:              cli.Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Run(func(ctx context.Context, _ []string) error {
			return login(ctx, env, managers, token)
		}),
	}
	command.Flags().StringSliceVar(&managers, "manager", nil, "the manager's URL, as in https://192.0.2.1:7070; of several managers, all, with commas between them")
	command.Flags().StringVar(&token, "token", "", "the token; - to read it from standard input")
	return command
}

func login(ctx context.Context, env *cli.Env, managers []string, text string) error {
	if len(managers) == 0 || text == "" {
		return cli.Usagef("watari login needs --manager URL and --token TOKEN; an administrator makes a token with `watari user add`")
	}
	if text == "-" {
		read, err := io.ReadAll(io.LimitReader(env.In, 4096))
		if err != nil {
			return fmt.Errorf("read the token from standard input: %w", err)
		}
		text = string(read)
	}
	token, err := ca.ParseToken(text)
	if err != nil {
		return cli.Usagef("--token: %v", err)
	}
	path := env.Config
	if path == "" {
		if path, err = client.UserConfigPath(); err != nil {
			return err
		}
	}
	config, name, err := join(ctx, managers, token)
	if err != nil {
		return fmt.Errorf("log in at %s: %w", strings.Join(managers, ", "), err)
	}
	if err := replace(env, config, path); err != nil {
		return fmt.Errorf("%w; the token is used up, so ask for another one", err)
	}
	env.Notef("logged in as %s; the certificate is in %s", name, path)
	if read, err := client.ConfigPath(); env.Config == "" && err == nil && read != path {
		env.Notef("commands of this user read %s, unless told otherwise: --config %s, or export WATARI_CONFIG=%[2]s", read, path)
	}
	return nil
}

// replace stores a config, and keeps the old one. The old one stays in its place until the new one is written.
func replace(env *cli.Env, config *client.Config, path string) error {
	next := path + ".new"
	defer os.Remove(next) // fails harmlessly after a successful rename
	if err := config.Save(next); err != nil {
		return err
	}
	old := os.Rename(path, path+".old")
	if old != nil && !errors.Is(old, os.ErrNotExist) {
		return fmt.Errorf("keep the old client config: %w", old)
	}
	if err := os.Rename(next, path); err != nil {
		return fmt.Errorf("write the client config: %w", err)
	}
	if old == nil {
		env.Notef("the old config is kept as %s.old", path)
	}
	return nil
}

// join exchanges a token for a certificate.
func join(ctx context.Context, managers []string, token ca.Token) (*client.Config, string, error) {
	for i := range managers {
		managers[i] = strings.TrimRight(managers[i], "/")
	}
	joiner, err := client.OpenJoin(managers, token)
	if err != nil {
		return nil, "", cli.Usagef("%v", err)
	}
	key, request, err := ca.NewKeyAndCSR()
	if err != nil {
		return nil, "", err
	}
	response, err := joiner.Join(ctx, connect.NewRequest(&v1.JoinRequest{Token: token.String(), Request: request}))
	if refused := (*connect.Error)(nil); errors.As(err, &refused) && refused.Code() == connect.CodePermissionDenied {
		return nil, "", errors.New(refused.Message()) // the error is about the token, not about the caller
	}
	if err != nil {
		return nil, "", err
	}
	if err := token.CheckAuthority(response.Msg.CaCertificate); err != nil {
		return nil, "", err
	}
	return &client.Config{Managers: managers, CA: string(response.Msg.CaCertificate),
		Certificate: string(response.Msg.Certificate), Key: string(key)}, response.Msg.Name, nil
}
