package lab

import "github.com/spf13/cobra"

func wan(name *string) *cobra.Command {
	_ = name
	return &cobra.Command{Use: "wan", Short: "Shape, cut and heal the network between a lab's sites"}
}
