// The files of a host: the directories that survive a crash, and the configuration of its libvirt daemon.

package lab

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"watari/internal/durable"
)

// privateDirectories are the directories that each host has for itself, keyed by their names in the host's directory of
// the lab's state.
var privateDirectories = map[string]string{
	"etc-libvirt":       "/etc/libvirt",
	"var-lib-libvirt":   "/var/lib/libvirt",
	"var-log-libvirt":   "/var/log/libvirt",
	"var-cache-libvirt": "/var/cache/libvirt",
	"var-lib-watari":    "/var/lib/watari",
}

// privateFiles is the same for single files.
var privateFiles = map[string]string{"hosts": "/etc/hosts", "hostname": "/etc/hostname"}

func (l *Lab) writeHostFiles(host Host) error {
	dir := l.hostDir(host.Name)
	for name := range privateDirectories {
		if err := os.MkdirAll(filepath.Join(dir, name), 0o755); err != nil {
			return err
		}
	}
	files := map[string]string{
		"hosts":                     l.hostsFile(),
		"hostname":                  host.Name + "\n",
		"etc-libvirt/libvirtd.conf": fmt.Sprintf(libvirtdConf, l.state.UUIDs[host.Name]),
		"etc-libvirt/qemu.conf":     fmt.Sprintf(qemuConf, host.Address, host.Address),
	}
	for name, text := range files {
		path := filepath.Join(dir, name)
		if old, err := os.ReadFile(path); err == nil && string(old) == text {
			continue // a running host has this file mounted and would not see a replacement
		}
		if err := durable.WriteFile(path, []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// hostsFile lets every host resolve the names of all hosts: libvirt looks up its own host's name at every migration.
func (l *Lab) hostsFile() string {
	var b strings.Builder
	b.WriteString("127.0.0.1 localhost\n")
	for _, h := range l.Hosts() {
		fmt.Fprintf(&b, "%s %s\n", h.Address, h.Name)
	}
	return b.String()
}

const libvirtdConf = `# Written by watari lab.
host_uuid = "%s"
auth_unix_rw = "none"
unix_sock_ro_perms = "0700"
unix_sock_rw_perms = "0700"
log_level = 3
log_outputs = "3:stderr"
`

// QEMU runs unprivileged, as Debian's libvirt configures it, but without a private /dev and without control groups: the
// host's namespaces contain it already. QEMU writes its output to a file itself, so that no virtlogd is needed.
// libvirt's migration connections notice a dead peer within 18 s.
const qemuConf = `# Written by watari lab.
namespaces = []
cgroup_controllers = []
stdio_handler = "file"
max_core = 0
migration_address = "%s"
migration_host = "%s"
keepalive_interval = 3
keepalive_count = 5
`

func readJSON(path string, value any) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(data, value); err != nil {
		return fmt.Errorf("read %s: %w", path, err)
	}
	return nil
}
