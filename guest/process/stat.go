package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	v1 "watari/api/watariv1"
)

// ticksPerSecond is the unit of times in /proc (USER_HZ).
const ticksPerSecond = 100

// stat is what the kernel says of a process in /proc/PID/stat (proc(5)).
type stat struct {
	name, state     string
	parent, session int
	born            uint64 // clock ticks after boot; tells it from a later process with the same id
	used            uint64 // processor time, clock ticks
	resident        uint64 // bytes of memory
}

func readStat(pid int) (stat, error) {
	text, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return stat{}, err
	}
	// The name, in brackets, may contain anything. The third field follows it.
	begin, end := bytes.IndexByte(text, '('), bytes.LastIndexByte(text, ')')
	fields := strings.Fields(string(text[end+1:]))
	if begin < 0 || end < begin || len(fields) < 22 {
		return stat{}, fmt.Errorf("unexpected %s", text)
	}
	var numbers [25]uint64 // by the fields' numbers in proc(5)
	for _, n := range []int{4, 6, 14, 15, 22, 24} {
		if numbers[n], err = strconv.ParseUint(fields[n-3], 10, 64); err != nil {
			return stat{}, fmt.Errorf("unexpected %s: %w", text, err)
		}
	}
	return stat{
		name: string(text[begin+1 : end]), state: fields[0], parent: int(numbers[4]), session: int(numbers[6]),
		used: numbers[14] + numbers[15], born: numbers[22], resident: numbers[24] * uint64(os.Getpagesize()),
	}, nil
}

// stats returns all processes of the machine, by their ids.
func stats() map[int]stat {
	all := map[int]stat{}
	folders, _ := filepath.Glob("/proc/[0-9]*")
	for _, folder := range folders {
		pid, _ := strconv.Atoi(filepath.Base(folder))
		if s, err := readStat(pid); err == nil { // otherwise it has ended
			all[pid] = s
		}
	}
	return all
}

// CPUTimes returns the times of the machine's processors from a file like /proc/stat; nil: they cannot be read.
func CPUTimes(path string) *v1.CpuTimes {
	file, err := os.Open(path)
	if err != nil {
		return nil
	}
	defer file.Close()
	var user, nice, system, idle, ioWait, interrupts, softInterrupts, stolen uint64
	if _, err := fmt.Fscanf(file, "cpu %d %d %d %d %d %d %d %d", &user, &nice, &system, &idle, &ioWait, &interrupts, &softInterrupts, &stolen); err != nil {
		return nil
	}
	return &v1.CpuTimes{Computing: user + nice, Kernel: system + interrupts + softInterrupts, Idle: idle + ioWait, Stolen: stolen}
}
