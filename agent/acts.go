package agent

// acts.go - carries out the machine's acts. The acts of a start are in start.go, those of a transfer in transfer.go.

import (
	"context"
	"errors"
	"fmt"
	"os"
	"syscall"
	"time"

	"google.golang.org/protobuf/proto"

	"watari/agent/machine"
)

// routeWait is how long a guest waits for its route before it runs without one.
const routeWait = 2 * time.Second

// carryOut carries out an act and returns its result.
func (a *Agent) carryOut(ctx context.Context, g *guest, act machine.Act) machine.Result {
	var err error
	switch act.Kind {
	case machine.KeepTerm:
		err = a.keepTerm(act.Term, act.Stamp)
	case machine.ReadTerm:
		term, stamp, err := a.readTerm()
		return machine.Result{Term: term, Stamp: stamp, Err: err}
	case machine.List:
		return a.list(ctx, act)
	case machine.ReadRecord:
		return a.readRecord(act)
	case machine.WriteRecord:
		err = a.writeRecord(g, act)
	case machine.Explain:
		return a.explain(g, act)
	case machine.Plug:
		_, err = a.network.PlugGuest(ctx, act.Tap, act.MTU)
		poke(a.networks.wake) // the network was last applied without this tap
	case machine.Prepare:
		return a.prepare(ctx, g, act)
	case machine.Route:
		err = a.route(ctx, g)
	case machine.Start:
		defer poke(a.limits.wake)
		return a.start(context.WithoutCancel(ctx), g, act)
	case machine.Restore:
		return g.started(a.checkpoints.restore(context.WithoutCancel(ctx), g, act.Wanted), false)
	case machine.Send:
		err = a.send(ctx, g, act.Wanted)
	case machine.Busy:
		return a.busy(ctx, g, act.Patience)
	case machine.Resume:
		if err = a.leases.allow(g); err != nil {
			break
		}
		g.closeWay(a.tunnels)
		g.identity.resumes()
		if err = a.hypervisor.Resume(ctx, g.uid); err == nil {
			g.identity.resumed()
		}
		poke(a.limits.wake)
		return machine.Result{Err: err, Broken: a.hypervisor.Broken(err)}
	case machine.Destroy:
		a.volumes.sync(ctx, g)
		err = a.destroy(ctx, g)
	case machine.Confirm:
		pids, err := a.processes(ctx, g)
		return machine.Result{PIDs: pids, Err: err}
	case machine.AllowIncoming:
		err = a.expect(ctx, g, act)
	case machine.DisallowIncoming:
		g.expectNothing()
	case machine.Forget:
		return a.forget(ctx, g, act.Record)
	}
	return machine.Result{Err: err}
}

// list lists the domains. It also updates the hypervisor's part of the host's information, which may change when the daemon
// restarts.
func (a *Agent) list(ctx context.Context, act machine.Act) machine.Result {
	list, err := a.hypervisor.List(ctx)
	result := machine.Result{Domains: list, Err: err}
	for _, uid := range act.Late {
		if a.hypervisor.Creating(uid) {
			result.Creating = append(result.Creating, uid)
		}
	}
	if err == nil {
		a.takeUpHypervisor()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	closeOnce(a.listed)
	if err == nil {
		closeOnce(a.answered)
	}
	return result
}

// closeOnce closes a channel that may be closed already. The caller holds a lock.
func closeOnce(c chan struct{}) {
	select {
	case <-c:
	default:
		close(c)
	}
}

func (a *Agent) takeUpHypervisor() {
	hypervisor, qemu, err := a.hypervisor.Versions()
	if err != nil {
		return
	}
	confinement, support := a.confinement(), a.hypervisor.Support()
	a.mu.Lock()
	defer a.mu.Unlock()
	info := proto.CloneOf(a.info)
	info.LibvirtVersion, info.QemuVersion = hypervisor, qemu
	info.Confinement, info.GuestSupport = confinement, support
	if !proto.Equal(info, a.info) {
		a.info = info
	}
}

// SetCoreSpeed replaces the speed of a core in the host's information.
func (a *Agent) SetCoreSpeed(speed float64) {
	a.log.Info("the speed of a core was measured again", "speed", speed)
	a.mu.Lock()
	defer a.mu.Unlock()
	info := proto.CloneOf(a.info)
	info.CoreSpeed = speed
	a.info = info
	a.publishLocked()
}

// SetLAN replaces the host's LAN address, and the MTU of that interface in bytes, in the host's information, and applies the
// network again.
func (a *Agent) SetLAN(address string, mtu int) {
	a.mu.Lock()
	info := proto.CloneOf(a.info)
	info.LanAddress, info.Mtu = address, uint32(mtu)
	a.info = info
	a.publishLocked()
	a.mu.Unlock()
	a.ReapplyNetwork()
}

func (a *Agent) readRecord(act machine.Act) machine.Result {
	r, err := a.records.LoadOne(act.Guest)
	if errors.Is(err, ErrUnreadable) {
		return machine.Result{Err: err}
	}
	return machine.Result{Record: r, Err: err, Damaged: err != nil || a.records.Damaged(act.Guest)}
}

func (a *Agent) writeRecord(g *guest, act machine.Act) error {
	r := act.Record
	if err := a.records.Save(r, act.Vital); err != nil {
		return err
	}
	if r.Phase == machine.PhaseEnded && r.Outcome != machine.OutcomeForgotten {
		g.keepConsole(act.Was, r)
	}
	return nil
}

func (a *Agent) route(ctx context.Context, g *guest) error {
	ctx, cancel := context.WithTimeout(ctx, routeWait)
	defer cancel()
	if err := a.networks.ensure(ctx, g.uid); err != nil {
		return fmt.Errorf("guest %s runs before its address is routed: %w", g.name, err)
	}
	return nil
}

func (a *Agent) destroy(ctx context.Context, g *guest) error {
	if err := a.hypervisor.Destroy(ctx, g.uid); err != nil {
		return err
	}
	deadline := time.Now().Add(5 * time.Second)
	for {
		pids, err := a.processes(ctx, g)
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("its process %d does not end", pids[0])
		}
		for _, pid := range pids {
			syscall.Kill(pid, syscall.SIGKILL)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// processes returns the pids of the guest's QEMU processes.
func (a *Agent) processes(ctx context.Context, g *guest) ([]int, error) {
	all, err := a.config.Processes(ctx)
	return all[g.uid], err
}

// forget removes everything that the host holds for the guest, except its record.
func (a *Agent) forget(ctx context.Context, g *guest, r *machine.Record) machine.Result {
	g.expectNothing()
	received := r != nil && r.Source != ""
	if received {
		a.tunnels.Drop(r.Migration)
	}
	if err := a.unplug(ctx, g); err != nil {
		return machine.Result{Err: err}
	}
	result := machine.Result{Unplugged: true}
	if err := os.RemoveAll(a.guestRunDir(g.uid)); err != nil {
		result.Err = fmt.Errorf("remove the sockets of guest %s: %w", g.name, err)
		return result
	}
	if received { // QEMU does not remove the socket on which the guest arrived
		socket, err := a.hypervisor.MigrateSocket(g.name)
		if err != nil {
			result.Err = err
			return result
		}
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			result.Err = fmt.Errorf("remove the migration socket of guest %s: %w", g.name, err)
			return result
		}
	}
	g.keepConsole(r, r)
	return result
}

// unplug removes the guest's tap and the route to it.
func (a *Agent) unplug(ctx context.Context, g *guest) error {
	if err := a.networks.unplug(ctx, g.uid); err != nil {
		return fmt.Errorf("unplug guest %s: %w", g.name, err)
	}
	return nil
}
