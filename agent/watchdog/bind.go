package watchdog

// bind.go - binds the life of a process to this one's.

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// bind makes the kernel kill a process when this one ends, however that happens. ended is closed when the process has ended. Only its
// main thread is traced, which receives few signals; they are passed on. See ptrace(2), PTRACE_SEIZE and PTRACE_O_EXITKILL.
func bind(pid int) (ended <-chan struct{}, err error) {
	done := make(chan struct{})
	began := make(chan error, 1)
	go func() {
		// The tracer is a thread. It is not unlocked, so it ends with this goroutine, when the process has ended.
		runtime.LockOSThread()
		if _, _, errno := unix.RawSyscall6(unix.SYS_PTRACE, unix.PTRACE_SEIZE, uintptr(pid), 0, unix.PTRACE_O_EXITKILL, 0, 0); errno != 0 {
			began <- fmt.Errorf("trace process %d: %w", pid, errno)
			return
		}
		began <- nil
		follow(pid)
		close(done)
	}()
	if err := <-began; err != nil {
		return nil, err
	}
	return done, nil
}

// follow lets a traced thread go on whenever it stops, until it has ended.
func follow(pid int) {
	for {
		var status unix.WaitStatus
		_, err := unix.Wait4(pid, &status, unix.WALL, nil)
		switch {
		case errors.Is(err, syscall.EINTR):
			continue
		case err != nil || status.Exited() || status.Signaled():
			return
		}
		request, signal := unix.PTRACE_CONT, uintptr(0)
		switch event := int(status) >> 16; {
		case event == unix.PTRACE_EVENT_STOP && stops(status.StopSignal()):
			request = unix.PTRACE_LISTEN // it is stopped, and stays so until SIGCONT
		case event == 0:
			signal = uintptr(status.StopSignal())
		}
		unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), 0, signal, 0, 0)
	}
}

// stops reports whether a signal stops a process.
func stops(s syscall.Signal) bool {
	return s == syscall.SIGSTOP || s == syscall.SIGTSTP || s == syscall.SIGTTIN || s == syscall.SIGTTOU
}
