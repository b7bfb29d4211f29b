package process

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/creack/pty"
	"golang.org/x/sys/unix"
)

// command prepares the command and its streams. The files that it returns are the child's; the caller closes them after
// the start, successful or not.
func (p *Process) command() (*exec.Cmd, []*os.File, error) {
	who, err := findAccount(p.request.GetUser())
	if err != nil {
		return nil, nil, err
	}
	directory := p.request.GetDirectory()
	if directory == "" {
		directory = who.home
		if info, err := os.Stat(directory); err != nil || !info.IsDir() {
			directory = "/"
		}
	} else if err := who.makeDirectory(directory); err != nil {
		return nil, nil, fmt.Errorf("make working directory: %w", err)
	}
	env := who.environment(directory, p.request.GetTty(), append([]string{Mark + "=" + p.mark()}, p.request.GetEnv()...))
	path, err := lookPath(p.request.GetCommand()[0], directory, env)
	if err != nil {
		return nil, nil, err
	}
	command := &exec.Cmd{
		Path: path, Args: p.request.GetCommand(), Env: dedupe(env), Dir: directory,
		SysProcAttr: &syscall.SysProcAttr{Setsid: true, Credential: who.credential},
	}
	var files []*os.File
	if p.request.GetTty() {
		files, err = p.openTerminal(command)
	} else {
		files, err = p.openPipes(command)
	}
	if err != nil {
		for _, file := range files {
			file.Close()
		}
	}
	return command, files, err
}

// openTerminal gives the command a terminal. The terminal's output goes to stdout.
func (p *Process) openTerminal(command *exec.Cmd) ([]*os.File, error) {
	master, slave, err := pty.Open()
	if err != nil {
		return nil, fmt.Errorf("open terminal: %w", err)
	}
	if master, err = pollable(master); err != nil {
		return []*os.File{slave}, fmt.Errorf("open terminal: %w", err)
	}
	p.terminal, p.input = master, master
	p.resize(p.request.GetRows(), p.request.GetColumns())
	if c := command.SysProcAttr.Credential; c != nil {
		slave.Chown(int(c.Uid), int(c.Gid))
	}
	command.Stdin, command.Stdout, command.Stderr = slave, slave, slave
	command.SysProcAttr.Setctty = true
	p.copyOutput(master, p.stdout)
	return []*os.File{slave}, nil
}

// pollable returns the same terminal in non-blocking mode, so that closing it ends pending reads and writes. As the
// library opens it, a read would block as long as a daemon holds the terminal open.
func pollable(terminal *os.File) (*os.File, error) {
	defer terminal.Close()
	fd, err := unix.FcntlInt(terminal.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	if err := unix.SetNonblock(fd, true); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), terminal.Name()), nil
}

// openPipes gives the command pipes, and /dev/null as its input if it takes none.
func (p *Process) openPipes(command *exec.Cmd) (child []*os.File, err error) {
	for _, stream := range []struct {
		to  *output
		set func(*os.File)
	}{
		{p.stdout, func(f *os.File) { command.Stdout = f }},
		{p.stderr, func(f *os.File) { command.Stderr = f }},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			return child, err
		}
		stream.set(w)
		child = append(child, w)
		p.copyOutput(r, stream.to)
	}
	if p.request.GetStdin() {
		r, w, err := os.Pipe()
		if err != nil {
			return child, err
		}
		command.Stdin, p.input = r, w
		child = append(child, r)
	}
	return child, nil
}

// lookPath finds an executable as a shell does in that directory and environment.
func lookPath(name, directory string, env []string) (string, error) {
	if strings.Contains(name, "/") {
		path := name
		if !filepath.IsAbs(path) {
			path = filepath.Join(directory, path)
		}
		_, err := os.Stat(path)
		return path, err
	}
	var search string
	for _, e := range env {
		if value, ok := strings.CutPrefix(e, "PATH="); ok {
			search = value
		}
	}
	for _, d := range filepath.SplitList(search) {
		path := filepath.Join(directory, d, name)
		if filepath.IsAbs(d) {
			path = filepath.Join(d, name)
		}
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && info.Mode()&0o111 != 0 {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s: %w", name, exec.ErrNotFound)
}

// dedupe keeps only the last value of each variable.
func dedupe(env []string) []string {
	last := make(map[string]int)
	for i, e := range env {
		key, _, _ := strings.Cut(e, "=")
		last[key] = i
	}
	var kept []string
	for i, e := range env {
		if key, _, _ := strings.Cut(e, "="); last[key] == i {
			kept = append(kept, e)
		}
	}
	return kept
}
