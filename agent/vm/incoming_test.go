package vm

import (
	"os"
	"strings"
	"testing"
)

// incomingSpec describes the guest whose description in testdata comes from libvirt.
func incomingSpec() Spec {
	const image, guest = "/var/lib/watari/agent/images/5a521a81ffa4c9e3c55180676e5e9eb831eba39d629610f42ad016c96c1a7ccb/", "833ba93c-f41b-870f-9e41-1f7513316b0a"
	return Spec{UID: guest, Name: "md-0", VCPUs: 1, MemoryBytes: 256 << 20, Kernel: image + "kernel", Initrd: image + "initrd", Root: image + "root",
		RootType: "squashfs", Tap: "wt833ba93cf4", Channel: "/run/watari/guests/" + guest + "/channel.sock",
		Console: "/var/lib/watari/agent/guests/" + guest + "/console.log", Volume: "/run/libvirt/watari/v.tunnelmigrate.dest.watari-md-0"}
}

func sentDescription(t *testing.T) string {
	t.Helper()
	text, err := os.ReadFile("testdata/incoming-libvirt-9.0.xml")
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestAGuestComesInAsItIsDescribedHere(t *testing.T) {
	sent := sentDescription(t)
	used, err := incoming(incomingSpec(), emulatedHost(), sent)
	if err != nil {
		t.Fatal(err)
	}
	// The devices' addresses and everything else that the guest sees are kept. Marshalling twice gives the same text.
	for _, kept := range []string{`slot="0x04"`, "565f2a00-8992-4dcf-8710-c1850ea10e5e", `name="svm"`, "queue_reset", `id&#34;:&#34;volume0`} {
		if !strings.Contains(used, kept) {
			t.Errorf("%s is missing", kept)
		}
	}
	if again, err := incoming(incomingSpec(), emulatedHost(), used); err != nil || again != used {
		t.Errorf("%v\n%s", err, again)
	}
	confined := strings.Replace(sent, "<devices>", "<seclabel type='dynamic' model='apparmor' relabel='yes'/><seclabel type='dynamic' model='dac' relabel='yes'/><devices>", 1)
	if _, err := incoming(incomingSpec(), emulatedHost(), confined); err != nil {
		t.Error(err)
	}
	unknown := strings.Replace(sent, "<devices>", "<devices><teleporter/>", 1)
	if used, err := incoming(incomingSpec(), emulatedHost(), unknown); err == nil && strings.Contains(used, "teleporter") {
		t.Error("what nobody knows came through")
	}
}

// Each version of libvirt adds other elements to a description. This one is from Debian 13, with a guest under KVM.
func TestAGuestComesInFromANewerLibvirt(t *testing.T) {
	text, err := os.ReadFile("testdata/incoming-libvirt-11.3.xml")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := incoming(goldenSpec(), acceleratedHost(), string(text)); err != nil {
		t.Error(err)
	}
}

// A stranger's source sends a description that would give the guest files, programs or rights of this host.
func TestAGuestThatWouldGetMoreOfTheHostIsRefused(t *testing.T) {
	device := func(text string) func(string) string {
		return func(sent string) string { return strings.Replace(sent, "<devices>", "<devices>"+text, 1) }
	}
	top := func(text string) func(string) string {
		return func(sent string) string { return strings.Replace(sent, "<devices>", text+"<devices>", 1) }
	}
	change := func(old, new string) func(string) string {
		return func(sent string) string {
			if !strings.Contains(sent, old) {
				t.Fatalf("there is no %s", old)
			}
			return strings.Replace(sent, old, new, 1)
		}
	}
	for name, attack := range map[string]func(string) string{
		"the host's disk":           device(`<disk type='block' device='disk'><driver name='qemu' type='raw'/><source dev='/dev/sda'/><target dev='vdb' bus='virtio'/></disk>`),
		"a file of the host":        change("/root'/>", "/../../../../../etc/shadow'/>"),
		"a root that is written to": change("<readonly/>", ""),
		"a backing file":            change("<backingStore/>", "<backingStore type='file'><format type='raw'/><source file='/etc/shadow'/></backingStore>"),
		"another kernel":            change("/kernel</kernel>", "/../../../../etc/shadow</kernel>"),
		"another program":           change("/usr/bin/qemu-system-x86_64", "/tmp/program"),
		"no confinement":            top("<seclabel type='none'/>"),
		"no labels":                 top("<seclabel type='dynamic' model='dac' relabel='no'/>"),
		"QEMU as root":              top("<seclabel type='static' model='dac' relabel='yes'><label>+0:+0</label></seclabel>"),
		"an argument of QEMU":       change("<qemu:arg value='-object'/>", "<qemu:arg value='-virtfs'/><qemu:arg value='local,path=/,mount_tag=x,security_model=none'/><qemu:arg value='-object'/>"),
		"another argument":          change("id=watched.ram,size", "id=watched.ram,share=on,size"),
		"an environment":            change("<qemu:commandline>", "<qemu:commandline><qemu:env name='LD_PRELOAD' value='/tmp/x.so'/>"),
		"a property of a device":    change("name='queue_reset'", "name='romfile'"),
		"a device of the host":      device("<hostdev mode='subsystem' type='pci' managed='yes'><source><address domain='0' bus='1' slot='0' function='0'/></source></hostdev>"),
		"a folder of the host":      device("<filesystem type='mount'><source dir='/'/><target dir='x'/></filesystem>"),
		"a file to write to":        change("console.log' append='on'/>\n      <target type='isa-serial'", "../../../../../etc/cron.d/x' append='on'/>\n      <target type='isa-serial'"),
		"a second console":          device("<console type='file'><source path='/etc/cron.d/x'/><target type='virtio'/></console>"),
		"a socket elsewhere":        change("/channel.sock", "/../x.sock"),
		"a bridge":                  change("<interface type='ethernet'>", "<interface type='bridge'><source bridge='br0'/>"),
		"a script for a tap":        change("<model type='virtio'/>", "<script path='/tmp/x'/><model type='virtio'/>"),
		"another tap":               change("dev='wt833ba93cf4'", "dev='wt0000000000'"),
		"a display":                 device("<graphics type='vnc' port='5900' listen='0.0.0.0'/>"),
		"a sound card":              device("<audio id='1' type='file' path='/etc/cron.d/x'/>"),
		"a keyboard of the host":    device("<input type='evdev'><source dev='/dev/input/event0'/></input>"),
		"a random device":           change("<backend model='builtin'/>", "<backend model='random'>/dev/sda</backend>"),
		"a TPM":                     device("<tpm model='tpm-tis'><backend type='emulator' version='2.0'/></tpm>"),
		"a watchdog":                device("<watchdog model='i6300esb' action='reset'/>"),
		"more memory":               change("<memory unit='KiB'>262144", "<memory unit='KiB'>26214400"),
		"memory in files":           top("<memoryBacking><source type='file'/><access mode='shared'/></memoryBacking>"),
		"more processors":           change("<vcpu placement='static'>1", "<vcpu placement='static'>64"),
		"an argument as a feature":  change("</cpu>", "<feature policy='require' name='avx=on,x'/></cpu>"),
		"an argument as a model":    change("</model>", ",x</model>"),
		"an argument as a vendor":   change("<model ", "<model vendor_id='x,y=Genuine' "),
		"processors of its own":     top("<cputune><vcpupin vcpu='0' cpuset='0'/></cputune>"),
		"another control group":     change("/machine</partition>", "/system.slice</partition>"),
		"another guest":             change("<uuid>833ba93c", "<uuid>833ba93d"),
		"another name":              change("watari-md-0</name>", "watari-md-1</name>"),
		"a restart at its end":      change("<on_crash>destroy", "<on_crash>restart"),
		"an operating system":       change("<boot dev='hd'/>", "<loader readonly='yes' type='pflash'>/etc/shadow</loader><boot dev='hd'/>"),
		"metadata":                  top("<metadata><x xmlns='y'/></metadata>"),
		"no XML":                    func(string) string { return "<domain" },
	} {
		if used, err := incoming(incomingSpec(), emulatedHost(), attack(sentDescription(t))); err == nil {
			t.Errorf("%s came through:\n%s", name, used)
		} else {
			t.Logf("%s: %v", name, err)
		}
	}
}
