// Command guest is the whole user space of the driver's test guests: it loads the modules it finds, counts on
// the console ten times a second, and dirties and checks as much memory as the kernel's command line asks.
package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
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
	if mib, _ := strconv.Atoi(args["test.check"]); mib > 0 {
		go check(console, mib)
	}
	period, _ := time.ParseDuration(args["test.period"])
	if period <= 0 {
		period = 100 * time.Millisecond
	}
	if mib, _ := strconv.Atoi(args["test.random"]); mib > 0 {
		scatter(console, mib, period)
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

// scatter writes to random pages of mib MiB, as fast as it can, and says each period how many it has written to. The
// bytes compress to about half.
func scatter(console *os.File, mib int, period time.Duration) {
	block := make([]byte, mib<<20)
	for page := 0; page < len(block); page += 4096 {
		for i := page; i < page+2048; i += 8 {
			binary.LittleEndian.PutUint64(block[i:], rand.Uint64())
		}
	}
	for n, next := 1, time.Now(); ; n += 50 {
		for range 50 {
			block[rand.IntN(mib<<8)*4096+rand.IntN(4096)]++
		}
		if now := time.Now(); now.After(next) {
			fmt.Fprintf(console, "count %d\n", n)
			next = now.Add(period)
		}
	}
}

// check writes to every page of mib MiB over and over, and tells of each page that does not hold what was written last.
// It writes 5,000 pages a second, so that a migration of 32 MiB/s takes several rounds, and makes no system call
// between, since each may make the emulator forget which pages it may write to unseen.
func check(console *os.File, mib int) {
	block := make([]uint32, mib<<20/4)
	begun := time.Now()
	written := time.Duration(0)
	for n := uint32(0); ; n++ {
		for i := 0; i < len(block); i += 1024 {
			if block[i] != n {
				fmt.Fprintf(console, "lost: page %d holds %d instead of %d\n", i/1024, block[i], n)
			}
			block[i] = n + 1
			for written++; time.Since(begun) < written*200*time.Microsecond; {
			}
		}
	}
}
