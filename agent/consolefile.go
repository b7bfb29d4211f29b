package agent

// consolefile.go - the bytes of one console, which may be in several files. A long console loses its middle.

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// consoleFile is one console as a sequence of bytes. If libvirt's virtlogd writes it, a full file becomes
// console.log.0, the earlier console.log.0 becomes console.log.1, and so on. The bytes then begin in the file with the
// highest number.
type consoleFile struct {
	files []*os.File // in the order of their bytes
	sizes []int64
	total int64
}

// openConsole opens the console at path; fs.ErrNotExist: there is none.
func openConsole(path string) (*consoleFile, error) {
	c := &consoleFile{}
	for _, name := range append(rolledOver(path), path) {
		file, err := os.Open(name)
		if errors.Is(err, os.ErrNotExist) && name != path {
			continue // virtlogd renamed a file meanwhile
		}
		if err != nil {
			c.Close()
			return nil, err
		}
		info, err := file.Stat()
		if err != nil {
			file.Close()
			c.Close()
			return nil, err
		}
		c.files, c.sizes = append(c.files, file), append(c.sizes, info.Size())
		c.total += info.Size()
	}
	return c, nil
}

// rolledOver lists the full files of a console that virtlogd has renamed, oldest first.
func rolledOver(path string) []string {
	found, _ := filepath.Glob(path + ".*")
	number := func(name string) int {
		n, err := strconv.Atoi(strings.TrimPrefix(name, path+"."))
		if err != nil {
			return -1
		}
		return n
	}
	found = slices.DeleteFunc(found, func(name string) bool { return number(name) < 0 })
	slices.SortFunc(found, func(a, b string) int { return number(b) - number(a) })
	return found
}

// Close closes the files.
func (c *consoleFile) Close() {
	for _, file := range c.files {
		file.Close()
	}
}

// ReadAt reads from offset up to the end of one file. skipped is the number of dropped bytes before the read bytes. At the
// end, it returns 0, 0, io.EOF.
func (c *consoleFile) ReadAt(buf []byte, offset int64) (n int, skipped int64, err error) {
	begin := int64(0)
	for i, file := range c.files {
		last := i == len(c.files)-1
		if offset >= begin+c.sizes[i] && !last {
			begin += c.sizes[i]
			continue
		}
		data, err := unix.Seek(int(file.Fd()), offset-begin, unix.SEEK_DATA)
		if errors.Is(err, unix.ENXIO) {
			return 0, 0, io.EOF
		}
		if err != nil {
			data = offset - begin // the file system cannot list holes
		}
		if hole, err := unix.Seek(int(file.Fd()), data, unix.SEEK_HOLE); err == nil && hole > data {
			buf = buf[:min(int64(len(buf)), hole-data)]
		}
		n, err = file.ReadAt(buf, data)
		if n > 0 {
			err = nil
		}
		return n, data - (offset - begin), err
	}
	return 0, 0, io.EOF
}

// tail returns the console's last bytes, at most limit.
func (c *consoleFile) tail(limit int64) string {
	var b strings.Builder
	c.copyFrom(&b, max(c.total-limit, 0), c.total)
	return b.String()
}

// copyFrom writes the bytes from offset to end. It writes a line in place of dropped bytes.
func (c *consoleFile) copyFrom(w io.Writer, offset, end int64) error {
	buf := make([]byte, 64<<10)
	for offset < end {
		n, skipped, err := c.ReadAt(buf, offset)
		if skipped > 0 {
			if _, err := io.WriteString(w, notKept(min(skipped, end-offset))); err != nil {
				return err
			}
		}
		offset += skipped
		n = int(min(int64(n), max(end-offset, 0)))
		if _, err := w.Write(buf[:n]); err != nil {
			return err
		}
		offset += int64(n)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// notKept is the line that stands in place of dropped bytes.
func notKept(bytes int64) string { return fmt.Sprintf("\n[%d bytes were not kept]\n", bytes) }

// moveConsole moves the console at path to another place, cut to head and tail bytes.
func moveConsole(path, to string, head, tail int64) (size int64, err error) {
	c, err := openConsole(path)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	part := to + ".part"
	// Only the agent may read the file: a guest's output is private to its user.
	file, err := os.OpenFile(part, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return 0, err
	}
	defer os.Remove(part)
	defer file.Close()
	if c.total <= head+tail {
		err = c.copyFrom(file, 0, c.total)
	} else {
		err = c.copyFrom(file, 0, head)
		if err == nil {
			_, err = file.WriteString(notKept(c.total - head - tail))
		}
		if err == nil {
			err = c.copyFrom(file, c.total-tail, c.total)
		}
	}
	if err != nil {
		return 0, err
	}
	info, err := file.Stat()
	if err != nil {
		return 0, err
	}
	if err := os.Rename(part, to); err != nil {
		return 0, err
	}
	return info.Size(), removeConsole(path)
}

// removeConsole removes the console at path. A missing console is no error.
func removeConsole(path string) error {
	var failed error
	for _, name := range append(rolledOver(path), path) {
		if err := os.Remove(name); err != nil && !errors.Is(err, os.ErrNotExist) {
			failed = err
		}
	}
	return failed
}

// boundConsole frees the middle of a running guest's console, and keeps head and tail bytes. It makes a hole in the
// file, so that offsets stay valid. It does nothing unless the file takes much more than head and tail.
func boundConsole(path string, head, tail int64) error {
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &stat); err != nil {
		return err
	}
	if stat.Blocks*512 <= head+2*tail {
		return nil
	}
	const page = 4096 // holes are made of whole blocks
	begin, end := (head+page-1)/page*page, (stat.Size-tail)/page*page
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_PUNCH_HOLE|unix.FALLOC_FL_KEEP_SIZE, begin, end-begin)
}
