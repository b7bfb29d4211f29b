// Command standins answers for several guests, from one machine that has all their addresses. It is for tests with more
// guests than machines. Its argument is a folder with a file for each guest: its Identity, in protobuf.
package main

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/guest/agent"
)

func main() {
	if err := standIn(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, "standins:", err)
		os.Exit(1)
	}
	fmt.Println("ready")
	select {}
}

func standIn(folder string) error {
	files, err := filepath.Glob(filepath.Join(folder, "*"))
	if err != nil {
		return err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		identity := &v1.Identity{}
		if err := proto.Unmarshal(text, identity); err != nil {
			return fmt.Errorf("%s: %w", file, err)
		}
		a, err := agent.New(filepath.Join("/run/standins", identity.GetName()), slog.New(slog.DiscardHandler))
		if err == nil {
			err = a.StandIn(identity)
		}
		if err != nil {
			return fmt.Errorf("stand in for %s: %w", identity.GetName(), err)
		}
	}
	return nil
}
