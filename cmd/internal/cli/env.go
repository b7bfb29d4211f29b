// Package cli holds what all commands of watari share: input and output, exit statuses, and the checking and completion
// of arguments.
package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"watari/ca"
	"watari/cmd/internal/client"
	"watari/internal/printable"
)

// Env is a command's environment. Tests make their own.
type Env struct {
	In       io.Reader
	Out, Err io.Writer
	// Signals receives SIGINT and SIGTERM.
	Signals <-chan os.Signal
	// Now is the clock for ages.
	Now func() time.Time
	// Config is the path of the client config; empty: client.ConfigPath.
	Config string
	// Output is the value of --output; empty: table.
	Output string
}

// Client returns a client for the config that the command line names. If the certificate is due for renewal, Client
// renews it first. A failed renewal is printed but is not an error, because the certificate is still valid.
func (e *Env) Client() (*client.Client, error) {
	path, config, err := e.load()
	if err != nil {
		return nil, err
	}
	c, err := client.Open(config)
	if err != nil {
		return nil, err
	}
	if ca.RenewalDue([]byte(config.Certificate), e.Now()) {
		renewed, err := c.Renew(context.Background(), config)
		if err == nil {
			err = renewed.Save(path)
		}
		if unreachable := (*client.Unreachable)(nil); err != nil && !errors.As(err, &unreachable) { // the command itself will report that
			e.Notef("the certificate in %s was not renewed: %v", path, client.Explain(err))
		}
	}
	return c, nil
}

// LoadConfig loads the config that the command line names.
func (e *Env) LoadConfig() (*client.Config, error) {
	_, config, err := e.load()
	return config, err
}

func (e *Env) load() (path string, config *client.Config, err error) {
	if path = e.Config; path == "" {
		if path, err = client.ConfigPath(); err != nil {
			return "", nil, err
		}
	}
	config, err = client.Load(path)
	return path, config, err
}

// Terminal returns the width and height of the terminal w in characters; 0 if w is not a terminal.
func Terminal(w any) (width, height int) {
	file, ok := w.(*os.File)
	if !ok || !term.IsTerminal(int(file.Fd())) {
		return 0, 0
	}
	width, height, err := term.GetSize(int(file.Fd()))
	if err != nil || width < 20 || height < 4 {
		width, height = 80, 24
	}
	return width, height
}

// Notef writes a line to standard error. It escapes control characters.
func (e *Env) Notef(format string, args ...any) {
	fmt.Fprintln(e.Err, printable.Text(fmt.Sprintf(format, args...)))
}

// ErrInterrupted is the cause of a context that Ctrl-C or SIGTERM ended.
var ErrInterrupted = errors.New("interrupted")

// Action is the function of a command. ctx ends at Ctrl-C.
type Action func(ctx context.Context, args []string) error

// Run returns an action as a command's RunE. At Ctrl-C, ctx ends and the command ends with status 130.
func (e *Env) Run(action Action) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error {
		ctx, stop := e.Interruptible(command.Context())
		defer stop()
		err := action(ctx, args)
		if err != nil && errors.Is(context.Cause(ctx), ErrInterrupted) {
			var exit *Exit
			if errors.As(err, &exit) {
				return err
			}
			return &Exit{Code: StatusInterrupted}
		}
		return err
	}
}

// Ask is Run for an action that calls the manager.
func (e *Env) Ask(action func(ctx context.Context, c *client.Client, args []string) error) func(*cobra.Command, []string) error {
	return e.Run(func(ctx context.Context, args []string) error {
		c, err := e.Client()
		if err != nil {
			return err
		}
		return action(ctx, c, args)
	})
}

// RunWithSignals is Run for an action that reads e.Signals itself.
func (e *Env) RunWithSignals(action Action) func(*cobra.Command, []string) error {
	return func(command *cobra.Command, args []string) error { return action(command.Context(), args) }
}

// Interruptible returns a context that ends with the cause ErrInterrupted when a signal arrives.
func (e *Env) Interruptible(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	go func() {
		select {
		case <-e.Signals:
			cancel(ErrInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { cancel(context.Canceled) }
}
