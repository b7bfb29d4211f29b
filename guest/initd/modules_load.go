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

// modulesFile lists the paths of the initrd's modules in load order.
const modulesFile = "/watari/modules"

// module is an open module file. It can be loaded after the initrd is no longer accessible.
type module struct {
	name string
	file *os.File
}

// moduleName returns the module's name from a path such as /lib/modules/6.1/kernel/drivers/char/virtio-rng.ko.
func moduleName(path string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(path), ".ko"), "-", "_")
}

// splitModules splits a list of paths after the last module that booting needs.
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

// listModules reads the list of modules. If there is none, all needed modules are assumed to be built in.
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

// openModules opens the module files and deletes them from the initrd. Closing them then frees their memory.
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

// load loads modules, prints those that fail, and closes their files. It returns the number of loaded modules.
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
