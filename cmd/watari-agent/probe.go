package main

// probe.go - reports how this host can run guests, for `watari doctor`.

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"time"

	"watari/agent/accel"
	"watari/agent/vm"
	v1 "watari/api/watariv1"
	"watari/cmd/internal/probe"
)

// libvirtTime is the time limit of libvirt's answer. A daemon that its socket has just started probes each QEMU first.
const libvirtTime = time.Minute

// runProbe writes a probe.Host as JSON.
func runProbe(args []string, out io.Writer) error {
	flags := flag.NewFlagSet("watari-agent probe", flag.ContinueOnError)
	uri := flags.String("libvirt", "qemu:///system", "`URI` of the libvirt daemon")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unknown argument %q; see watari-agent probe --help", flags.Arg(0))
	}
	found := accel.Probe(context.Background())
	host := probe.Host{KVM: found.Kind == v1.AccelerationKind_ACCELERATION_KIND_KVM, Acceleration: found.Reason}
	ctx, cancel := context.WithTimeout(context.Background(), libvirtTime)
	defer cancel()
	described, err := vm.Describe(ctx, *uri)
	if err != nil {
		host.LibvirtError = err.Error()
	}
	host.Libvirt, host.QEMU, host.User, host.SecurityModel = described.Libvirt, described.QEMU, described.User, described.SecurityModel
	return json.NewEncoder(out).Encode(host)
}
