package vm

import (
	"slices"
	"testing"

	"libvirt.org/go/libvirt"
)

func TestAnEndIsToldByTheEventThatSaysMost(t *testing.T) {
	shutdown, stopped, started := libvirt.DOMAIN_EVENT_SHUTDOWN, libvirt.DOMAIN_EVENT_STOPPED, libvirt.DOMAIN_EVENT_STARTED
	type event struct {
		kind   libvirt.DomainEventType
		detail int
	}
	for _, c := range []struct {
		name   string
		events []event
		want   Ending
	}{
		{"the guest resets itself", []event{{shutdown, int(libvirt.DOMAIN_EVENT_SHUTDOWN_GUEST)}, {stopped, int(libvirt.DOMAIN_EVENT_STOPPED_SHUTDOWN)}}, EndingGuest},
		{"QEMU gets SIGTERM", []event{{shutdown, int(libvirt.DOMAIN_EVENT_SHUTDOWN_HOST)}, {stopped, int(libvirt.DOMAIN_EVENT_STOPPED_SHUTDOWN)}}, EndingHost},
		{"QEMU is killed", []event{{stopped, int(libvirt.DOMAIN_EVENT_STOPPED_FAILED)}}, EndingCrashed},
		{"virsh destroy", []event{{stopped, int(libvirt.DOMAIN_EVENT_STOPPED_DESTROYED)}}, EndingDestroyed},
		{"it moves away", []event{{stopped, int(libvirt.DOMAIN_EVENT_STOPPED_MIGRATED)}}, EndingUnknown},
		{"it is started again", []event{{stopped, int(libvirt.DOMAIN_EVENT_STOPPED_FAILED)}, {started, 0}}, EndingUnknown},
	} {
		e := newEndings()
		for _, one := range c.events {
			e.note("uid", one.kind, one.detail)
		}
		if got := e.take("uid"); got != c.want {
			t.Errorf("%s: %v, not %v", c.name, got, c.want)
		}
		if got := e.take("uid"); got != EndingUnknown {
			t.Errorf("%s: told twice", c.name)
		}
	}
}

func TestEndingsThatNobodyAsksForAreBounded(t *testing.T) {
	e := newEndings()
	for i := range 2 * mostEndings {
		e.note(string(rune(i)), libvirt.DOMAIN_EVENT_STOPPED, int(libvirt.DOMAIN_EVENT_STOPPED_FAILED))
	}
	if len(e.known) > mostEndings {
		t.Errorf("%d are kept", len(e.known))
	}
}

const log = `2026-11-20 12:00:00.100+0000: starting up libvirt version: 9.0.0, package: 9.0.0-4 (Debian), qemu version: 7.2.9
LC_ALL=C \
/usr/bin/qemu-system-x86_64 \
-name guest=watari-md-0,debug-threads=on \
-msg timestamp=on
char device redirected to /dev/pts/0 (label charserial0)
qemu-system-x86_64: an old complaint
2026-11-20 12:01:00.000+0000: shutting down, reason=crashed
2026-11-20 12:02:00.100+0000: starting up libvirt version: 9.0.0, package: 9.0.0-4 (Debian), qemu version: 7.2.9
LC_ALL=C \
/usr/bin/qemu-system-x86_64 \
-msg timestamp=on
2026-11-20 12:02:01.000+0000: Domain id=2 is tainted: custom-argv
2026-11-20T12:02:30.000000Z qemu-system-x86_64: terminating on signal 15 from pid 77 (<unknown process>)
2026-11-20T12:02:30.000001Z qemu-system-x86_64: terminating on signal 15 from pid 8 (/usr/sbin/libvirtd)
2026-11-20 12:02:31.000+0000: shutting down, reason=shutdown
`

func TestALogIsReadFromItsLastStartOn(t *testing.T) {
	reason, said := readLog(log)
	want := []string{"2026-11-20T12:02:30.000000Z qemu-system-x86_64: terminating on signal 15 from pid 77 (<unknown process>)"}
	if reason != "shutdown" || !slices.Equal(said, want) {
		t.Errorf("reason %q, said %q", reason, said)
	}
	if reason, said := readLog(""); reason != "" || said != nil {
		t.Errorf("an empty log says %q, %q", reason, said)
	}
}
