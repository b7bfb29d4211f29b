package controller

// fencing.go - runs the command that switches hosts off (core/fencing.go decides which).

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"watari/core"
	"watari/internal/printable"
	"watari/manager/store"
)

const (
	// fenceTime bounds one run of the command. IPMI needs seconds, and some power switches a minute.
	fenceTime = 5 * time.Minute
	// fenceAgain is the pause before the command is run again for a host after it has failed.
	fenceAgain = 30 * time.Second
	// fenceOutput bounds the quoted part of the command's output, bytes.
	fenceOutput = 500
)

// fence starts the command for hosts, at most once at a time for each host.
func (c *Controller) fence(ctx context.Context, fences []core.Fence) {
	for _, f := range fences {
		if _, busy := c.fencing.LoadOrStore(f.Host, true); busy {
			continue
		}
		c.driving.Go(func() {
			if !c.fenceOne(ctx, f) {
				select {
				case <-time.After(fenceAgain):
				case <-ctx.Done():
				}
			}
			c.fencing.Delete(f.Host)
			select {
			case c.changed <- struct{}{}:
			default:
			}
		})
	}
}

// fenceOne switches a host off, and records that the host is off.
func (c *Controller) fenceOne(ctx context.Context, f core.Fence) bool {
	if _, _, connected := c.Sessions.Observed(f.Host); connected {
		return true // the host is back
	}
	// This manager's decision switches the host off, so check first that no other manager leads.
	if err := c.Store.Confirm(ctx); err != nil {
		return false
	}
	c.Log.Warn("a host is switched off", "host", f.Host, "command", c.FenceCommand)
	if err := runFence(ctx, c.FenceCommand, f); err != nil {
		c.Log.Error("a host could not be switched off", "host", f.Host, "error", err)
		if ctx.Err() == nil {
			c.tell(ctx, core.FenceFailed(f, err, fenceAgain))
		}
		return false
	}
	return c.tell(ctx, core.Fenced(c.Store.Snapshot(), c.Sessions, f))
}

// tell writes a change that follows from the command's result.
func (c *Controller) tell(ctx context.Context, change core.Change) bool {
	if err := c.Store.Txn(ctx, store.Operations(change)...); err != nil {
		c.Log.Error("what came of a host that was to be switched off could not be written down", "error", err)
		return false
	}
	return true
}

// runFence runs the command. Success means that the host is off, or was off since the command began.
func runFence(ctx context.Context, command string, f core.Fence) error {
	ctx, cancel := context.WithTimeout(ctx, fenceTime)
	defer cancel()
	run := exec.CommandContext(ctx, command, f.Host)
	run.Env = append(os.Environ(), "WATARI_HOST="+f.Host, "WATARI_ADDRESS="+f.LANAddress, "WATARI_SITE="+f.Site, "WATARI_BOOT_ID="+f.BootID)
	run.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	run.Cancel = func() error { return syscall.Kill(-run.Process.Pid, syscall.SIGKILL) }
	run.WaitDelay = time.Second
	var output bytes.Buffer
	run.Stdout, run.Stderr = &output, &output
	err := run.Run()
	if err == nil {
		return nil
	}
	if ctx.Err() == context.DeadlineExceeded {
		err = fmt.Errorf("it did not end within %s", fenceTime)
	}
	if said := strings.TrimSpace(output.String()); said != "" {
		return fmt.Errorf("%s: %w: %s", command, err, printable.Lines(said[max(0, len(said)-fenceOutput):], fenceOutput))
	}
	return fmt.Errorf("%s: %w", command, err)
}
