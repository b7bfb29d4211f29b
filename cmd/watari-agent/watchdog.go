package main

// watchdog.go - the process that ends guests whose leases end (package watchdog).

import (
	"flag"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"

	"watari/agent/watchdog"
	"watari/internal/qemuprocesses"
)

// newWatchdog returns a client of this host's watchdog. program is the agent's own.
func newWatchdog(o options, program string) *watchdog.Client {
	path := filepath.Join(o.run, "watchdog.sock")
	return &watchdog.Client{Path: path, Command: func() *exec.Cmd {
		command := exec.Command(program, "watchdog", path)
		command.Stderr = os.Stderr
		return command
	}}
}

// runWatchdog serves agents at a path, until it is not needed any more.
func runWatchdog(args []string) error {
	flags := flag.NewFlagSet("watari-agent watchdog", flag.ContinueOnError)
	if err := flags.Parse(args); err != nil || flags.NArg() != 1 {
		return flag.ErrHelp
	}
	// Nothing that ends the agent may end this process, because the guests that it traces would end with it.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	return (&watchdog.Watchdog{Processes: new(qemuprocesses.Finder).Find, Log: slog.Default()}).Serve(flags.Arg(0))
}
