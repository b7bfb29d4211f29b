package agent

// transfer.go - sends a guest to another host, and admits an incoming guest.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/protobuf/proto"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// progressEvery is how often a transfer's progress is reported.
const progressEvery = 200 * time.Millisecond

// doneEvery is how often the agent asks whether the hypervisor has ended its job on a received guest. The guest is paused
// meanwhile.
const doneEvery = 5 * time.Millisecond

// doneWait bounds the wait for the end of that job.
const doneWait = time.Minute

// send transfers the guest. It returns when libvirt has ended the guest here or has given up. Until then only libvirt
// may end the source's process. If the process ended earlier, the source's daemon could treat the transfer as failed
// and make the target's daemon end a complete, running guest.
func (a *Agent) send(ctx context.Context, g *guest, w *v1.GuestWanted) error {
	if err := a.storage.mayLeave(ctx, g.uid); err != nil {
		return err
	}
	socket, err := a.hypervisor.MigrateSocket(g.name)
	if err != nil {
		return err
	}
	way, err := a.tunnels.Open(ctx, w.Migration, socket)
	if err != nil {
		return fmt.Errorf("open the tunnel to host %s: %w", w.Migration.TargetHost, err)
	}
	err = a.migrate(ctx, g, w, way)
	way.Close()
	if err != nil {
		if cause := way.Err(); cause != nil { // libvirt only knows that its connection ended
			err = fmt.Errorf("%w (%w)", err, cause)
		}
	}
	return err
}

// migrate runs the hypervisor's part of a transfer and reports its progress.
func (a *Agent) migrate(ctx context.Context, g *guest, w *v1.GuestWanted, way OutgoingTunnel) error {
	watchCtx, stop := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		a.watchProgress(watchCtx, g, way)
	}()
	go a.watchSender(watchCtx, g, way)
	begun := time.Now()
	err := a.hypervisor.Migrate(ctx, g.uid, way.Options)
	g.log.Info("transfer ended", "to", w.Migration.TargetHost, "took", time.Since(begun), "error", err)
	stop()
	<-watched
	return err
}

// senderPoll is how often awaitProcess checks whether its context has ended.
const senderPoll = 200 * time.Millisecond

// watchSender tells the machine when the process of a guest that is being sent has ended. libvirt ends the process after the
// target's libvirt has confirmed that it has the whole guest. But libvirt checks only every 200 ms whether the process has
// ended (virProcessKillPainfully), and the guest would be paused for that time. If a connection to the target was never
// made, the process ended for another reason. A connection that broke later does no harm: the target resumes only a guest
// that it has received completely.
func (a *Agent) watchSender(ctx context.Context, g *guest, way OutgoingTunnel) {
	ended, err := a.awaitProcess(ctx, g.uid)
	if err != nil {
		g.log.Debug("the end of a guest that is being sent is not watched", "error", err)
	}
	if ended && way.Err() == nil {
		a.feed(func(m *machine.Machine, now time.Time) { m.SenderEnded(now, g.uid) })
		a.noteProgress(ctx, g, way) // for the downtime
	}
}

// awaitProcess waits until a guest's only process or ctx has ended.
func (a *Agent) awaitProcess(ctx context.Context, uid string) (ended bool, err error) {
	only := func() (int, error) {
		processes, err := a.config.Processes(ctx)
		if pids := processes[uid]; err == nil && len(pids) != 1 {
			err = fmt.Errorf("it has the processes %v", pids)
		}
		if err != nil {
			return 0, err
		}
		return processes[uid][0], nil
	}
	pid, err := only()
	if err != nil {
		return false, err
	}
	handle, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return false, err
	}
	defer unix.Close(handle)
	if again, err := only(); err != nil || again != pid { // the pid may belong to another process by now
		return false, err
	}
	for ctx.Err() == nil {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(handle), Events: unix.POLLIN}}, int(senderPoll.Milliseconds()))
		if n > 0 {
			return true, nil
		}
		if err != nil && !errors.Is(err, unix.EINTR) {
			return false, err
		}
	}
	return false, nil
}

func (a *Agent) watchProgress(ctx context.Context, g *guest, way OutgoingTunnel) {
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		a.noteProgress(ctx, g, way)
	}
}

func (a *Agent) noteProgress(ctx context.Context, g *guest, way OutgoingTunnel) {
	if p, err := a.hypervisor.Progress(ctx, g.uid); err == nil && p != nil {
		if sent := way.Sent(); sent > 0 { // QEMU's figure is from before the tunnel's compression
			p = proto.CloneOf(p) // the hypervisor keeps p, too
			p.TransferredBytes = sent
		}
		a.feed(func(m *machine.Machine, now time.Time) { m.Progress(now, g.uid, p) })
	}
}

// busy reports whether the hypervisor has a job on the guest's domain. patience says whether it waits for the job's
// end.
func (a *Agent) busy(ctx context.Context, g *guest, patience machine.Patience) machine.Result {
	end := time.After(doneWait)
	for {
		busy, err := a.hypervisor.Busy(ctx, g.uid)
		if err != nil || !busy || patience == machine.AskOnce {
			return machine.Result{Busy: busy, Err: err}
		}
		select {
		case <-ctx.Done():
			return machine.Result{Err: ctx.Err()}
		case <-end:
			return machine.Result{Busy: true}
		case <-time.After(doneEvery):
		}
	}
}

// expect makes the tunnel admit the guest's transfer.
func (a *Agent) expect(ctx context.Context, g *guest, act machine.Act) error {
	socket, err := a.hypervisor.MigrateSocket(g.name)
	if err != nil {
		return err
	}
	spec, err := a.incomingSpec(ctx, g, act)
	if err != nil {
		return err
	}
	g.admits = act.Migration
	g.stopExpect = a.tunnels.Expect(Expected{Migration: act.Migration, Source: act.Source, SourceUID: act.SourceUID, MigrateSocket: socket, Name: g.name,
		Describe: func(xml string) (string, error) { return a.hypervisor.Incoming(spec, xml) },
		Admit:    func() error { return a.admit(g.uid, act.Migration) },
		Changed:  func() { a.tunnelChanged(g.uid, act.Migration) }})
	return nil
}

// incomingSpec returns the description with which this host would start an incoming guest.
func (a *Agent) incomingSpec(ctx context.Context, g *guest, act machine.Act) (spec domain.Spec, err error) {
	p := g.prepared
	if p.tap == "" { // an earlier agent prepared the guest, so all its parts are here
		if p.files, err = a.images.Ensure(ctx, act.Wanted.Image, func(string) {}); err != nil {
			return spec, err
		}
		if p.tap, err = a.network.PlugGuest(ctx, act.Tap, act.MTU); err != nil {
			return spec, err
		}
		if p.volume, err = a.volumes.socket(act.Wanted); err != nil {
			return spec, err
		}
	}
	return a.spec(act.Wanted, p), nil
}

// closeWay closes the connections by which a guest came here, before the guest runs: the source has no more to send.
func (g *guest) closeWay(t Tunnels) {
	if g.admits != "" {
		t.Drop(g.admits)
		g.admits = ""
	}
}

func (g *guest) expectNothing() {
	if g.stopExpect != nil {
		g.stopExpect()
		g.stopExpect = nil
	}
}
