// Installing Debian on the disk from which all machines of a suite start.

package machine

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
)

// addedFiles are the files that a machine has in addition to Debian's: they give it an identity and let the lab log in.
// They configure nothing of libvirt, QEMU or AppArmor.
//
//go:embed all:root
var addedFiles embed.FS

// installedPackages are the packages that an administrator installs on a host, and tools to inspect it.
var installedPackages = []string{
	"linux-image-amd64", "systemd-sysv", "udev", "dbus", "libpam-systemd", "polkitd", "kmod", "apparmor", "ca-certificates",
	"iproute2", "iputils-ping", "nftables", "procps", "openssh-server",
	"libvirt-daemon-system", "libvirt-clients", "qemu-system-x86", "qemu-utils", "numactl", "hwloc-nox", "pciutils", "zstd", "e2fsprogs",
}

// enabledUnits are units that Debian does not enable.
var enabledUnits = []string{
	"systemd-networkd.service", "watari-lab-identity.service", "watari-lab-ready.service", "watari-lab-wait.service",
	"watari-lab-joined.path",
}

// excludedPaths are left out: nobody reads them in a lab.
var excludedPaths = []string{"/usr/share/man/*", "/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*"}

const (
	rootLabel = "watari-root"
	rootSize  = "16G" // size of a sparse file
	rootFile  = "root.img"

	kernelFile = "vmlinuz"
	initrdFile = "initrd"
)

// formatOptions skip zeroing: the sparse file is zero already, so neither mkfs nor the first kernel needs to zero it.
const formatOptions = "lazy_itable_init=0,assume_storage_prezeroed=1"

// rootKey hashes everything that decides the content of the disk, except the versions of packages.
func rootKey(suite string, sources []string) (string, error) {
	hash := sha256.New()
	fmt.Fprintln(hash, suite, sources, installedPackages, enabledUnits, excludedPaths, rootLabel, rootSize, formatOptions)
	err := fs.WalkDir(addedFiles, "root", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := addedFiles.ReadFile(path)
		fmt.Fprintln(hash, path, addedMode(path), len(data))
		hash.Write(data)
		return err
	})
	return hex.EncodeToString(hash.Sum(nil))[:16], err
}

// makeRoot installs Debian and writes the disk, the kernel and the initrd into dir.
func makeRoot(ctx context.Context, suite string, sources []string, dir string) error {
	tree, more := filepath.Join(dir, "tree"), filepath.Join(dir, "added")
	if err := writeAdded(more); err != nil {
		return err
	}
	list := filepath.Join(dir, "sources.list")
	if err := os.WriteFile(list, []byte(strings.Join(sources, "\n")+"\n"), 0o644); err != nil {
		return err
	}
	args := []string{
		"--mode=root", "--variant=apt", "--format=directory", "--include=" + strings.Join(installedPackages, ","),
		`--aptopt=Acquire::Languages "none"`, "--essential-hook=cp -r --preserve=mode " + more + `/. "$1"`,
		`--customize-hook=chroot "$1" systemctl enable ` + strings.Join(enabledUnits, " "),
		`--customize-hook=rm -f "$1"/etc/ssh/ssh_host_* "$1"/etc/resolv.conf; : > "$1"/etc/fstab`,
		`--customize-hook=echo template > "$1"/etc/hostname; chmod 644 "$1"/etc/hostname; echo 127.0.0.1 localhost > "$1"/etc/hosts`,
	}
	for _, path := range excludedPaths {
		args = append(args, "--dpkgopt=path-exclude="+path)
	}
	if err := run(ctx, dir, "mmdebstrap", append(args, suite, tree, list)...); err != nil {
		return fmt.Errorf("install Debian %s: %w", suite, err)
	}
	for pattern, name := range map[string]string{"vmlinuz-*": kernelFile, "initrd.img-*": initrdFile} {
		found, _ := filepath.Glob(filepath.Join(tree, "boot", pattern))
		if len(found) != 1 {
			return fmt.Errorf("install Debian %s: /boot has %d files %s, wanted is one", suite, len(found), pattern)
		}
		if err := run(ctx, dir, "cp", found[0], filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	err := run(ctx, dir, "mke2fs", "-q", "-t", "ext4", "-L", rootLabel, "-m", "0", "-E", formatOptions, "-d", tree,
		filepath.Join(dir, rootFile), rootSize)
	if err != nil {
		return fmt.Errorf("make the disk: %w", err)
	}
	for _, path := range []string{tree, more, list} {
		if err := os.RemoveAll(path); err != nil {
			return err
		}
	}
	return nil
}

// addedMode returns the mode of an added file: embedding does not keep modes.
func addedMode(path string) fs.FileMode {
	if strings.HasPrefix(path, "root/usr/local/lib/") {
		return 0o755
	}
	return 0o644
}

func writeAdded(dir string) error {
	return fs.WalkDir(addedFiles, "root", func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		target := filepath.Join(dir, strings.TrimPrefix(path, "root"))
		if entry.IsDir() {
			return os.MkdirAll(target, 0o755)
		}
		data, err := addedFiles.ReadFile(path)
		if err != nil {
			return err
		}
		return os.WriteFile(target, data, addedMode(path))
	})
}

// run runs a program until it ends, in mount and process namespaces of its own, so that nothing of it remains even if
// this process dies. The program may write anywhere under dir.
func run(ctx context.Context, dir, name string, args ...string) error {
	line := append([]string{"--mount", "--pid", "--mount-proc", "--fork", "--kill-child", "--", name}, args...)
	cmd := exec.CommandContext(ctx, "unshare", line...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "TMPDIR="+dir, "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("%s: %w: %s", name, err, lastLines(string(out), 6))
	}
	return nil
}

// lastLines returns the last n lines of a program's output, joined into one.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "; ")
}
