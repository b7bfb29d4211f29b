// Command watari is the command line of Watari, and its manager.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"
	"time"

	"watari/cmd/internal/cli"
	"watari/cmd/watari/root"
	"watari/internal/descriptors"
	"watari/lab"
)

func main() {
	descriptors.KeepToSelf() // also needed in the lab's own processes, which start daemons
	lab.Helper(os.Args)      // does not return if this process is one of a lab's own
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM)
	env := &cli.Env{In: os.Stdin, Out: os.Stdout, Err: os.Stderr, Signals: signals, Now: time.Now}
	os.Exit(root.Main(context.Background(), env, os.Args[1:]))
}
