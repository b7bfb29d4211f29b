package local

// libvirt.go - finds libvirt's daemons, or starts them if nothing else starts them.

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

// libvirtConfig makes libvirtd listen on no network, and makes its sockets accessible to root alone.
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

// LibvirtSocket returns the path of a socket on which a libvirt daemon answers; "" if none does.
func LibvirtSocket() string {
	for _, socket := range probe.LibvirtSockets {
		if answers(socket) {
			return socket
		}
	}
	return ""
}

// startLibvirt starts libvirt's daemons if none answers. With systemd, a connection to their sockets starts them.
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
	// The daemons lock pid files of their own. The pid files beside those are ours; they identify processes reliably.
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
		u.lines.Notef("started %s, because none was running; its log is %s", name, spec.Log)
	}
	return err
}
