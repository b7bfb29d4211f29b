package agent

// clear.go - writes zeros to unused memory before the guest moves over a slow link. The kernel does not clear a page when it is
// freed, so the page would be sent with its old content.

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sys/unix"

	v1 "watari/api/watariv1"
)

// maxClear bounds the time for which memory is cleared.
const maxClear = 5 * time.Second

// worthClearing is how much memory must have been freed, in bytes, since memory was cleared last or the agent began.
const worthClearing = 128 << 20

// ClearMemory implements the service. Memory is cleared only if much was freed: a guest that has done little has little to clear. A process of its own takes the memory, so that the kernel ends that process if others need
// the memory meanwhile.
func (s *guestService) ClearMemory(ctx context.Context, r *connect.Request[v1.ClearMemoryRequest]) (*connect.Response[v1.ClearMemoryResponse], error) {
	freed, err := freedMemory()
	if err != nil {
		return nil, fmt.Errorf("clear memory: %w", err)
	}
	if freed-s.agent.freed.Load() < worthClearing {
		return connect.NewResponse(&v1.ClearMemoryResponse{}), nil
	}
	limit := min(time.Duration(r.Msg.LimitMs)*time.Millisecond, maxClear)
	command := exec.CommandContext(ctx, "/proc/self/"+ownName, ClearVerb, strconv.FormatInt(limit.Milliseconds(), 10))
	if err := command.Start(); err != nil {
		return nil, fmt.Errorf("clear memory: %w", err)
	}
	s.agent.memory.expect(command.Process.Pid)
	if err := command.Wait(); err != nil {
		return nil, fmt.Errorf("clear memory: %w", err)
	}
	if freed, err = freedMemory(); err == nil {
		s.agent.freed.Store(freed)
	}
	return connect.NewResponse(&v1.ClearMemoryResponse{}), nil
}

// freedMemory returns how many bytes of memory were freed since the guest booted.
func freedMemory() (uint64, error) {
	text, err := os.ReadFile("/proc/vmstat")
	if err != nil {
		return 0, err
	}
	_, rest, _ := strings.Cut(string(text), "\npgfree ")
	count, _, _ := strings.Cut(rest, "\n")
	pages, err := strconv.ParseUint(count, 10, 64)
	return pages * uint64(os.Getpagesize()), err
}

// ClearVerb is the argument with which watari-guest calls Clear.
const ClearVerb = "clear-memory"

// ownName is the kernel's name of the process that clears memory.
const ownName = "exe"

// clearStep is the memory that Clear takes at a time.
const clearStep = 16 << 20

// Clear takes unused memory, which the kernel fills with zeros, until little is left or the time is over. The caller's exit
// gives it back. Memory of the page cache is not taken.
func Clear(limit time.Duration) error {
	// If memory runs out, the kernel ends this process first.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0); err != nil {
		return err
	}
	for end := time.Now().Add(limit); time.Now().Before(end); {
		var info unix.Sysinfo_t
		if err := unix.Sysinfo(&info); err != nil {
			return err
		}
		unit := uint64(info.Unit)
		if free, keep := info.Freeram*unit, max(info.Totalram*unit/16, 2*clearStep); free < keep+clearStep {
			return nil
		}
		if _, err := unix.Mmap(-1, 0, clearStep, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_POPULATE); err != nil {
			return err
		}
	}
	return nil
}
