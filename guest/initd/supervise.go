package initd

import (
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// supervise keeps the agent running, reaps orphans, and powers the guest off on a signal. The agent is a separate
// process so that it can wait for its own children.
func supervise() {
	signals := make(chan os.Signal, 16)
	signal.Notify(signals, unix.SIGCHLD, unix.SIGTERM, unix.SIGINT, unix.SIGPWR, unix.SIGUSR1, unix.SIGUSR2)
	// Go would end the program on these, and the kernel panics when process 1 ends. Children do not inherit a notification, but
	// would inherit that a signal is ignored.
	signal.Notify(make(chan os.Signal), unix.SIGHUP, unix.SIGQUIT, unix.SIGABRT)
	agent := startAgent()
	var restart <-chan time.Time
	for {
		if agent == 0 && restart == nil {
			restart = time.After(time.Second)
		}
		select {
		case s := <-signals:
			if s != unix.SIGCHLD {
				powerOff(s)
			}
		case <-restart:
			restart, agent = nil, startAgent()
		}
		for {
			var status unix.WaitStatus
			pid, err := unix.Wait4(-1, &status, unix.WNOHANG, nil)
			if err == unix.EINTR {
				continue
			}
			if err != nil || pid <= 0 {
				break
			}
			if pid == agent {
				agent = 0
				say("guest agent ended (exit %d, signal %d); starting it again", status.ExitStatus(), status.Signal())
			}
		}
	}
}

// startAgent starts the guest agent and returns its process id, or 0 on failure.
func startAgent() int {
	pid, err := syscall.ForkExec(Program, []string{"watari-guest", "agent"}, &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		say("start guest agent: %v", err)
		return 0
	}
	os.WriteFile("/run/watari/agent.pid", []byte(strconv.Itoa(pid)+"\n"), 0o644)
	return pid
}

// powerOff ends all processes and powers the guest off.
func powerOff(why os.Signal) {
	say("powering off: %v", why)
	unix.Kill(-1, unix.SIGTERM)
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); {
		if _, err := unix.Wait4(-1, nil, unix.WNOHANG, nil); err == unix.ECHILD {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	unix.Kill(-1, unix.SIGKILL)
	unix.Sync()
	unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}
