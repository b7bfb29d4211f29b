// Package hold stops guests for the moment of a checkpoint's cut, and makes sure that they go on. A separate process, the
// holder, does this. So guests go on within a bounded time even if the agent dies, hangs, or loses its manager.
//
// The agent starts the holder before the cut. They exchange lines over the holder's standard input and output:
//
//	holder  ready
//	agent   stop
//	holder  stopped            or: failed REASON; then the guests go on, and the holder ends
//	agent   kept?              when a snapshot of each guest has begun
//	holder  kept               or: late; then the holder has let a guest go on too early, and the cut is void
//	agent   alive              every second while it reads the snapshots
//	agent   whole?             when it has read them
//	holder  whole              or: late; then it has discarded snapshots, because the agent hung
//
// The end of its input tells the holder that the agent has died or no longer needs the holder.
package hold

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"time"
)

// Hypervisor stops and resumes guests. *vm.Libvirt implements it.
type Hypervisor interface {
	// Stop stops a running guest.
	Stop(ctx context.Context, uid string) error
	// Resume lets a stopped guest run. It does nothing to a running one.
	Resume(ctx context.Context, uid string) error
	// Gone reports whether an error means that the guest no longer exists.
	Gone(err error) bool
	// EndSnapshot discards the rest of a guest's snapshot. It does nothing if there is none.
	EndSnapshot(ctx context.Context, uid, fifo string) error
}

// Guest is a guest to be stopped.
type Guest struct {
	UID  string
	Pipe string // the path of the named pipe of its snapshot
}

// Time limits.
const (
	resumeTime = 10 * time.Second
	retry      = 100 * time.Millisecond // pause before Resume is tried again
	readTime   = 10 * time.Minute       // limit for reading a snapshot to its end
	aliveTime  = time.Second            // between two "alive" lines of the agent
)

// silenceTime is how long an agent may send no line while it reads snapshots.
var silenceTime = 10 * time.Second

// holder is the process that stops guests. Only the agent's lines and the time change what it does.
type holder struct {
	guests []Guest
	within time.Duration // how long guests may be stopped
	h      Hypervisor
	lines  <-chan string // from the agent; closed at its death
	out    io.Writer
}

// Serve runs the holder. It returns when all guests run and the agent has ended or no longer needs the holder. No guest is
// stopped for longer than within, unless the hypervisor does not answer.
func Serve(in io.Reader, out io.Writer, guests []Guest, within time.Duration, h Hypervisor) error {
	lines := make(chan string)
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(in); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-ended:
				return
			}
		}
	}()
	w := &holder{guests: guests, within: within, h: h, lines: lines, out: out}
	if w.say("ready") != nil || !w.hear("stop", nil) {
		return nil // no guest was stopped
	}
	return w.hold()
}

// hold stops the guests, and resumes them if the agent fails.
func (w *holder) hold() error {
	late := time.NewTimer(w.within)
	defer late.Stop()
	ctx, cancel := context.WithTimeout(context.Background(), w.within)
	defer cancel()
	if err := w.each(func(g Guest) error { return w.h.Stop(ctx, g.UID) }); err != nil {
		_ = w.say("failed " + strings.ReplaceAll(err.Error(), "\n", "; "))
		return errors.Join(err, w.release())
	}
	if w.say("stopped") == nil && w.hear("kept?", late.C) && w.say("kept") == nil && w.attend() {
		return nil
	}
	// The agent is late, hangs, or has died. Its snapshots are void.
	err := w.release()
	for line := range w.lines {
		if strings.HasSuffix(line, "?") && w.say("late") != nil {
			break
		}
	}
	return err
}

// attend waits until the agent has read all snapshots. It returns false if the agent dies or hangs.
func (w *holder) attend() bool {
	for {
		silence := time.NewTimer(silenceTime)
		select {
		case line, alive := <-w.lines:
			silence.Stop()
			if !alive {
				return false
			}
			if line == "whole?" {
				return w.say("whole") == nil
			}
		case <-silence.C:
			return false
		}
	}
}

// release resumes all guests, however long the hypervisor takes. It discards their snapshots at the same time: a guest whose
// snapshot nobody reads is blocked, and may keep the hypervisor from answering.
func (w *holder) release() error {
	return w.each(func(g Guest) error {
		ended := make(chan error, 1)
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), readTime)
			defer cancel()
			ended <- w.h.EndSnapshot(ctx, g.UID, g.Pipe)
		}()
		for {
			ctx, cancel := context.WithTimeout(context.Background(), resumeTime)
			err := w.h.Resume(ctx, g.UID)
			cancel()
			if err == nil || w.h.Gone(err) {
				return <-ended
			}
			time.Sleep(retry)
		}
	})
}

// each calls do for all guests at once, and waits for the calls.
func (w *holder) each(do func(Guest) error) error {
	errs := make([]error, len(w.guests))
	var group sync.WaitGroup
	for i, g := range w.guests {
		group.Go(func() { errs[i] = do(g) })
	}
	group.Wait()
	return errors.Join(errs...)
}

func (w *holder) say(line string) error {
	_, err := fmt.Fprintln(w.out, line)
	return err
}

// hear waits for the line want of the agent. It returns false if the agent has died, sends another line, or if limit comes
// first; nil: no limit.
func (w *holder) hear(want string, limit <-chan time.Time) bool {
	select {
	case line, alive := <-w.lines:
		return alive && line == want
	case <-limit:
		return false
	}
}
