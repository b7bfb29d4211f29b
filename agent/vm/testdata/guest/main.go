// Command guest is the whole user space of the driver's test guests: it loads the modules it finds, counts on
// the console ten times a second, and dirties as much memory per second as the kernel's command line asks.
package main

import (
	"fmt"
	"os"
	"sort"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"
)

func main() {
	os.MkdirAll("/proc", 0o755)
	os.MkdirAll("/dev", 0o755)
	syscall.Mount("proc", "/proc", "proc", 0, "")
	syscall.Mount("dev", "/dev", "devtmpfs", 0, "")
	console, err := os.OpenFile("/dev/console", os.O_RDWR, 0)
	if err != nil {
		console = os.Stdout
	}
	loadModules(console)
	args := arguments()
	if mib, _ := strconv.Atoi(args["test.dirty"]); mib > 0 {
		go dirty(mib)
	}
	period, _ := time.ParseDuration(args["test.period"])
	if period <= 0 {
		period = 100 * time.Millisecond
	}
	var uptime syscall.Timespec
	for n := 1; ; n++ {
		clockGettimeBoot(&uptime)
		fmt.Fprintf(console, "count %d boot %d ms clock %d ms\n", n, uptime.Nano()/1e6, time.Now().UnixMilli())
		time.Sleep(period)
	}
}

// loadModules loads /lib/modules/NN-name.ko in the order of their names.
func loadModules(console *os.File) {
	entries, _ := os.ReadDir("/lib/modules")
	names := []string{}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	sort.Strings(names)
	empty := [1]byte{}
	for _, name := range names {
		f, err := os.Open("/lib/modules/" + name)
		if err != nil {
			continue
		}
		const finitModule = 313
		if _, _, errno := syscall.Syscall(finitModule, f.Fd(), uintptr(unsafe.Pointer(&empty[0])), 0); errno != 0 {
			fmt.Fprintf(console, "module %s: %v\n", name, errno)
		}
		f.Close()
	}
}

func clockGettimeBoot(t *syscall.Timespec) {
	const clockGettime, clockBoottime = 228, 7
	syscall.Syscall(clockGettime, clockBoottime, uintptr(unsafe.Pointer(t)), 0)
}

// arguments splits the kernel's command line at blanks and equals signs.
func arguments() map[string]string {
	line, _ := os.ReadFile("/proc/cmdline")
	args := map[string]string{}
	for _, word := range strings.Fields(string(line)) {
		key, value, _ := strings.Cut(word, "=")
		args[key] = value
	}
	return args
}

// dirty writes to every page of mib MiB over and over.
func dirty(mib int) {
	block := make([]byte, mib<<20)
	for n := byte(1); ; n++ {
		for i := 0; i < len(block); i += 4096 {
			block[i] = n
			block[i+8] = byte(i >> 12)
		}
		time.Sleep(time.Millisecond)
	}
}
