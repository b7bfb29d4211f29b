package agent

// system.go - the guest's clock, users and system files.

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setClock sets the clock if its error exceeds clockSlack, and returns the step.
func setClock(now time.Time) (time.Duration, error) {
	off := time.Until(now)
	if off.Abs() <= clockSlack {
		return 0, nil
	}
	at := unix.NsecToTimespec(now.UnixNano())
	if err := unix.ClockSettime(unix.CLOCK_REALTIME, &at); err != nil {
		return 0, fmt.Errorf("set the clock to %v: %w", now, err)
	}
	return off, nil
}

// creditEntropy gives the kernel's random generator secret bytes that no other copy of this guest has, and makes the
// generator use them at once (random(4)).
func creditEntropy(secret []byte) error {
	if len(secret) == 0 {
		return nil
	}
	file, err := os.OpenFile("/dev/urandom", os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer file.Close()
	// struct rand_pool_info: bits, bytes, the bytes.
	info := binary.NativeEndian.AppendUint32(nil, uint32(8*len(secret)))
	info = binary.NativeEndian.AppendUint32(info, uint32(len(secret)))
	info = append(info, secret...)
	for len(info)%4 != 0 {
		info = append(info, 0)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), unix.RNDADDENTROPY, uintptr(unsafe.Pointer(&info[0]))); errno != 0 {
		return fmt.Errorf("add %d bytes of entropy: %w", len(secret), errno)
	}
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, file.Fd(), unix.RNDRESEEDCRNG, 0); errno != 0 {
		return fmt.Errorf("reseed the random generator: %w", errno)
	}
	return nil
}

// scatterProcessIDs makes this guest's kernel count its processes from a random number. Otherwise, processes of guests forked from one
// template often have equal ids, with which programs name files in the shared home, seed random generators, and number MPI jobs. A
// kernel that cannot do this goes on from the template's number.
func scatterProcessIDs() {
	const most = 1 << 22 // ids, the kernel's limit
	var random [4]byte
	rand.Read(random[:]) // from the kernel, which has new entropy; the agent's own generator is the template's
	last := 1000 + binary.NativeEndian.Uint32(random[:])%(most-2000)
	_ = os.WriteFile("/proc/sys/kernel/pid_max", []byte(strconv.Itoa(most)), 0)
	_ = os.WriteFile("/proc/sys/kernel/ns_last_pid", []byte(strconv.Itoa(int(last))), 0)
}

// giveBootID gives a guest its own boot id, once. All guests forked from one template have the template's boot id.
// Programs such as UCX, which MPICH uses, assume that processes with equal boot ids are on one machine.
func giveBootID(path string) error {
	const kernels = "/proc/sys/kernel/random/boot_id"
	own, err := os.ReadFile(path)
	if errors.Is(err, os.ErrNotExist) {
		if own, err = os.ReadFile("/proc/sys/kernel/random/uuid"); err == nil { // each read returns a new one
			err = writeFile(path, own, 0o444)
		}
	}
	if err != nil {
		return err
	}
	if now, err := os.ReadFile(kernels); err == nil && bytes.Equal(now, own) {
		return nil
	}
	if err := unix.Mount(path, kernels, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s over %s: %w", path, kernels, err)
	}
	return nil
}

