package lab

// owner.go - watari lab owner: plays the owner of a desktop machine.

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"watari/cmd/internal/cli"
	"watari/lab"
)

func (v *verbs) owner() *cobra.Command {
	words := ownerWords(lab.OwnerActivities)
	return &cobra.Command{
		Use:   "owner HOST " + strings.Join(words, "|"),
		Short: "Play the owner of a host, who uses it or goes away",
		Long: `Play the owner of a host. busy: a process outside Watari, of the user owner, keeps a CPU busy. types: somebody is
logged in on a terminal and types every second. Both are possible at the same time. away ends them. A crash of the host
ends them, too.`,
		Example: "  watari lab owner a1 busy\n  watari lab owner a1 away",
		Args:    cli.Args("HOST", strings.Join(words, "|")),
		ValidArgsFunction: func(command *cobra.Command, args []string, start string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return words, cobra.ShellCompDirectiveNoFileComp
			}
			return v.completeHosts(command, args, start)
		},
		RunE: v.Run(func(ctx context.Context, args []string) error {
			does := lab.OwnerActivity(args[1])
			l, err := v.open()
			if err != nil {
				return err
			}
			if err := l.Owner(ctx, args[0], does); err != nil {
				return err
			}
			v.Notef("the owner of host %s: %s", args[0], does)
			return nil
		}),
	}
}

func ownerWords(activities []lab.OwnerActivity) (words []string) {
	for _, activity := range activities {
		words = append(words, fmt.Sprint(activity))
	}
	return words
}

func describeOwner(does []lab.OwnerActivity) string {
	if len(does) == 0 {
		return string(lab.OwnerAway)
	}
	return strings.Join(ownerWords(does), ", ")
}
