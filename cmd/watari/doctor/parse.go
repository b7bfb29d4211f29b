package doctor

// parse.go - parses the kernel's files under /proc and /sys.

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cpuFlag returns "vmx" or "svm" if the first CPU in /proc/cpuinfo has it.
func cpuFlag(cpuinfo string) string {
	for line := range strings.Lines(cpuinfo) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) != "flags" {
			continue
		}
		for _, flag := range strings.Fields(value) {
			if flag == "vmx" || flag == "svm" {
				return flag
			}
		}
		return ""
	}
	return ""
}

// chosen returns the word in brackets: "always [madvise] never".
func chosen(line string) string {
	_, after, _ := strings.Cut(line, "[")
	word, _, _ := strings.Cut(after, "]")
	return word
}

// meminfo parses /proc/meminfo. Values are KiB or numbers of pages.
func meminfo(text string) map[string]uint64 {
	values := map[string]uint64{}
	for line := range strings.Lines(text) {
		key, value, _ := strings.Cut(line, ":")
		if fields := strings.Fields(value); len(fields) > 0 {
			values[key], _ = strconv.ParseUint(fields[0], 10, 64)
		}
	}
	return values
}

// portOwner reports whether a socket is bound to a port, and the name of the program that has it if the caller may see
// it.
func portOwner(network string, port int) (taken bool, owner string) {
	var inodes []string
	for _, file := range []string{"/proc/net/" + network, "/proc/net/" + network + "6"} {
		data, _ := os.ReadFile(file)
		inodes = append(inodes, boundSockets(string(data), network == "tcp", port)...)
	}
	if len(inodes) == 0 {
		return false, ""
	}
	links, _ := filepath.Glob("/proc/[0-9]*/fd/*")
	for _, link := range links {
		target, err := os.Readlink(link)
		if err == nil && slices.ContainsFunc(inodes, func(inode string) bool { return target == "socket:["+inode+"]" }) {
			return true, text(filepath.Join(filepath.Dir(filepath.Dir(link)), "comm"))
		}
	}
	return true, ""
}

// boundSockets parses /proc/net/tcp and similar files (proc(5)). It returns the inodes of sockets at a local port; for
// TCP, only of listening sockets.
func boundSockets(table string, listening bool, port int) (inodes []string) {
	const listen = "0A"
	local := fmt.Sprintf(":%04X", port)
	lines := bufio.NewScanner(strings.NewReader(table))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) > 9 && strings.HasSuffix(fields[1], local) && (!listening || fields[3] == listen) {
			inodes = append(inodes, fields[9])
		}
	}
	return inodes
}
