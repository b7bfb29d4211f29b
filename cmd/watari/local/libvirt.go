package local

// libvirt.go - libvirt's daemons: found, or started where nothing else starts them.

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"time"

	"watari/cmd/internal/probe"
)

const virtlogdSocket = "/run/libvirt/virtlogd-sock"

// libvirtConfig keeps libvirtd off every network and its sockets for root alone.
const libvirtConfig = `# Written by watari up.
auth_unix_rw = "none"
unix_sock_ro_perms = "0700"
unix_sock_rw_perms = "0700"
log_outputs = "3:stderr"
`

func answers(socket string) bool {
	connection, err := net.DialTimeout("unix", socket, time.Second)
	if err != nil {
		return false
	}
	connection.Close()
	return true
}

func libvirtAnswers() bool { return LibvirtSocket() != "" }

// LibvirtSocket is where a libvirt daemon answers; "": none does.
func LibvirtSocket() string {
	for _, socket := range probe.LibvirtSockets {
		if answers(socket) {
			return socket
		}
	}
	return ""
}

// startLibvirt starts libvirt's daemons where none answers. With systemd they are started by being asked.
func (u *up) startLibvirt(ctx context.Context) error {
	if libvirtAnswers() {
		return nil
	}
	config := filepath.Join(filepath.Dir(u.libvirtd().Log), "libvirtd.conf")
	if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(config, []byte(libvirtConfig), 0o644); err != nil {
		return fmt.Errorf("write libvirtd's settings: %w", err)
	}
	// The daemons keep a pid file of their own as a lock; ours, which tells processes apart for sure, stand beside.
	lock := func(name string) string { return filepath.Join(filepath.Dir(config), name+".lock") }
	if !answers(virtlogdSocket) {
		if err := u.startOne(ctx, "virtlogd", virtlogdSocket, "--pid-file", lock("virtlogd")); err != nil {
			return err
		}
	}
	return u.startOne(ctx, "libvirtd", probe.LibvirtSockets[1], "--config", config, "--pid-file", lock("libvirtd"))
}

func (u *up) startOne(ctx context.Context, name, socket string, args ...string) error {
	path, err := Program(name)
	if err != nil {
		return err
	}
	spec := u.daemon(name, "libvirt")
	spec.Command = append([]string{path}, args...)
	process, began, err := u.start(spec)
	if err != nil {
		return err
	}
	err = u.await(ctx, process, "starting "+name, func() (bool, string) { return answers(socket), "waiting for " + socket })
	if err == nil && began {
		u.lines.Notef("%s runs, since none did; its log is %s", name, spec.Log)
	}
	return err
}
