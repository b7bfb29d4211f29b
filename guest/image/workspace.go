package image

// workspace.go - the cache, and the directories of a build.

import (
	"bufio"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"watari/internal/durable"
)

// The number of entries of each kind that the cache keeps. It removes the least recently used first.
const (
	keptRoots   = 6
	keptKernels = 4
)

// recipeVersion is part of every key of the cache. Change it when equal recipes begin to give a different root or
// kernel.
const recipeVersion = "3"

// workspace is the cache during one build:
//
//	roots/<key>/    root, entry.json, and boot/ where the root brought its own kernel
//	kernels/<key>/  kernel, modules/, entry.json
//	apt/            apt's own package lists and packages; apt-SUITE/ those of another Debian release
//	build-*/        what is being made; removed at the end, also by the next build after a crash
//	output-*/       see OutputFolder
//	lock            held by the one build at a time
type workspace struct {
	cache    string
	temp     string
	lock     *os.File
	progress func(Progress)
	sources  *sources
	packages *apt // set by apt
}

// openWorkspace waits until no other build uses the cache, and then locks it.
func openWorkspace(ctx context.Context, cache string, progress func(Progress)) (*workspace, error) {
	cache, err := filepath.Abs(cache)
	if err != nil {
		return nil, err
	}
	if err := makeCache(cache); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(cache, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, cacheError(err, cache)
	}
	if err := waitForLock(ctx, lock, progress); err != nil {
		lock.Close()
		return nil, err
	}
	w := &workspace{cache: cache, lock: lock, progress: progress}
	w.removeStale()
	if w.temp, err = os.MkdirTemp(cache, "build-"); err != nil {
		lock.Close()
		return nil, diskError(err, cache)
	}
	return w, os.Chmod(w.temp, 0o755)
}

// staleAge is the age at which an OutputFolder directory is considered left over from a crash.
const staleAge = 24 * time.Hour

// removeStale removes what killed builds left.
func (w *workspace) removeStale() {
	stale, _ := filepath.Glob(filepath.Join(w.cache, "build-*"))
	for _, dir := range stale {
		removeTree(dir)
	}
	stale, _ = filepath.Glob(filepath.Join(w.cache, "output-*"))
	for _, dir := range stale {
		if time.Since(modTime(dir)) > staleAge {
			os.RemoveAll(dir)
		}
	}
}

// OutputFolder makes a directory for an image that Build writes only to be passed on. It is beside the cache ("" means
// DefaultCache), so that the blobs need not be copied. The caller removes it.
func OutputFolder(cache string) (string, error) {
	if cache == "" {
		cache = DefaultCache
	}
	if err := makeCache(cache); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(cache, "output-")
	return dir, cacheError(err, cache)
}

func makeCache(cache string) error {
	return cacheError(os.MkdirAll(cache, 0o755), filepath.Dir(cache))
}

func cacheError(err error, dir string) error {
	if errors.Is(err, fs.ErrPermission) {
		return fmt.Errorf("image cache: %w: run as root (sudo), or set a directory of your own with --cache", err)
	}
	return diskError(err, dir)
}

func waitForLock(ctx context.Context, lock *os.File, progress func(Progress)) error {
	for first := true; ; first = false {
		err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			return nil
		}
		if err != unix.EWOULDBLOCK && err != unix.EINTR {
			return fmt.Errorf("lock %s: %w", lock.Name(), err)
		}
		if first {
			progress(Progress{Step: "wait for another image build"})
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(200 * time.Millisecond):
		}
	}
}

func (w *workspace) close() {
	removeTree(w.temp)
	w.lock.Close()
}

// removeTree removes a directory of a build and unmounts everything that a killed build left mounted in it. If a mount
// remains, removeTree removes nothing: the mount may contain the host's files.
func removeTree(dir string) {
	for range 3 {
		mounts := mountsBelow(dir)
		if len(mounts) == 0 {
			os.RemoveAll(dir)
			return
		}
		for _, mount := range slices.Backward(mounts) {
			_ = unix.Unmount(mount, unix.MNT_DETACH)
		}
	}
}

