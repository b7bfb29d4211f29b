package vm

import (
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
