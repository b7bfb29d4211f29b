package watchdog

// bind.go - makes the kernel kill a process when this process ends.

import (
	"errors"
	"fmt"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// bind makes the kernel kill a process when this process ends, for whatever reason. ended is closed when the traced process
// has ended. Only its main thread is traced. That thread receives few signals, and follow passes them on. See ptrace(2),
// PTRACE_SEIZE and PTRACE_O_EXITKILL.
func bind(pid int) (ended <-chan struct{}, err error) {
	done := make(chan struct{})
	began := make(chan error, 1)
	go func() {
		// The tracer is this thread. It stays locked, so the thread ends with this goroutine, when the traced process has
		// ended.
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

// follow resumes a traced thread whenever it stops, until the thread has ended.
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
			request = unix.PTRACE_LISTEN // the thread stays stopped until SIGCONT
		case event == 0:
			signal = uintptr(status.StopSignal())
		}
		unix.RawSyscall6(unix.SYS_PTRACE, uintptr(request), uintptr(pid), 0, signal, 0, 0)
	}
}

// stops reports whether a signal stops a process by default.
func stops(s syscall.Signal) bool {
	return s == syscall.SIGSTOP || s == syscall.SIGTSTP || s == syscall.SIGTTIN || s == syscall.SIGTTOU
}
