package vm

// describe.go - describes a host's hypervisor for people who set up a host.

import (
	"context"
	"fmt"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// Description describes a host's hypervisor.
type Description struct {
	Libvirt, QEMU string // versions
	User          string // QEMU's user
	SecurityModel string // libvirt's security driver for QEMU: "apparmor", "selinux"; "": none
}

// Describe asks the daemon at uri once. It returns when ctx ends.
func Describe(ctx context.Context, uri string) (Description, error) {
	type answer struct {
		description Description
		err         error
	}
	answered := make(chan answer, 1)
	go func() { // a daemon that hangs holds this goroutine
		d, err := describe(uri)
		answered <- answer{d, plain(err)}
	}()
	select {
	case a := <-answered:
		return a.description, a.err
	case <-ctx.Done():
		return Description{}, fmt.Errorf("ask libvirt at %s: it does not answer: %w", uri, ctx.Err())
	}
}

func describe(uri string) (Description, error) {
	conn, err := libvirt.NewConnect(uri)
	if err != nil {
		return Description{}, fmt.Errorf("connect to libvirt at %s: %w", uri, err)
	}
	defer conn.Close()
	library, err := conn.GetLibVersion()
	if err != nil {
		return Description{}, fmt.Errorf("read libvirt's version: %w", err)
	}
	d := Description{Libvirt: version(library)}
	if emulator, err := conn.GetVersion(); err == nil { // an error: there is no QEMU
		d.QEMU = version(emulator)
	}
	text, err := conn.GetCapabilities()
	if err != nil {
		return d, fmt.Errorf("read the host's capabilities: %w", err)
	}
	var caps libvirtxml.Caps
	if err := caps.Unmarshal(text); err != nil {
		return d, fmt.Errorf("read the host's capabilities: %w", err)
	}
	qemu, model := readConfinement(&caps, "qemu")
	d.User, d.SecurityModel = userName(qemu), model
	return d, nil
}
