package agent

// memory.go - detects that the kernel killed a process because the guest's memory ran out.

import (
	"errors"
	"os"
	"regexp"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

// memoryWatch keeps the kernel's messages about memory that ran out.
type memoryWatch struct {
	mu   sync.Mutex
	last *v1.OutOfMemory // nil: memory has not run out
}

// state returns the watch's knowledge; nil: memory has not run out.
func (m *memoryWatch) state() *v1.OutOfMemory {
	m.mu.Lock()
	defer m.mu.Unlock()
	return proto.CloneOf(m.last)
}

// follow reads the kernel's log, from its beginning, for as long as the agent lives.
func (m *memoryWatch) follow() error {
	log, err := os.Open("/dev/kmsg")
	if err != nil {
		return err
	}
	defer log.Close()
	record := make([]byte, 8<<10) // the kernel's longest record; each read returns one
	for {
		n, err := log.Read(record)
		if errors.Is(err, unix.EPIPE) { // older records were overwritten
			continue
		}
		if err != nil {
			return err
		}
		if process, up, ok := parseKill(string(record[:n])); ok {
			m.add(process, time.Now().Add(up-uptime()))
		}
	}
}

// add counts a process that the kernel killed.
func (m *memoryWatch) add(process *v1.OutOfMemory, at time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	process.Kills, process.At = m.last.GetKills()+1, timestamppb.New(at)
	m.last = process
}

// uptime returns the time of the kernel log's clock.
func uptime() time.Duration {
	var now unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &now)
	return time.Duration(now.Nano())
}

// killRecord matches a record of /dev/kmsg about a process that the kernel killed because memory ran out:
// "3,512,98765432,-;Out of memory: Killed process 123 (lmp) total-vm:...". A first number above 7 marks a record that a
// program wrote. A process's name may contain any character.
var killRecord = regexp.MustCompile(`^[0-7],\d+,(\d+),[^;]*;(?:Memory cgroup out|Out) of memory[^:]*: Killed process (\d+) \((.*)\) total-vm:\d+kB, anon-rss:(\d+)kB, file-rss:(\d+)kB, shmem-rss:(\d+)kB`)

// parseKill reads such a record, and the uptime at which it was written.
func parseKill(record string) (process *v1.OutOfMemory, up time.Duration, ok bool) {
	fields := killRecord.FindStringSubmatch(record)
	if fields == nil {
		return nil, 0, false
	}
	number := func(i int) uint64 {
		n, _ := strconv.ParseUint(fields[i], 10, 63) // digits, by the pattern
		return n
	}
	return &v1.OutOfMemory{
		Process: fields[3], Pid: uint32(number(2)), Bytes: 1024 * (number(4) + number(5) + number(6)),
	}, time.Duration(number(1)) * time.Microsecond, true
}
