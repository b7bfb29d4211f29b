package test

// ssh_test.go - ordinary ssh and scp to guests.

import (
	"strings"
	"testing"
	"time"
)

// An image with sshd has an ordinary SSH server with its own keys in each guest. Programs may be launched by ssh.
func TestOrdinarySSH(t *testing.T) {
	full(t)
	must(t, "image", "build", "ssh", "--packages", "openmpi-bin,openssh-server,openssh-client")
	newCluster(t, "sh", 2, "--image", "ssh", "--spread", "site")
	settled(t, "sh", 2)
	asUser := func(script string) string {
		return must(t, "guest", "exec", "-u", "watari", "sh-0", "--", "sh", "-ec", script)
	}
	until(t, settle, "the SSH servers answer with keys of their own", func() (bool, string) {
		out, err := shared.watari(time.Minute, "guest", "exec", "sh-0", "--", "sh", "-c", "ssh-keyscan -t ed25519 sh-0 sh-1 2>/dev/null | cut -d' ' -f3 | sort -u | wc -l")
		return err == nil && strings.TrimSpace(out) == "2", out
	})
	asUser(`mkdir -p -m 700 ~/.ssh; ssh-keygen -q -t ed25519 -N "" -f ~/.ssh/id_ed25519; cp ~/.ssh/id_ed25519.pub ~/.ssh/authorized_keys
		printf "StrictHostKeyChecking accept-new\nLogLevel ERROR\n" > ~/.ssh/config`)
	if out := asUser("ssh sh-1 hostname"); strings.TrimSpace(out) != "sh-1" {
		t.Errorf("ssh to sh-1 came to %q", out)
	}
	out := must(t, "run", "sh", "-e", "OMPI_MCA_plm_rsh_agent=ssh", "--", "hostname")
	for _, name := range []string{"sh-0", "sh-1"} {
		if !strings.Contains(out, name) {
			t.Errorf("launched by ssh, no rank ran on %s:\n%s", name, out)
		}
	}
	until(t, patience, "the SSH server has an RSA key, too", func() (bool, string) {
		out, err := shared.watari(time.Minute, "guest", "exec", "sh-0", "--", "ssh-keyscan", "-t", "rsa", "sh-0")
		return err == nil && strings.Contains(out, "ssh-rsa "), out
	})
}