// writeSystemFiles writes host name, hosts and machine id, below root (/ except in tests).
func writeSystemFiles(root string, c checked) error {
	var hosts strings.Builder
	hosts.WriteString("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost\n")
	own := false
	for _, p := range c.GetPeers() {
		fmt.Fprintf(&hosts, "%s\t%s\n", p.GetAddress(), p.GetName())
		own = own || p.GetName() == c.GetName()
	}
	if !own {
		fmt.Fprintf(&hosts, "%s\t%s\n", c.GetAddress(), c.GetName())
	}
	for path, text := range map[string]string{"etc/hosts": hosts.String(), "etc/hostname": c.GetName() + "\n"} {
		if err := writeFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if c.GetMachineId() != "" {
		if err := writeFile(filepath.Join(root, "etc/machine-id"), []byte(c.GetMachineId()+"\n"), 0o444); err != nil {
			return err
		}
	}
	if root != "/" {
		return nil
	}
	if err := unix.Sethostname([]byte(c.GetName())); err != nil {
		return fmt.Errorf("set host name: %w", err)
	}
	return nil
}

// makeUser makes sure that user and group with this name and number exist, below root.
func makeUser(root, name string, id uint32) error {
	number := strconv.FormatUint(uint64(id), 10)
	shell := "/bin/sh"
	if _, err := os.Stat(filepath.Join(root, "bin/bash")); err == nil {
		shell = "/bin/bash"
	}
	for _, f := range []struct {
		path, line string
		mode       os.FileMode
	}{
		{"etc/group", name + ":x:" + number + ":", 0o644},
		{"etc/passwd", name + ":x:" + number + ":" + number + "::/home/" + name + ":" + shell, 0o644},
		{"etc/shadow", name + ":*:19000:0:99999:7:::", 0o640},
	} {
		if err := setEntry(filepath.Join(root, f.path), name, f.line, f.mode); err != nil {
			return err
		}
	}
	home := filepath.Join(root, "home", name)
	if mounted(home) != "" { // do not touch a mounted home: its server may not answer
		return nil
	}
	if err := os.MkdirAll(home, 0o755); err != nil {
		return err
	}
	return nil
}

// setEntry makes a line the entry of name in a colon-separated file, unless the file has an entry with the same name,
// password and number.
func setEntry(path, name, line string, mode os.FileMode) error {
	text, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	var kept strings.Builder
	if strings.HasSuffix(path, "/passwd") && len(text) == 0 {
		kept.WriteString("root:x:0:0:root:/root:/bin/sh\n")
	}
	for have := range strings.Lines(string(text)) {
		fields := strings.Split(strings.TrimSpace(have), ":")
		if fields[0] != name {
			kept.WriteString(strings.TrimRight(have, "\n") + "\n")
			continue
		}
		want := strings.Split(line, ":")
		if strings.HasSuffix(path, "/shadow") || len(fields) > 2 && fields[2] == want[2] {
			return nil
		}
	}
	kept.WriteString(line + "\n")
	if info, err := os.Stat(path); err == nil {
		mode = info.Mode().Perm()
	}
	return writeFile(path, []byte(kept.String()), mode)
}

// startSSH makes keys for the guest's SSH server and starts it, if the image has one. It does not wait for the RSA key: on a host
// without KVM, making it may take a minute.
func (a *Agent) startSSH() {
	server, err := exec.LookPath("/usr/sbin/sshd")
	if err != nil {
		return
	}
	signalServer(unix.SIGTERM)
	old, _ := filepath.Glob("/etc/ssh/ssh_host_*")
	for _, path := range old {
		os.Remove(path)
	}
	for _, kind := range []string{"ed25519", "ecdsa"} {
		if out, err := exec.Command("ssh-keygen", "-q", "-t", kind, "-N", "", "-f", "/etc/ssh/ssh_host_"+kind+"_key").CombinedOutput(); err != nil {
			a.log.Warn("make an SSH host key", "kind", kind, "error", err, "output", string(out))
			return
		}
	}
	os.MkdirAll("/run/sshd", 0o755)
	// The kernel may kill programs of its sessions when memory is short, unlike the agent.
	if out, err := exec.Command("/bin/sh", "-c", `echo 0 >/proc/self/oom_score_adj; exec "$0"`, server).CombinedOutput(); err != nil {
		a.log.Warn("start SSH server", "error", err, "output", string(out))
		return
	}
	if out, err := exec.Command("ssh-keygen", "-A").CombinedOutput(); err != nil {
		a.log.Warn("make the SSH host keys that are missing", "error", err, "output", string(out))
		return
	}
	signalServer(unix.SIGHUP) // it reads its keys again
}

// signalServer sends a signal to the SSH server, and reports whether one runs. Signal 0 only asks.
func signalServer(signal unix.Signal) bool {
	b, err := os.ReadFile("/run/sshd.pid")
	if err != nil {
		return false
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	return err == nil && unix.Kill(pid, signal) == nil
}
