package initd

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// modulesFile lists the initrd's modules, a path each, in load order.
const modulesFile = "/watari/modules"

// module is an opened module file, which may be loaded after the initrd's files are out of reach.
type module struct {
	name string
	file *os.File
}

// moduleName is the module's name in a path such as /lib/modules/6.1/kernel/drivers/char/virtio-rng.ko.
func moduleName(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
}

// splitModules parts a list of paths after the last one that booting needs.
func splitModules(paths []string) (early, late []string) {
	needed := make(map[string]bool)
	for _, name := range Modules {
		needed[name] = true
	}
	last := 0
	for i, path := range paths {
		if needed[moduleName(path)] {
			last = i + 1
		}
	}
	return paths[:last], paths[last:]
}

// listModules reads the list of modules; without one the kernel is taken to have all it needs built in.
func listModules(path string) ([]string, error) {
	file, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer file.Close()
	var paths []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		if line := strings.TrimSpace(lines.Text()); line != "" && line[0] != '#' {
			paths = append(paths, line)
		}
	}
	return paths, lines.Err()
}

// openModules opens module files and takes them out of the initrd, so that their memory is freed with them.
func openModules(paths []string) []module {
	var modules []module
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			say("module %s: %v", moduleName(path), err)
			continue
		}
		os.Remove(path)
		modules = append(modules, module{moduleName(path), file})
	}
	return modules
}

// load loads modules, says which ones failed, and closes their files. It returns how many are loaded.
func load(modules []module) int {
	loaded := 0
	for _, m := range modules {
		err := unix.FinitModule(int(m.file.Fd()), "", 0)
		m.file.Close()
		switch {
		case err == nil || errors.Is(err, unix.EEXIST):
			loaded++
		default:
			say("module %s: %v", m.name, fmt.Errorf("load: %w", err))
		}
	}
	return loaded
}
