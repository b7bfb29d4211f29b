// Logging in to whole hosts by SSH, with keys that the lab makes.

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"watari/internal/durable"
)

// loginKey is the path of the lab's key for logging in to its whole hosts.
func (l *Lab) loginKey() string { return filepath.Join(l.dir, "login-key") }

func (h wholeHost) hostKey() string   { return filepath.Join(h.dir(), "ssh", "host-key") }
func (h wholeHost) sshConfig() string { return filepath.Join(h.dir(), "ssh", "config") }

// ensureKey makes a key pair at path and path.pub if it does not exist.
func ensureKey(path string) error {
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	unfinished := path + ".new"
	for _, file := range []string{unfinished, unfinished + ".pub"} {
		if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "watari-lab", "-f", unfinished).CombinedOutput(); err != nil {
		return fmt.Errorf("make key %s: ssh-keygen: %w: %s", path, err, out)
	}
	if err := os.Rename(unfinished+".pub", path+".pub"); err != nil {
		return err
	}
	return os.Rename(unfinished, path)
}

// setUpLogin makes the host's key, and writes ssh's configuration for it.
func (h wholeHost) setUpLogin() error {
	dir := filepath.Dir(h.sshConfig())
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	if err := ensureKey(h.hostKey()); err != nil {
		return err
	}
	key, err := os.ReadFile(h.hostKey() + ".pub")
	if err != nil {
		return err
	}
	known := filepath.Join(dir, "known_hosts")
	if err := durable.WriteFile(known, []byte(h.Name+" "+string(key)), 0o600); err != nil {
		return err
	}
	return durable.WriteFile(h.sshConfig(), fmt.Appendf(nil, sshConfig, h.Address, h.Name, h.lab.loginKey(), known), 0o600)
}

// sshConfig selects the fastest algorithms: the machines are emulated.
const sshConfig = `Host *
HostName %s
HostKeyAlias %s
User root
IdentityFile %s
IdentitiesOnly yes
UserKnownHostsFile %s
GlobalKnownHostsFile none
StrictHostKeyChecking yes
BatchMode yes
KexAlgorithms curve25519-sha256
Ciphers aes128-gcm@openssh.com
EscapeChar none
LogLevel ERROR
ConnectTimeout 60
`

// command logs in from the site's router. When the connection ends, the host's kernel kills the command: sshd's process
// dies, then the shell, its child, then the command, the shell's child. The shell passes on the command's exit status.
func (h wholeHost) command(_ int, terminal bool, argv []string) *exec.Cmd {
	const inside = `cd / && exec setpriv --pdeathsig KILL -- sh -c 'setpriv --pdeathsig KILL -- "$@"; exit $?' sh`
	args := []string{"--net=" + h.router(), "--", "ssh", "-F", h.sshConfig()}
	if terminal {
		args = append(args, "-t")
	} else {
		args = append(args, "-T")
	}
	args = append(args, h.Name, inside)
	for _, word := range argv {
		args[len(args)-1] += " " + quote(word)
	}
	return exec.Command("nsenter", args...)
}

// quote quotes a word for the shell.
func quote(word string) string { return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'" }

// crashed ends the commands that were running on the host. Otherwise they would wait for its answer.
func (h wholeHost) crashed(ctx context.Context) error {
	var logins []int
	for _, pid := range allProcesses() {
		data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err == nil && slices.ContainsFunc(bytes.Split(data, []byte{0}), func(word []byte) bool { return string(word) == h.sshConfig() }) {
			logins = append(logins, pid)
		}
	}
	return kill(ctx, logins...)
}
