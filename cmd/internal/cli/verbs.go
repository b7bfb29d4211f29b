package cli

// verbs.go - the verbs that many nouns have in common.

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"

	"watari/cmd/internal/client"
)

// Show is the verb "show" of a noun: it gets one object and describes it. Word stands for the object's name in the
// help.
type Show[T proto.Message] struct {
	Word, Short, Example string
	Names                Names // for completion
	Get                  func(ctx context.Context, c *client.Client, name string) (T, error)
	Describe             func(w io.Writer, env *Env, object T)
}

// Command returns the verb as a command.
func (s Show[T]) Command(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:               "show " + s.Word,
		Short:             s.Short,
		Example:           s.Example,
		Args:              Args(s.Word),
		ValidArgsFunction: env.Complete(s.Names),
		RunE: env.Ask(func(ctx context.Context, c *client.Client, args []string) error {
			object, err := s.Get(ctx, c, args[0])
			if err != nil {
				return err
			}
			return env.Show(object, func(w io.Writer) { s.Describe(w, env, object) })
		}),
	}
}

// List is the verb "list" of a noun: it gets all objects and shows them in a table.
type List[T proto.Message] struct {
	Things, Short, Example string // Things is the noun for errors: "hosts"
	Get                    func(ctx context.Context, c *client.Client) ([]T, error)
	Table                  func(w io.Writer, env *Env, objects []T)
}

// Command returns the verb as a command.
func (l List[T]) Command(env *Env) *cobra.Command {
	return &cobra.Command{
		Use:               "list",
		Aliases:           []string{"ls"},
		Short:             l.Short,
		Example:           l.Example,
		Args:              Args(),
		ValidArgsFunction: cobra.NoFileCompletions,
		RunE: env.Ask(func(ctx context.Context, c *client.Client, _ []string) error {
			objects, err := l.Get(ctx, c)
			if err != nil {
				return fmt.Errorf("list %s: %w", l.Things, err)
			}
			return ShowList(env, objects, func(w io.Writer) { l.Table(w, env, objects) })
		}),
	}
}

// Switch is a verb that sets a property of one object, and resets it with --undo. In Doing, Done and Undone, %[1]s stands
// for the object's name.
type Switch[T proto.Message] struct {
	Verb, Kind           string // "drain", "host"
	Short, Long, Example string
	Undo                 string // what --undo does, for the help
	Names                Names  // for completion
	Set                  func(ctx context.Context, c *client.Client, name string, undo bool) (T, error)
	Doing                string // for errors: "drain host %[1]s"
	Done, Undone         string // for people, afterwards
}

// Command returns the verb as a command.
func (s Switch[T]) Command(env *Env) *cobra.Command {
	var undo bool
	word := strings.ToUpper(s.Kind)
	command := &cobra.Command{
		Use:               s.Verb + " " + word,
		Short:             s.Short,
		Long:              s.Long,
		Example:           s.Example,
		Args:              Args(word),
		ValidArgsFunction: env.Complete(s.Names),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			name := args[0]
			if err := CheckName(s.Kind, name); err != nil {
				return err
			}
			c, err := env.Client()
			if err != nil {
				return err
			}
			object, err := s.Set(ctx, c, name, undo)
			if err != nil {
				return fmt.Errorf(s.Doing+": %[2]w", name, err)
			}
			if undo {
				return env.Done(object, s.Undone, name)
			}
			return env.Done(object, s.Done, name)
		}),
	}
	command.Flags().BoolVar(&undo, "undo", false, s.Undo)
	return command
}

// Removal is the action of the verb "remove" of a noun: it removes the object that the first argument names.
func (e *Env) Removal(kind string, remove func(ctx context.Context, c *client.Client, name string) error) func(*cobra.Command, []string) error {
	return e.Run(func(ctx context.Context, args []string) error {
		name := args[0]
		if err := CheckName(kind, name); err != nil {
			return err
		}
		c, err := e.Client()
		if err != nil {
			return err
		}
		if err := remove(ctx, c, name); err != nil {
			return fmt.Errorf("remove %s %s: %w", kind, name, err)
		}
		e.Notef("%s %s is removed", kind, name)
		return nil
	})
}