// mountsBelow lists the mount points in dir, outer ones first.
func mountsBelow(dir string) []string {
	file, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil
	}
	defer file.Close()
	var list []string
	for scanner := bufio.NewScanner(file); scanner.Scan(); {
		fields := strings.Fields(scanner.Text())
		if len(fields) < 5 {
			continue
		}
		if point := unescapeMount(fields[4]); strings.HasPrefix(point, dir+"/") {
			list = append(list, point)
		}
	}
	return list
}

// unescapeMount decodes the kernel's octal escapes ("\040") in a path of mountinfo.
func unescapeMount(text string) string {
	var out strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '\\' && i+3 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+4], 8, 8); err == nil {
				out.WriteByte(byte(n))
				i += 3
				continue
			}
		}
		out.WriteByte(text[i])
	}
	return out.String()
}

// key hashes the parts that determine an entry of the cache.
func key(parts ...string) string {
	hash := sha256.New()
	for _, part := range append([]string{recipeVersion}, parts...) {
		fmt.Fprintf(hash, "%d:%s\n", len(part), part)
	}
	return hex.EncodeToString(hash.Sum(nil))[:40]
}

// cached finds a complete entry of the cache and reads its description.
func (w *workspace) cached(kind, key string, entry any) (dir string, ok bool) {
	dir = filepath.Join(w.cache, kind, key)
	if readEntry(dir, entry) != nil {
		return dir, false
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now) // marks it as used now
	return dir, true
}

func readEntry(dir string, entry any) error {
	text, err := os.ReadFile(filepath.Join(dir, "entry.json"))
	if err != nil {
		return err
	}
	return json.Unmarshal(text, entry)
}

// writeEntry writes the description of the directory dir. An entry is complete when it has its description.
func writeEntry(dir string, entry any) error {
	text, err := json.MarshalIndent(entry, "", "  ")
	if err != nil {
		return err
	}
	return diskError(os.WriteFile(filepath.Join(dir, "entry.json"), append(text, '\n'), 0o644), dir)
}

// keep moves a finished directory into the cache and removes the oldest entries above limit.
func (w *workspace) keep(made, kind, key string, limit int) (string, error) {
	parent := filepath.Join(w.cache, kind)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return "", diskError(err, w.cache)
	}
	dir := filepath.Join(parent, key)
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.Rename(made, dir); err != nil {
		return "", diskError(err, w.cache)
	}
	now := time.Now()
	_ = os.Chtimes(dir, now, now)
	entries, err := os.ReadDir(parent)
	if err != nil {
		return "", err
	}
	var infos []fs.FileInfo
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil {
			infos = append(infos, info)
		}
	}
	slices.SortFunc(infos, func(a, b fs.FileInfo) int { return cmp.Compare(b.ModTime().UnixNano(), a.ModTime().UnixNano()) })
	for _, info := range infos[min(limit, len(infos)):] {
		os.RemoveAll(filepath.Join(parent, info.Name()))
	}
	return dir, nil
}

// linkOrCopy makes target a hard link to source, or a copy if they are on different file systems.
func linkOrCopy(source, target string) error {
	_ = os.Remove(target)
	if os.Link(source, target) == nil {
		return nil
	}
	return copyFile(source, target)
}

func copyFile(source, target string) error {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(target)
	if err != nil {
		return diskError(err, filepath.Dir(target))
	}
	_, err = io.Copy(out, in)
	if err = errors.Join(err, out.Close()); err != nil {
		return diskError(fmt.Errorf("copy %s to %s: %w", source, target, err), filepath.Dir(target))
	}
	return nil
}

// diskError adds to the error of a full disk which disk it is and how to make room.
func diskError(err error, dir string) error {
	if !durable.IsFull(err) {
		return err
	}
	return fullDisk(dir)
}

func fullDisk(dir string) error {
	var stat unix.Statfs_t
	free := ""
	if unix.Statfs(dir, &stat) == nil {
		free = fmt.Sprintf(" (%d MiB free)", stat.Bavail*uint64(stat.Bsize)>>20)
	}
	return fmt.Errorf("the disk is full at %s%s: make room there, or set another directory with --cache: %w", dir, free, syscall.ENOSPC)
}
