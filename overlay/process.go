// process.go runs WireGuard in user space in a separate process, which outlives the agent. It gets its key and peers
// through its control socket, /var/run/wireguard/watari0.sock, as with wg(8).
package overlay

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.zx2c4.com/wireguard/conn"
	"golang.zx2c4.com/wireguard/device"
	"golang.zx2c4.com/wireguard/ipc"
	"golang.zx2c4.com/wireguard/tun"
)

// startProcess starts the WireGuard process and returns when its device answers.
func (o *Overlay) startProcess(ctx context.Context) error {
	if o.cfg.AgentBinary == "" {
		return errors.New("the kernel has no WireGuard, and no program is configured to run it in user space")
	}
	if err := os.MkdirAll(o.cfg.RunDir, 0o755); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	logPath := filepath.Join(o.cfg.RunDir, "wireguard.log")
	log, err := os.OpenFile(logPath, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ready, notify, err := os.Pipe()
	if err != nil {
		return err
	}
	defer ready.Close()
	// No CommandContext: the process must outlive ctx.
	command := exec.Command(o.cfg.AgentBinary, "wireguard", "--device", Device, "--run", o.cfg.RunDir,
		"--mtu", strconv.Itoa(o.lan.mtu-wireGuardOverhead), "--ready-fd", "3")
	command.Stdout, command.Stderr, command.ExtraFiles = log, log, []*os.File{notify}
	command.Dir, command.SysProcAttr = "/", &syscall.SysProcAttr{Setpgid: true}
	err = command.Start()
	notify.Close()
	if err != nil {
		return fmt.Errorf("start WireGuard process: %w", err)
	}
	go command.Wait() // avoids a zombie while this agent lives
	o.log.Info("the kernel has no WireGuard: started it in user space", "pid", command.Process.Pid, "log", logPath)
	deadline := time.Now().Add(10 * time.Second)
	if d, ok := ctx.Deadline(); ok && d.Before(deadline) {
		deadline = d
	}
	ready.SetReadDeadline(deadline)
	if word, err := io.ReadAll(ready); err != nil || string(word) != "ready" {
		return fmt.Errorf("WireGuard process (pid %d) did not become ready: %s", command.Process.Pid, lastLine(logPath))
	}
	return nil
}

func lastLine(path string) string {
	data, _ := os.ReadFile(path)
	text := strings.TrimSpace(string(data))
	return text[strings.LastIndex(text, "\n")+1:]
}

// RunWireGuard runs WireGuard in user space until its device or its control socket is deleted, or until a termination
// signal. args are: --device NAME --run DIR [--mtu BYTES] [--ready-fd N]. When the device answers, it writes "ready" to
// descriptor N. It logs to standard error.
func RunWireGuard(args []string) error {
	flags := flag.NewFlagSet("wireguard", flag.ContinueOnError)
	name := flags.String("device", Device, "name of the device to make")
	runDir := flags.String("run", "/run/watari", "folder for the pid file")
	mtu := flags.Int("mtu", DefaultMTU, "of the device, bytes")
	readyFD := flags.Int("ready-fd", -1, "descriptor to write \"ready\" to")
	if err := flags.Parse(args); err != nil {
		return err
	}
	// The terminal or service that started the agent may end before this process.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	// A garbage collection empties the pools of 64 KiB packet buffers, which must then be zeroed again. So collections
	// are rare while the process is small.
	debug.SetGCPercent(400)
	debug.SetMemoryLimit(256 << 20)
	log := slog.New(slog.NewTextHandler(os.Stderr, nil)).With("device", *name)
	tunnel, err := tun.CreateTUN(*name, *mtu)
	if err != nil {
		return fmt.Errorf("make tun device %s: %w", *name, err)
	}
	socket, err := ipc.UAPIOpen(*name)
	if err != nil {
		tunnel.Close()
		return fmt.Errorf("open control socket of %s: %w", *name, err)
	}
	wireguard := device.NewDevice(tunnel, conn.NewDefaultBind(), &device.Logger{
		Verbosef: device.DiscardLogf,
		Errorf:   func(format string, args ...any) { log.Error(fmt.Sprintf(format, args...)) },
	})
	defer wireguard.Close()
	control, err := ipc.UAPIListen(*name, socket)
	if err != nil {
		return fmt.Errorf("listen on control socket of %s: %w", *name, err)
	}
	defer control.Close()
	if err := writePID(*runDir); err != nil {
		return err
	}
	if *readyFD >= 0 {
		ready := os.NewFile(uintptr(*readyFD), "ready")
		ready.WriteString("ready")
		ready.Close()
	}
	log.Info("WireGuard runs in user space", "mtu", *mtu, "batch", tunnel.BatchSize())
	return serveControl(wireguard, control, log)
}

func serveControl(wireguard *device.Device, control net.Listener, log *slog.Logger) error {
	ended := make(chan error, 1)
	go func() {
		for {
			connection, err := control.Accept()
			if err != nil {
				ended <- err
				return
			}
			go wireguard.IpcHandle(connection)
		}
	}()
	term := make(chan os.Signal, 1)
	signal.Notify(term, unix.SIGTERM, unix.SIGINT)
	select {
	case s := <-term:
		log.Info("ending", "signal", s.String())
	case <-wireguard.Wait():
		log.Info("ending: the device was deleted")
	case err := <-ended:
		log.Info("ending: the control socket was deleted", "error", err)
	}
	return nil
}

func writePID(runDir string) error {
	if err := os.MkdirAll(runDir, 0o755); err != nil {
		return fmt.Errorf("make run directory: %w", err)
	}
	return os.WriteFile(filepath.Join(runDir, "wireguard.pid"), []byte(strconv.Itoa(os.Getpid())+"\n"), 0o644)
}
