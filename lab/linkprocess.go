// The link process. It forwards packets in place of the hub's kernel while the WAN is shaped and the kernel has no
// netem.

package lab

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"watari/lab/wanlink"
)

// linkStatus is the link process's report that it has applied a WAN.
type linkStatus struct {
	PID int `json:"pid"`
	WAN WAN `json:"wan"`
}

func (l *Lab) linkStatusFile() string { return filepath.Join(l.run, "wan-link.json") }

func (l *Lab) linkProcesses() []int {
	var pids []int
	for _, pid := range findHelpers(helperArgs(verbWANLink, l.Name(), "")) {
		if alive(pid) {
			pids = append(pids, pid)
		}
	}
	return pids
}

func (l *Lab) endLinkProcess(ctx context.Context) error {
	if err := kill(ctx, l.linkProcesses()...); err != nil {
		return fmt.Errorf("end the WAN's link process: %w", err)
	}
	return nil
}

// ensureLinkProcess starts the link process, or tells the running one to reload the WAN, and waits until it has applied
// it.
func (l *Lab) ensureLinkProcess(ctx context.Context) error {
	pids := l.linkProcesses()
	if len(pids) > 0 && !l.canReload(pids) {
		if err := kill(ctx, pids...); err != nil {
			return err
		}
		pids = nil
	}
	// Remove the old report, so that it is not mistaken for the new one.
	if err := os.Remove(l.linkStatusFile()); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(pids) == 0 {
		pid, err := l.spawnLinkProcess()
		if err != nil {
			return fmt.Errorf("start the WAN's link process: %w", err)
		}
		pids = []int{pid}
	} else if err := unix.Kill(pids[0], unix.SIGHUP); err != nil {
		return fmt.Errorf("signal the WAN's link process: %w", err)
	}
	ended := false
	err := waitFor(ctx, 10*time.Second, "WAN's link process to take up "+l.state.WAN.String(), func() bool {
		var s linkStatus
		if readJSON(l.linkStatusFile(), &s) == nil && s.PID == pids[0] && s.WAN == l.state.WAN {
			return true
		}
		ended = !alive(pids[0])
		return ended
	})
	if ended {
		return fmt.Errorf("the WAN's link process ended: see %s", l.linkLog())
	}
	return err
}

// canReload reports whether exactly one link process runs, in the current hub namespace, and has written its first
// report.
func (l *Lab) canReload(pids []int) bool {
	var s linkStatus
	return len(pids) == 1 && namespaceOf(pids[0], "net") == inode(l.namespacePath(hubNamespace)) &&
		readJSON(l.linkStatusFile(), &s) == nil && s.PID == pids[0]
}

func (l *Lab) linkLog() string { return filepath.Join(l.dir, "wan-link.log") }

func (l *Lab) spawnLinkProcess() (pid int, err error) {
	log, err := os.OpenFile(l.linkLog(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return 0, err
	}
	defer log.Close()
	cmd := exec.Command(l.executable, helperArgs(verbWANLink, l.Name(), "")...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = "/", log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := inNamespace(l.namespacePath(hubNamespace), cmd.Start); err != nil {
		return 0, err
	}
	go func() { _ = cmd.Wait() }()
	return cmd.Process.Pid, nil
}

// wanLink is the link process; args holds the lab's name. It reads the lab's state at its start and at each SIGHUP.
func wanLink(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("%s is for internal use by watari lab", verbWANLink)
	}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	l := at(args[0])
	if err := l.load(); err != nil {
		return err
	}
	link, err := wanlink.Open(l.spokes())
	if err != nil {
		return err
	}
	defer link.Close()
	runtime.LockOSThread()
	raisePriority()
	wanlink.Steady()
	go func() {
		for {
			if err := l.load(); err != nil {
				slog.Error("read the lab", "error", err)
			} else if err := l.applyTo(link); err != nil {
				slog.Error("report", "error", err)
			}
			<-hangups
		}
	}()
	return link.Run(nil)
}

func (l *Lab) applyTo(link *wanlink.Link) error {
	w := l.state.WAN
	link.Update(wanlink.Limits{OneWay: w.RoundTrip / 2, Rate: w.Rate, Loss: w.Loss})
	slog.Info("WAN", "shape", w)
	return writeJSON(l.linkStatusFile(), linkStatus{PID: os.Getpid(), WAN: w})
}

func (l *Lab) spokes() []wanlink.Spoke {
	p := l.state.plan()
	var spokes []wanlink.Spoke
	for site := range p.sites {
		prefixes := []netip.Prefix{p.lan(site), netip.PrefixFrom(p.spokeSite(site), 32)}
		if site == 0 {
			prefixes = append(prefixes, p.rootLink())
		}
		spokes = append(spokes, wanlink.Spoke{
			Name: spokeLink(site), Prefixes: prefixes,
			Near: wanlink.HardwareAddress(p.hardwareAddress(macHub, site, 0)),
			Far:  wanlink.HardwareAddress(p.hardwareAddress(macWAN, site, 0)),
		})
	}
	return spokes
}

// raisePriority makes the thread run before ordinary processes, as the kernel's own forwarding does. Otherwise guests
// that keep all cores busy would add milliseconds. Without permission for real-time scheduling, it sets the highest
// niceness instead.
func raisePriority() {
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_RR, Priority: 1}
	if err := unix.SchedSetAttr(0, &attr, 0); err != nil {
		slog.Info("no real-time scheduling", "error", err)
		_ = unix.Setpriority(unix.PRIO_PROCESS, 0, -20)
	}
}
