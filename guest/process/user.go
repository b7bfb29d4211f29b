package process

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"syscall"
)

// account is the user that a process runs as.
type account struct {
	name, home, shell string
	credential        *syscall.Credential // nil: our own
}

const (
	rootPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	userPath = "/usr/local/bin:/usr/bin:/bin:/usr/local/games:/usr/games"
)

// findAccount looks up a user and the user's groups.
func findAccount(name string) (account, error) {
	if name == "" {
		name = "root"
	}
	u, err := user.Lookup(name)
	if err != nil {
		if name == "root" { // an image may have no /etc/passwd
			return account{name: "root", home: "/root", shell: "/bin/sh"}, nil
		}
		return account{}, fmt.Errorf("run as user %s: %w", name, err)
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("user %s: number %q: %w", name, u.Uid, err)
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return account{}, fmt.Errorf("user %s: group number %q: %w", name, u.Gid, err)
	}
	a := account{name: name, home: u.HomeDir, shell: shellOf(name)}
	if int(uid) == os.Geteuid() {
		return a, nil
	}
	a.credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	ids, err := u.GroupIds()
	if err != nil {
		ids = []string{u.Gid}
	}
	for _, id := range ids {
		if n, err := strconv.ParseUint(id, 10, 32); err == nil {
			a.credential.Groups = append(a.credential.Groups, uint32(n))
		}
	}
	return a, nil
}

// shellOf returns a user's shell, which os/user does not provide.
func shellOf(name string) string {
	b, _ := os.ReadFile("/etc/passwd")
	for line := range strings.Lines(string(b)) {
		if f := strings.Split(strings.TrimSpace(line), ":"); len(f) == 7 && f[0] == name && f[6] != "" {
			return f[6]
		}
	}
	return "/bin/sh"
}

// environment returns the environment of a process. The caller's variables come last and override the others.
func (a account) environment(directory string, tty bool, extra []string) []string {
	path := userPath
	if a.name == "root" {
		path = rootPath
	}
	env := []string{
		"PATH=" + path, "HOME=" + a.home, "USER=" + a.name, "LOGNAME=" + a.name, "SHELL=" + a.shell,
		"PWD=" + directory, "LANG=C.UTF-8",
	}
	if tty {
		env = append(env, "TERM=xterm-256color")
	}
	return append(env, extra...)
}

// makeDirectory makes a directory and its parents if they do not exist. The user owns the new directories.
func (a account) makeDirectory(path string) error {
	if info, err := os.Stat(path); err == nil {
		if !info.IsDir() {
			return fmt.Errorf("%s is not a directory", path)
		}
		return nil
	}
	for i := 1; i <= len(path); i++ {
		if i < len(path) && path[i] != '/' {
			continue
		}
		err := os.Mkdir(path[:i], 0o755)
		if os.IsExist(err) {
			continue
		} else if err != nil {
			return err
		}
		if a.credential != nil {
			if err := os.Chown(path[:i], int(a.credential.Uid), int(a.credential.Gid)); err != nil {
				return err
			}
		}
	}
	return nil
}
