// Package probe is what watari-agent and `watari` say the same about a host: where libvirt listens, and what `watari-agent probe`
// tells `watari doctor`, since only the agent links libvirt.
package probe

// LibvirtSockets are what qemu:///system is reached by: a modular QEMU daemon, or libvirtd.
var LibvirtSockets = []string{"/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"}

// Host is how a host can run guests. It is written as JSON.
type Host struct {
	// KVM says whether a trial guest ran under KVM; Acceleration is the reason, a sentence.
	KVM          bool   `json:"kvm"`
	Acceleration string `json:"acceleration"`
	// LibvirtError says why libvirt could not be asked; the fields below are empty then.
	LibvirtError string `json:"libvirt_error,omitempty"`
	// Libvirt and QEMU are versions, as in 9.0.0.
	Libvirt string `json:"libvirt,omitempty"`
	QEMU    string `json:"qemu,omitempty"`
	// User is the one that QEMU runs as.
	User string `json:"qemu_user,omitempty"`
	// SecurityModel confines QEMU: "apparmor", "selinux"; "": nothing does.
	SecurityModel string `json:"security_model,omitempty"`
}
