package core

// fencing.go - switches off hosts that are out of reach, so that their guests are known to have ended. An administrator of
// the manager's machine sets the command that does it.

import (
	"fmt"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

// Fence is a host that is to be switched off, in the boot in which it was last seen.
type Fence struct {
	Host, BootID string
	LANAddress   string
	Site         string
}

// fences returns the hosts that are to be switched off: they have guests, and have been out of reach for FenceAfter. If more
// hosts are out of reach than not, the manager itself may be cut off, and fences returns none.
func (p *pass) fences() (list []Fence) {
	if p.FenceAfter == 0 {
		return nil
	}
	reached, out := 0, 0
	for _, name := range sortedKeys(p.Hosts) {
		h := p.Hosts[name]
		_, since, connected := p.Observed(name)
		switch {
		case h.Info == nil || h.Meta.GetDeleting() != nil || fenced(h):
			continue
		case connected:
			reached++
			continue
		}
		out++
		away := min(p.Now.Sub(since), p.Now.Sub(p.Began))
		switch {
		case len(p.index.onHost[name]) == 0:
		case away < p.FenceAfter:
			p.again = earlier(p.again, p.Now.Add(p.FenceAfter-away))
		default:
			list = append(list, Fence{name, h.Info.BootId, h.Info.LanAddress, h.Info.Site})
		}
	}
	if reached < out {
		return nil
	}
	return list
}

// fenced reports whether a host is known to be off in the boot in which it was last seen.
func fenced(h *v1.Host) bool {
	return h.FencedBootId != "" && h.FencedBootId == h.GetInfo().GetBootId()
}

// Fenced records that a host has been switched off. The change has no operations if the host is connected, has rebooted, is
// being removed, or is fenced already.
func Fenced(o *Objects, r Reports, f Fence) (change Change) {
	h := o.Hosts[f.Host]
	_, _, connected := r.Observed(f.Host)
	if h == nil || h.Meta.GetDeleting() != nil || connected || h.GetInfo().GetBootId() != f.BootID || fenced(h) {
		return change
	}
	update := proto.CloneOf(h)
	update.FencedBootId = f.BootID
	change.write(Update, update)
	change.event(v1.Severity_SEVERITY_WARNING, "host", f.Host, "was switched off by the fencing command, because it did not answer; its guests have ended")
	return change
}

// FenceFailed returns the event that tells that a host could not be switched off.
func FenceFailed(f Fence, err error, again time.Duration) (change Change) {
	change.event(v1.Severity_SEVERITY_ERROR, "host", f.Host, "could not be switched off by the fencing command, which is tried again in %s: %v", again, err)
	return change
}

// whyFenced says why a host takes no guests; empty: it may.
func whyFenced(h *v1.Host) string {
	if !fenced(h) {
		return ""
	}
	return fmt.Sprintf("the fencing command has switched it off, and it has not booted since (boot %s)", h.FencedBootId)
}
