// Package accel finds out how a host can run guests: with KVM, if a test shows that it works, else by emulation (TCG).
//
// The existence of /dev/kvm proves nothing: in some virtual machines it opens, and a guest hangs at once. So the CPU
// must offer hardware virtualisation, and a guest of a few instructions must run to its end. A child process runs this
// guest, because a process cannot stop a hung guest of its own.
package accel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	v1 "watari/api/watariv1"
)

// childName is argv[0] of the process that runs the trial guest; its package init takes over from main.
const childName = "watari-kvm-probe"

// trialTime is how long the trial guest may take. A working one needs a few milliseconds; on a host that is itself a
// busy emulated machine it needs seconds.
const trialTime = 10 * time.Second

func init() {
	if len(os.Args) == 1 && os.Args[0] == childName {
		if err := runTrialGuest("/dev/kvm"); err != nil {
			fmt.Fprint(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

var (
	cacheLock sync.Mutex
	cache     *v1.Acceleration
)

// Probe returns the acceleration of guests on this host, with the reason in one sentence. It keeps the first result,
// which cannot change while the host runs. It does not keep a result that ctx interrupted.
func Probe(ctx context.Context) *v1.Acceleration {
	cacheLock.Lock()
	defer cacheLock.Unlock()
	if cache == nil {
		found := probe(ctx, host{cpuInfo: "/proc/cpuinfo", device: "/dev/kvm", trial: trial})
		if ctx.Err() != nil {
			return found
		}
		cache = found
	}
	return &v1.Acceleration{Kind: cache.Kind, Reason: cache.Reason}
}

// host is the machine that a probe examines; tests replace it.
type host struct {
	cpuInfo, device string
	trial           func(ctx context.Context) error
}

func probe(ctx context.Context, h host) *v1.Acceleration {
	emulated := func(format string, args ...any) *v1.Acceleration {
		return &v1.Acceleration{
			Kind:   v1.AccelerationKind_ACCELERATION_KIND_TCG,
			Reason: "guests are emulated (TCG), many times slower: " + fmt.Sprintf(format, args...),
		}
	}
	flag, err := virtualisationFlag(h.cpuInfo)
	if err != nil {
		return emulated("%v", err)
	}
	_, missing := os.Stat(h.device)
	switch {
	case flag == "" && missing == nil:
		return emulated("%s exists, but the CPU has neither the vmx nor the svm flag", h.device)
	case flag == "":
		return emulated("the CPU has neither the vmx nor the svm flag")
	case missing != nil:
		return emulated("the CPU has %s, but there is no %s (is the kvm module loaded, and virtualisation enabled in the firmware?)", flag, h.device)
	}
	if err := h.trial(ctx); err != nil {
		return emulated("the CPU has %s, but a trial guest did not run under KVM: %v", flag, err)
	}
	return &v1.Acceleration{
		Kind:   v1.AccelerationKind_ACCELERATION_KIND_KVM,
		Reason: fmt.Sprintf("the CPU has %s, and a trial guest ran under KVM", flag),
	}
}

// virtualisationFlag returns "vmx" or "svm" if every CPU has it, else "".
func virtualisationFlag(cpuInfo string) (string, error) {
	text, err := os.ReadFile(cpuInfo)
	if err != nil {
		return "", fmt.Errorf("read the CPU's flags: %w", err)
	}
	found := ""
	for line := range strings.Lines(string(text)) {
		key, value, _ := strings.Cut(line, ":")
		if strings.TrimSpace(key) != "flags" {
			continue
		}
		flag := ""
		for _, f := range strings.Fields(value) {
			if f == "vmx" || f == "svm" {
				flag = f
			}
		}
		if flag == "" {
			return "", nil
		}
		found = flag
	}
	return found, nil
}

// trial runs the trial guest in a child process. It returns after trialTime, even if the child cannot be killed.
func trial(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, trialTime)
	defer cancel()
	var said bytes.Buffer
	child := &exec.Cmd{
		Path: "/proc/self/exe", Args: []string{childName}, Stderr: &said,
		SysProcAttr: &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL},
	}
	if err := child.Start(); err != nil {
		return fmt.Errorf("start the trial: %w", err)
	}
	ended := make(chan error, 1)
	go func() { ended <- child.Wait() }()
	select {
	case err := <-ended:
		if said.Len() > 0 {
			return errors.New(said.String())
		}
		return err
	case <-ctx.Done():
		_ = child.Process.Kill() // may not end a hung vCPU; the goroutine then waits for ever
		return fmt.Errorf("it hung for %v", trialTime)
	}
}
