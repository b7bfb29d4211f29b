package vm

import (
	"context"
	"errors"
	"strings"
	"testing"

	"libvirt.org/go/libvirt"
)

func TestErrorsOfLibvirtAreClassified(t *testing.T) {
	for name, c := range map[string]struct {
		err  libvirt.Error
		want error
	}{
		"no such domain":      {libvirt.Error{Code: libvirt.ERR_NO_DOMAIN, Domain: libvirt.FROM_QEMU}, ErrNotFound},
		"the connection ends": {libvirt.Error{Code: libvirt.ERR_INTERNAL_ERROR, Domain: libvirt.FROM_RPC}, ErrUnavailable},
	} {
		if err := classify(c.err); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	refused := libvirt.Error{Code: libvirt.ERR_OPERATION_INVALID, Domain: libvirt.FROM_SECURITY,
		Message: "Setting different DAC user or group on /images/x/kernel which is already in use"}
	if err := classify(refused); !strings.Contains(err.Error(), "already in use") || !strings.Contains(err.Error(), "watari host drain --undo") {
		t.Errorf("a file that belongs to guests of before: %v", err)
	}
}

// The daemon answered the look-up only after the caller had given up. The domain that it found may be another one.
func TestNothingIsDoneWithADomainThatWasFoundTooLate(t *testing.T) {
	conn, err := libvirt.NewConnect("test:///default")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	domains, err := conn.ListAllDomains(0)
	if err != nil || len(domains) == 0 {
		t.Fatalf("%d domains, %v", len(domains), err)
	}
	uid, err := domains[0].GetUUIDString()
	if err != nil {
		t.Fatal(err)
	}
	late, giveUp := context.WithCancel(t.Context())
	giveUp()
	for ctx, want := range map[context.Context]bool{t.Context(): true, late: false} {
		done := false
		err := onDomain(ctx, uid, func(*libvirt.Domain) error { done = true; return nil })(conn)
		if done != want || (err == nil) != want {
			t.Errorf("the caller waits: %t; something was done: %t, %v", want, done, err)
		}
	}
}
