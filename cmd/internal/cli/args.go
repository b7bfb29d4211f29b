package cli

import (
	"regexp"
	"strings"

	"github.com/spf13/cobra"
)

// Noun turns a command into one that only groups others: alone it shows its help, and it refuses unknown words.
func Noun(command *cobra.Command, verbs ...*cobra.Command) *cobra.Command {
	command.AddCommand(verbs...)
	command.Args = func(command *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		var known []string
		for _, verb := range command.Commands() {
			if verb.IsAvailableCommand() {
				known = append(known, verb.Name())
			}
		}
		return Usagef("%s has no command %q; it has %s", command.CommandPath(), args[0], strings.Join(known, ", "))
	}
	command.RunE = func(command *cobra.Command, _ []string) error { return command.Help() }
	return command
}

// Args requires one argument for each word: Args("CLUSTER").
func Args(words ...string) cobra.PositionalArgs { return ArgsBetween(len(words), words...) }

// ArgsAtLeast requires one argument for each word, and takes more of the last: ArgsAtLeast("GUEST", "PORT").
func ArgsAtLeast(words ...string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		return ArgsBetween(len(words), words...)(command, args[:min(len(args), len(words))])
	}
}

// ArgsBetween requires at least the first least words.
func ArgsBetween(least int, words ...string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		switch {
		case len(args) < least:
			return Usagef("%s needs %s; see `%s --help`", command.CommandPath(), strings.Join(words[len(args):least], " "), command.CommandPath())
		case len(args) > len(words):
			return Usagef("%s: %q is one argument too many; usage: %s", command.CommandPath(), args[len(words)], command.UseLine())
		}
		return nil
	}
}

var nameForm = regexp.MustCompile(`^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$`)

// CheckName refuses an invalid object name before the manager is called.
func CheckName(kind, name string) error {
	if nameForm.MatchString(name) {
		return nil
	}
	return Usagef("%s name %q: use 1 to 40 of a-z, 0-9 and -, beginning with a letter and ending with a letter or digit", kind, name)
}
