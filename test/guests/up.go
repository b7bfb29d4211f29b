package main

// up.go - runs guests as long as this process lives.

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"watari/guest/bare"
	"watari/guest/image"
	"watari/guest/initd"
)

type options struct {
	guests, memory, shared          int
	cpus, packages, modules, folder string
	command                         []string
}

const (
	// defaultCPUs allows a second CPU. With at most one CPU, the emulator does not use the machine's atomic
	// instructions and fences, which is wrong if another process shares the memory.
	defaultCPUs = "1,maxcpus=2"
	agentFile   = "agent"  // in a guest's directory: the socket for calls to its agent
	memoryFile  = "memory" // a link to the memory to be plugged in
	bootLimit   = 2 * time.Minute
)

// up holds what has been started.
type up struct {
	folder string
	guests []*bare.Guest
}

// end ends everything.
func (u *up) end() {
	for _, g := range u.guests {
		g.End()
	}
	os.RemoveAll(u.folder)
}

func start(ctx context.Context, o options) (*up, error) {
	// The guests end when the thread that started them ends.
	runtime.LockOSThread()
	u := &up{folder: o.folder}
	var err error
	if u.folder == "" {
		sweep()
		u.folder, err = os.MkdirTemp("", prefix+strconv.Itoa(os.Getpid())+"-")
	} else {
		err = os.Mkdir(u.folder, 0o755)
	}
	if err != nil {
		return u, err
	}
	if err := u.makeMemory(o.shared); err != nil {
		return u, err
	}
	files := filepath.Join(u.folder, "image")
	if err := build(ctx, o, files); err != nil {
		return u, err
	}
	return u, u.boot(ctx, o, files)
}

// prefix is the prefix of directory names. The process id follows.
const prefix = "watari-guests-"

// sweep removes directories of killed processes.
func sweep() {
	left, _ := filepath.Glob(filepath.Join(os.TempDir(), prefix+"*"))
	for _, folder := range left {
		number, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(folder), prefix), "-")
		if process, err := strconv.Atoi(number); err == nil && unix.Kill(process, 0) == unix.ESRCH {
			os.RemoveAll(folder)
		}
	}
}

// makeMemory makes memory without a name in the file system, which is freed after its last user.
func (u *up) makeMemory(megabytes int) error {
	descriptor, err := unix.MemfdCreate("shared by guests", unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.Ftruncate(descriptor, int64(megabytes)<<20); err != nil {
		return err
	}
	return os.Symlink(fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), descriptor), filepath.Join(u.folder, memoryFile))
}

// build makes the image, or takes it from the cache.
func build(ctx context.Context, o options, folder string) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	recipe := image.Recipe{
		Packages: strings.Split(o.packages, ","), Cache: bare.Cache,
		GuestAgent:  filepath.Join(filepath.Dir(program), "watari-guest"),
		LateModules: []string{"virtio_rng"}, // not the modules of the shared home, which is not used and loads slowly
	}
	if o.modules != "" {
		recipe.LateModules = append(recipe.LateModules, strings.Split(o.modules, ",")...)
	}
	if _, err := image.Build(ctx, recipe, folder, nil); err != nil {
		return fmt.Errorf("make the guests' image: %w", err)
	}
	return nil
}

func (u *up) boot(ctx context.Context, o options, files string) error {
	ctx, cancel := context.WithTimeout(ctx, bootLimit)
	defer cancel()
	identities, err := bare.Identities(2)
	if err != nil {
		return err
	}
	for i := range o.guests {
		folder := filepath.Join(u.folder, strconv.Itoa(i))
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
		identities[i].HomeServer = "" // each guest has its own home: the tests need no shared one
		g, err := bare.Start(identities[i], bare.Options{
			Image: files, Directory: folder, Network: filepath.Join(u.folder, "network"), Index: i, Memory: o.memory, CPUs: o.cpus,
		})
		if err != nil {
			return err
		}
		u.guests = append(u.guests, g)
	}
	for i, g := range u.guests {
		_, err := g.Identify(ctx)
		if err == nil {
			_, err = g.Run(ctx, "", "until [ -e "+initd.ModulesLoaded+" ]; do sleep 0.1; done", io.Discard, io.Discard)
		}
		if err != nil {
			console, _ := os.ReadFile(g.Console)
			return errors.Join(err, fmt.Errorf("its console: %s", console))
		}
		if err := g.Serve(filepath.Join(u.folder, strconv.Itoa(i), agentFile)); err != nil {
			return err
		}
	}
	return nil
}
