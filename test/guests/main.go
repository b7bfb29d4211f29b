// Command guests runs a command of this machine while one or two guests are up, and lets the command use them. It is
// for tests and benchmarks that need real guests, such as those of PM's rails. When the command ends or this program is
// killed, the guests end, and only the image's parts in the cache remain. Building images needs root.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"watari/guest/bare"
)

const usage = `usage:
  guests run [OPTION...] COMMAND [ARGUMENT...]  run it while guests 0 and 1 are up (guests run -help: options)
and, in that command, or with $WATARI_GUESTS as it has it,
  guests exec [-user NAME] GUEST SCRIPT         run SCRIPT with the guest's sh as root: its output, its exit status
  guests put GUEST SOURCE... DESTINATION        copy files to a path, or several into a folder, in the guest
  guests plug GUEST                             give it the shared memory, as an ivshmem device
  guests unplug GUEST                           take it away
The guests' names are md-0 and md-1. mpirun in one of them, as the user watari, reaches the other by
--hostfile /run/watari/hostfile --mca plm_rsh_agent "watari-guest rsh".
`

// folderVariable is the environment variable with the directory of the running guests.
const folderVariable = "WATARI_GUESTS"

// status is the exit status of the command.
type status int

func (s status) Error() string { return fmt.Sprintf("exit status %d", int(s)) }

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:])
	stop()
	var code status
	switch {
	case errors.As(err, &code):
		os.Exit(int(code))
	case err != nil:
		fmt.Fprintln(os.Stderr, "guests:", err)
		os.Exit(125)
	}
}

func command(ctx context.Context, args []string) error {
	if len(args) > 0 {
		switch verb, rest := args[0], args[1:]; {
		case verb == "run":
			return run(ctx, rest)
		case verb == "exec" && len(rest) == 2:
			return execute(ctx, "", rest[0], rest[1])
		case verb == "exec" && len(rest) == 4 && rest[0] == "-user":
			return execute(ctx, rest[1], rest[2], rest[3])
		case verb == "put" && len(rest) >= 3:
			return put(ctx, rest[0], rest[1:len(rest)-1], rest[len(rest)-1])
		case verb == "plug" && len(rest) == 1:
			return plug(rest[0])
		case verb == "unplug" && len(rest) == 1:
			folder, err := guest(rest[0])
			if err != nil {
				return err
			}
			return bare.Unplug(filepath.Join(folder, "monitor"))
		}
	}
	fmt.Fprint(os.Stderr, usage)
	return status(2)
}

// guest returns the directory of a running guest.
func guest(index string) (string, error) {
	folder := os.Getenv(folderVariable)
	if folder == "" {
		return "", fmt.Errorf("no guests are up: $%s is not set", folderVariable)
	}
	folder = filepath.Join(folder, index)
	_, err := os.Stat(folder)
	return folder, err
}

func execute(ctx context.Context, user, index, script string) error {
	folder, err := guest(index)
	if err != nil {
		return err
	}
	ended, err := bare.Connect(filepath.Join(folder, agentFile)).Run(ctx, user, script, os.Stdout, os.Stderr)
	if err != nil {
		return fmt.Errorf("guest %s: %w", index, err)
	}
	if ended.GetExitCode() != 0 {
		return status(ended.GetExitCode())
	}
	return nil
}

func put(ctx context.Context, index string, sources []string, destination string) error {
	folder, err := guest(index)
	if err != nil {
		return err
	}
	client := bare.Connect(filepath.Join(folder, agentFile))
	for _, source := range sources {
		to := destination
		if len(sources) > 1 || destination[len(destination)-1] == '/' {
			to = filepath.Join(destination, filepath.Base(source))
		}
		if err := client.Put(ctx, source, to); err != nil {
			return fmt.Errorf("copy %s into guest %s: %w", source, index, err)
		}
	}
	return nil
}

// plug gives a guest the shared memory of the process that started it.
func plug(index string) error {
	folder, err := guest(index)
	if err != nil {
		return err
	}
	memory, err := os.Readlink(filepath.Join(filepath.Dir(folder), memoryFile))
	if err != nil {
		return err
	}
	info, err := os.Stat(memory)
	if err != nil {
		return err
	}
	return bare.Plug(filepath.Join(folder, "monitor"), memory, info.Size())
}

func run(ctx context.Context, args []string) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	up, err := start(ctx, o)
	defer up.end()
	if err != nil {
		return err
	}
	c := exec.CommandContext(ctx, o.command[0], o.command[1:]...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = 5 * time.Second
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGTERM}
	c.Stdin, c.Stdout, c.Stderr = os.Stdin, os.Stdout, os.Stderr
	c.Env = append(os.Environ(), folderVariable+"="+up.folder)
	err = c.Run()
	var ended *exec.ExitError
	if errors.As(err, &ended) && ended.Exited() {
		return status(ended.ExitCode())
	}
	return err
}

func parse(args []string) (options, error) {
	var o options
	flags := flag.NewFlagSet("guests run", flag.ContinueOnError)
	flags.IntVar(&o.guests, "guests", 2, "how many, 1 or 2")
	flags.IntVar(&o.memory, "memory", 384, "of each, MiB")
	flags.StringVar(&o.cpus, "cpus", defaultCPUs, "of each, as QEMU's -smp")
	flags.IntVar(&o.shared, "shared", 16, "size of the memory that can be plugged, MiB, a power of two")
	flags.StringVar(&o.packages, "packages", "openmpi-bin,ibverbs-utils,ibverbs-providers,perftest,hpcc,netpipe-openmpi", "Debian packages in the guests, separated by commas")
	flags.StringVar(&o.modules, "modules", "crc32_generic,rdma_rxe,ib_uverbs,rdma_ucm", "kernel modules beside the usual ones, separated by commas")
	flags.StringVar(&o.folder, "folder", "", "for the guests' sockets and consoles ($"+folderVariable+"), which is removed at the end; by default one in "+os.TempDir())
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return o, status(0)
	} else if err != nil {
		return o, status(2)
	}
	o.command = flags.Args()
	if len(o.command) == 0 || o.guests < 1 || o.guests > 2 {
		return o, errors.New("run: name a command, and 1 or 2 guests; see " + strconv.Quote("guests run -help"))
	}
	return o, nil
}
