package vm

// checkpoint_test.go - snapshots together with their users: the process that stops guests (package hold), and files (package
// checkpoint).

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"filippo.io/age"

	"watari/agent/checkpoint"
	holding "watari/agent/hold"
)

// asHolder makes the test's program the process that stops guests: the URI, the time limit, and guests as UID=PIPE.
const asHolder = "WATARI_TEST_HOLDER"

func TestMain(m *testing.M) {
	if order := os.Getenv(asHolder); order != "" {
		if err := beHolder(strings.Fields(order)); err != nil {
			fmt.Fprintln(os.Stderr, "holder:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

func beHolder(args []string) error {
	driver, err := Connect(args[0], Options{Acceleration: testAcceleration()})
	if err != nil {
		return err
	}
	defer driver.Close()
	for e := range driver.Events() {
		if e.UID == "" && !e.Lost {
			break
		}
	}
	within, err := time.ParseDuration(args[1])
	if err != nil {
		return err
	}
	var guests []holding.Guest
	for _, arg := range args[2:] {
		uid, pipe, _ := strings.Cut(arg, "=")
		guests = append(guests, holding.Guest{UID: uid, Pipe: pipe})
	}
	return holding.Serve(os.Stdin, os.Stdout, guests, within, driver)
}

// cut is a cut through the guests of one host.
type cut struct {
	host      *testHost
	specs     []Spec
	snapshots []*Snapshot
	holder    *holding.Process
}

// prepareCut prepares the snapshots of guests and the holder.
func prepareCut(t *testing.T, h *testHost, within time.Duration, specs ...Spec) *cut {
	t.Helper()
	c := &cut{host: h, specs: specs}
	order := h.uri() + " " + within.String()
	for _, spec := range specs {
		c.snapshots = append(c.snapshots, prepareSnapshot(t, h, spec))
		order += " " + spec.UID + "=" + filepath.Join(h.folder, spec.Name+".pipe")
	}
	command := exec.Command(os.Args[0])
	command.Env = append(os.Environ(), asHolder+"="+order)
	command.Stderr = os.Stderr
	var err error
	if c.holder, err = holding.Start(command, time.Minute); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.holder.Done() })
	return c
}

// stop stops the guests, and returns their counts.
func (c *cut) stop(t *testing.T) (stood []int) {
	t.Helper()
	begun := time.Now()
	if err := c.holder.Stop(10 * time.Second); err != nil {
		t.Fatal(err)
	}
	t.Logf("all stood after %v", time.Since(begun))
	time.Sleep(100 * time.Millisecond)
	for _, spec := range c.specs {
		stood = append(stood, c.host.count(spec))
		if d := c.host.domain(t, spec.UID); d.State != StatePaused {
			t.Errorf("stopped: %+v", d)
		}
	}
	return stood
}

func TestACutThroughTwoGuests(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	c := prepareCut(t, h, 10*time.Second, bootCounting(t, h, "one"), bootCounting(t, h, "two"))
	stood := c.stop(t)
	for _, s := range c.snapshots {
		if err := s.Begin(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.holder.Kept(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	files := make([]checkpoint.File, len(c.specs))
	var group sync.WaitGroup
	for i, s := range c.snapshots {
		group.Go(func() {
			path := filepath.Join(h.folder, c.specs[i].Name)
			f, err := checkpoint.Write(t.Context(), path, s, checkpoint.Options{Recipient: key.Recipient()})
			if err := errors.Join(err, s.Close()); err != nil {
				t.Error(err)
			}
			t.Logf("%+v", f)
			files[i] = f
		})
	}
	group.Wait()
	if t.Failed() {
		return
	}
	if err := c.holder.Whole(20 * time.Second); err != nil {
		t.Error(err)
	}
	for i, spec := range c.specs {
		h.goesOn(t, spec)
		h.killGuest(t, spec.Name)
		eventually(t, 10*time.Second, "the killed guest is gone", func() bool { return h.domain(t, spec.UID).State == StateGone })
		plain := filepath.Join(h.folder, "plain")
		if err := checkpoint.Read(t.Context(), []checkpoint.Stored{{Path: filepath.Join(h.folder, spec.Name), File: files[i]}}, key, plain); err != nil {
			t.Fatal(err)
		}
		saved, err := os.ReadFile(plain)
		if err != nil {
			t.Fatal(err)
		}
		h.restore(t, spec, saved, stood[i])
	}
}

func TestGuestsGoOnIfTheirAgentIsKilled(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	one, two := bootCounting(t, h, "one"), bootCounting(t, h, "two")
	for _, when := range []string{"stopped", "begun", "late"} {
		t.Run(when, func(t *testing.T) {
			within := time.Minute
			if when == "late" {
				within = 5 * time.Second
			}
			c := prepareCut(t, h, within, one, two)
			c.stop(t)
			if when == "begun" {
				for _, s := range c.snapshots {
					if err := s.Begin(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
			}
			if when != "late" {
				for _, s := range c.snapshots {
					_ = s.pipe.Close()
				}
				_ = c.holder.Done() // closes its input, as the kernel does
			}
			for _, spec := range c.specs {
				h.goesOn(t, spec)
			}
			if when == "late" {
				if err := c.snapshots[0].Begin(t.Context()); err == nil {
					t.Error("a snapshot began after the guests had been let go on")
				}
				if err := c.holder.Kept(10 * time.Second); !errors.Is(err, holding.ErrLate) {
					t.Error(err)
				}
				for _, spec := range c.specs {
					h.goesOn(t, spec)
				}
			}
		})
	}
}

// A failure to write a file does not disturb the guest.
func TestAGuestGoesOnWithoutItsFile(t *testing.T) {
	need(t)
	h := startHost(t, "h1")
	spec := bootCounting(t, h, "fileless")
	disk := filepath.Join(h.folder, "disk")
	if err := os.Mkdir(disk, 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("mount", "-t", "tmpfs", "-o", "size=8M", "tmpfs", disk).CombinedOutput(); err != nil {
		t.Skipf("needs to mount a small disk: %v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("umount", disk).Run() })
	key, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	for name, try := range map[string]struct {
		limit int64
		time  time.Duration
		want  error
	}{
		"full disk": {0, time.Minute, checkpoint.ErrNoRoom},
		"limit":     {4 << 20, time.Minute, checkpoint.ErrNoRoom},
		"cancelled": {0, 50 * time.Millisecond, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			s := prepareSnapshot(t, h, spec)
			if err := s.Begin(t.Context()); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), try.time)
			defer cancel()
			_, err := checkpoint.Write(ctx, filepath.Join(disk, "file"), s,
				checkpoint.Options{Recipient: key.Recipient(), Limit: try.limit, Spare: -1 << 40})
			if !errors.Is(err, try.want) {
				t.Errorf("%v", err)
			}
			t.Log(err)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			h.goesOn(t, spec)
			if left, _ := os.ReadDir(disk); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}
