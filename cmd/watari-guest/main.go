// Command watari-guest is the program inside a guest: its first process, its agent, and the remote shell for MPI
// launchers.
package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"watari/guest/agent"
	"watari/guest/forward"
	"watari/guest/initd"
	"watari/internal/version"
)

const usage = `usage: watari-guest init | agent | rsh [options] HOST COMMAND... | forward | version
  init   be a guest's first process (from the initrd)
  agent  serve the host over virtio-serial
  rsh    run a command in another guest of the cluster, as ssh would (for MPI launchers); so does watari-guest-rsh
  forward  connect to ports of this guest, for ` + "`watari guest forward`" + `, over standard input and output`

func main() {
	if os.Getpid() == 1 {
		initd.Run()
	}
	verb := ""
	if len(os.Args) > 1 {
		verb = os.Args[1]
	}
	switch verb {
	case "init":
		fmt.Fprintln(os.Stderr, "watari-guest: init is for process 1 alone")
		os.Exit(2)
	case "agent":
		if err := serve(); err != nil {
			fmt.Fprintln(os.Stderr, "watari-guest: agent:", err)
			os.Exit(1)
		}
	case "rsh":
		// Run the separate program, which needs far less memory: a launcher starts one for each guest.
		err := unix.Exec(initd.Launcher, os.Args[1:], os.Environ())
		fmt.Fprintf(os.Stderr, "watari-guest rsh: start %s: %v\n", initd.Launcher, err)
		os.Exit(255) // like ssh if ssh itself fails, not the command
	case "forward":
		if err := forward.Serve(standard{os.Stdin, os.Stdout}); err != nil {
			fmt.Fprintln(os.Stderr, "watari-guest: forward:", err)
			os.Exit(1)
		}
	case "version":
		fmt.Println(version.Version)
	default:
		fmt.Fprintln(os.Stderr, usage)
		os.Exit(2)
	}
}

// standard is standard input and output as one stream.
type standard struct {
	io.Reader
	io.WriteCloser
}

func serve() error {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	defer stop()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	a, err := agent.New("/run/watari", log)
	if err != nil {
		return err
	}
	return a.Run(ctx)
}
