package image

// initrd.go - writes the initial RAM file system.

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/u-root/u-root/pkg/cpio"

	"watari/guest/initd"
)

// ModuleList is the file in the initrd with the paths of the modules, one per line, in load order.
const ModuleList = "/watari/modules"

// Provider is the file name of PM's libfabric provider. libfabric looks for names of this form.
const Provider = "libpm-fi.so"

// launcherOf returns the path of watari-guest-rsh, which is built together with the guest agent and is beside it.
func launcherOf(agent string) string {
	return filepath.Join(filepath.Dir(agent), path.Base(initd.Launcher))
}

// writeInitrd writes an initial RAM file system with the guest agent as /init, watari-guest-rsh, the modules, a console
// device, and PM's provider unless pm is "". It is not compressed: on an emulated CPU, unpacking takes longer than loading.
func writeInitrd(target, agent, pm string, modules []moduleFile) error {
	program, err := readELF("guest agent", agent)
	if err != nil {
		return err
	}
	launcher, err := readELF("MPI launchers' program", launcherOf(agent))
	if err != nil {
		return err
	}
	records := []cpio.Record{
		cpio.Directory("dev", 0o755),
		cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.CharDev("dev/null", 0o666, 1, 3),
		cpio.Directory("proc", 0o755),
		cpio.Directory("sys", 0o755),
		cpio.Directory("run", 0o755),
		cpio.StaticFile("init", program, 0o755),
		cpio.StaticFile(strings.TrimPrefix(initd.LauncherInitrd, "/"), launcher, 0o755),
	}
	if pm != "" {
		provider, err := readELF("PM's provider", pm)
		if err != nil {
			return err
		}
		records = append(records, cpio.StaticFile(path.Join(strings.TrimPrefix(initd.ProvidersInitrd, "/"), Provider), provider, 0o644))
	}
	var list strings.Builder
	for _, module := range modules {
		content, err := os.ReadFile(module.Source)
		if err != nil {
			return fmt.Errorf("kernel module: %w", err)
		}
		records = append(records, cpio.StaticFile(strings.TrimPrefix(module.Path, "/"), string(content), 0o644))
		fmt.Fprintln(&list, module.Path)
	}
	records = append(records, cpio.StaticFile(strings.TrimPrefix(ModuleList, "/"), list.String(), 0o644))
	return writeArchive(target, withParents(records))
}

// readELF reads a program or library for guests.
func readELF(what, path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("%s: %w", what, err)
	}
	if !strings.HasPrefix(string(content[:min(4, len(content))]), "\x7fELF") {
		return "", fmt.Errorf("%s %s is not a program or library", what, path)
	}
	return string(content), nil
}

// withParents inserts before each record its parent directories.
func withParents(records []cpio.Record) []cpio.Record {
	seen := map[string]bool{".": true}
	var list []cpio.Record
	var parent func(name string)
	parent = func(name string) {
		if !seen[name] {
			seen[name] = true
			parent(path.Dir(name))
			list = append(list, cpio.Directory(name, 0o755))
		}
	}
	for _, record := range records {
		if seen[record.Name] {
			continue
		}
		parent(path.Dir(record.Name))
		seen[record.Name] = true
		list = append(list, record)
	}
	return list
}

// writeArchive writes a cpio archive. Equal records give equal archives.
func writeArchive(target string, records []cpio.Record) error {
	file, err := os.Create(target)
	if err != nil {
		return diskError(err, filepath.Dir(target))
	}
	buffer := bufio.NewWriterSize(file, 1<<20)
	writer := cpio.Newc.Writer(buffer)
	for i := range records {
		records[i] = cpio.MakeReproducible(records[i])
		records[i].Ino = uint64(i + 1)
	}
	err = cpio.WriteRecords(writer, records)
	if err == nil {
		err = cpio.WriteTrailer(writer)
	}
	if err = errors.Join(err, buffer.Flush(), file.Close()); err != nil {
		return diskError(fmt.Errorf("write %s: %w", target, err), filepath.Dir(target))
	}
	return nil
}
