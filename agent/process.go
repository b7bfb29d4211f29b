package agent

import (
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
)

// fenceWait is how long a killed process may take to end before that is left to others.
const fenceWait = 2 * time.Second

// process is a handle on a process; it never means another one that got its number later.
type process struct{ fd int }

// openProcesses takes hold of processes; those that have ended meanwhile are left out.
func openProcesses(pids []int) ([]process, error) {
	var list []process
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) {
			continue
		}
		if err != nil {
			closeProcesses(list)
			return nil, fmt.Errorf("watch process %d: %w", pid, err)
		}
		list = append(list, process{fd})
	}
	return list, nil
}

func closeProcesses(list []process) {
	for _, p := range list {
		unix.Close(p.fd)
	}
}

// kill ends a process, which may have ended already, and returns when it has.
func (p process) kill(wait time.Duration) error {
	if err := unix.PidfdSendSignal(p.fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("end the process: %w", err)
	}
	deadline := time.Now().Add(wait)
	for {
		left := time.Until(deadline)
		if left <= 0 {
			return errors.New("the process does not end")
		}
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(p.fd), Events: unix.POLLIN}}, int(left.Milliseconds())+1)
		if n > 0 {
			return nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for the process to end: %w", err)
		}
	}
}
