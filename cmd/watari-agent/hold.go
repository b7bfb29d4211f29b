package main

// hold.go - the process that stops guests for a checkpoint (package hold), and other parts that the agent needs to save
// guests.

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"

	"watari/agent"
	files "watari/agent/checkpoint"
	"watari/agent/hold"
	"watari/agent/vm"
	v1 "watari/api/watariv1"
	"watari/checkpoint"
)

// saver saves guests through libvirt.
type saver struct {
	*vm.Libvirt
	uri, program string
}

// PrepareSnapshot implements agent.Saver.
func (s saver) PrepareSnapshot(ctx context.Context, uid, pipe string) (agent.Snapshot, error) {
	snapshot, err := s.Libvirt.PrepareSnapshot(ctx, uid, pipe)
	if err != nil {
		return nil, err
	}
	return snapshot, nil
}

// Holder implements agent.Saver.
func (s saver) Holder(guests []hold.Guest) *exec.Cmd {
	args := []string{"hold", "--libvirt", s.uri}
	for _, g := range guests {
		args = append(args, g.UID+"="+g.Pipe)
	}
	command := exec.Command(s.program, args...)
	command.Stderr = os.Stderr
	return command
}

// Writer implements agent.Saver.
func (s saver) Writer() *exec.Cmd {
	command := exec.Command(s.program, "write-checkpoint")
	command.Stderr, command.Dir, command.SysProcAttr = os.Stderr, "/", &syscall.SysProcAttr{Setsid: true}
	return command
}

// runWriter writes a state that it reads from standard input. It ends when the agent ends.
func runWriter() error {
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	return files.Serve(context.Background(), os.Stdin, os.Stdout)
}

// runHold stops and resumes guests on the agent's commands, which it reads from standard input.
func runHold(args []string) error {
	flags := flag.NewFlagSet("watari-agent hold", flag.ContinueOnError)
	uri := flags.String("libvirt", "qemu:///system", "`URI` of the libvirt daemon")
	if err := flags.Parse(args); err != nil {
		return err
	}
	var guests []hold.Guest
	for _, arg := range flags.Args() {
		uid, pipe, found := strings.Cut(arg, "=")
		if !found {
			return fmt.Errorf("%q: give guests as UID=PIPE", arg)
		}
		guests = append(guests, hold.Guest{UID: uid, Pipe: pipe})
	}
	// Nothing that ends the agent may end this process, because guests may be paused.
	signal.Ignore(syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGPIPE)
	libvirt, err := vm.Connect(*uri, vm.Options{Acceleration: v1.AccelerationKind_ACCELERATION_KIND_TCG})
	if err != nil {
		return err
	}
	defer libvirt.Close()
	ctx, cancel := context.WithTimeout(context.Background(), libvirtTime)
	defer cancel()
	if _, err := libvirt.List(ctx); err != nil { // until it answers
		return err
	}
	return hold.Serve(os.Stdin, os.Stdout, guests, checkpoint.MaxStop, libvirt)
}
