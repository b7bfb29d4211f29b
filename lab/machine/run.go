// Starting machines from a template or from their own disks, and reading their reports.

package machine

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/uuid"

	"watari/internal/qmp"
)

// Start describes how to start a machine in its directory.
type Start struct {
	Template  Template         `json:"template"`
	Tap       string           `json:"tap"` // tap device in the calling thread's network namespace
	MAC       net.HardwareAddr `json:"mac"`
	UUID      uuid.UUID        `json:"uuid"`
	MachineID uuid.UUID        `json:"machine_id"`
}

// RetakeIdentity is the command by which a running machine takes another identity. It reads the archive on its input.
var RetakeIdentity = []string{"/usr/local/lib/watari-lab/identity", "again"}

func prepareDir(dir string) error {
	return os.MkdirAll(filepath.Join(dir, filepath.Dir(consoleFile)), 0o755)
}

// Run starts the machine in dir and returns when it has ended. A machine without a disk gets one and starts from the
// template's state; a machine with a disk boots from it. The machine ends with the calling process only if the caller
// is the first process of a PID namespace.
func Run(ctx context.Context, dir string, s Start) error {
	disk := filepath.Join(dir, diskFile)
	_, err := os.Stat(disk)
	restore := errors.Is(err, os.ErrNotExist)
	if restore {
		if err := makeDisk(dir, filepath.Join(s.Template.Dir, diskFile), "qcow2"); err != nil {
			return err
		}
	}
	// Remove the socket of an earlier QEMU, so that it is not mistaken for the new one.
	if err := os.Remove(filepath.Join(dir, monitorFile)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	l := launch{
		spec: s.Template.Spec, template: s.Template.Root, dir: dir, restore: restore, tap: s.Tap, uuid: s.UUID, mac: s.MAC.String(),
		// If the machine crashed before it had stored its own id on its disk, the kernel argument supplies the id.
		kernel: []string{"systemd.machine_id=" + strings.ReplaceAll(s.MachineID.String(), "-", "")},
	}
	if restore {
		l.memory = s.Template.Dir
	}
	cmd := s.Template.QEMU.command(ctx, l)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	if restore {
		if err := restoreState(dir, s.Template, ended); err != nil {
			return fmt.Errorf("restore the saved state: %w", err)
		}
	}
	if err := <-ended; err != nil {
		return fmt.Errorf("QEMU ended: %w", err)
	}
	return errors.New("the machine was switched off")
}

// restoreState makes the waiting QEMU load the template's state.
func restoreState(dir string, t Template, ended chan error) error {
	var m *qmp.Monitor
	for m == nil {
		var err error
		m, err = qmp.Dial(filepath.Join(dir, monitorFile), monitorLimit)
		switch {
		case err == nil:
		case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED):
		default:
			return err
		}
		select {
		case err := <-ended:
			return fmt.Errorf("QEMU ended: %w", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	defer m.Close()
	if err := m.SharedMemoryStays(); err != nil {
		return err
	}
	return m.Restore("exec:cat '" + filepath.Join(t.Dir, stateFile) + "'")
}

// makeDisk makes the disk of the machine in dir, which stores the differences from the disk below.
func makeDisk(dir, below, format string) error {
	disk := filepath.Join(dir, diskFile)
	cmd := exec.Command("qemu-img", "create", "-q", "-f", "qcow2", "-F", format, "-b", below, disk+".new")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make the disk: qemu-img: %w: %s", err, lastLines(string(out), 2))
	}
	return os.Rename(disk+".new", disk)
}

// Words of the report. The machine writes all but "start".
const (
	reportStart   = "start"
	reportReady   = "ready"
	reportJoined  = "joined"
	reportSettled = "settled" // followed by systemd's state and the failed units
	reportFailed  = "failed"  // followed by the argument of the program identity that failed
)

// ReportStart notes in the report of the machine in dir that the machine is about to start, so that it no longer counts
// as ready.
func ReportStart(dir string) error {
	f, err := os.OpenFile(filepath.Join(dir, reportFile), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	_, err = f.WriteString(reportStart + "\n")
	return errors.Join(err, f.Close())
}

// Report is what a machine has reported.
type Report struct {
	Ready  bool   // it has come up since its last start
	Joined bool   // its agent has ever joined a manager
	Failed string // argument of the program identity that failed since the last start

	settled string // of a machine to be saved: systemd's state and the failed units
}

// ReadReport reads the report of the machine in dir.
func ReadReport(dir string) Report {
	data, _ := os.ReadFile(filepath.Join(dir, reportFile))
	return parseReport(string(data))
}

func parseReport(text string) (r Report) {
	for line := range strings.Lines(text) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case reportStart:
			r = Report{Joined: r.Joined}
		case reportReady:
			r.Ready = true
		case reportJoined:
			r.Joined = true
		case reportSettled:
			r.settled = value
		case reportFailed:
			r.Failed = value
		}
	}
	return r
}

// LastConsoleLine describes the last line on the console of the machine in dir, for an error message.
func LastConsoleLine(dir string) string {
	data, _ := os.ReadFile(filepath.Join(dir, consoleFile))
	return fmt.Sprintf("its console %s says: %s", filepath.Join(dir, consoleFile), lastLines(string(data), 1))
}
