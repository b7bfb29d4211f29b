package core

import (
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
)

func TestFactsOfLibvirtAreKeptUntilItAnswersANewAgent(t *testing.T) {
	before := &v1.HostInfo{BootId: "one", LibvirtVersion: "9.0.0", QemuVersion: "7.2.22",
		Confinement: &v1.Confinement{User: "libvirt-qemu"}, GuestSupport: &v1.GuestSupport{Machines: []string{"pc-i440fx-7.2"}}}
	silent := &v1.HostInfo{BootId: "two", GuestSupport: &v1.GuestSupport{}}
	want := proto.CloneOf(before)
	want.BootId = "two"
	if got := keepFacts(silent, before); !proto.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
	answered := &v1.HostInfo{BootId: "two", LibvirtVersion: "11.3.0", GuestSupport: &v1.GuestSupport{}}
	if got := keepFacts(answered, before); !proto.Equal(got, answered) {
		t.Errorf("what libvirt says now was replaced: %v", got)
	}
	if got := keepFacts(silent, nil); !proto.Equal(got, silent) {
		t.Errorf("a new host has facts: %v", got)
	}
}
