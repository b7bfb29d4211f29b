// Package probe holds what watari-agent and watari have in common about a host: the paths of libvirt's sockets, and the
// output of `watari-agent probe`, which `watari doctor` reads because only the agent links libvirt.
package probe

// LibvirtSockets are the sockets for qemu:///system, of a modular QEMU daemon or of libvirtd.
var LibvirtSockets = []string{"/run/libvirt/virtqemud-sock", "/run/libvirt/libvirt-sock"}

// Host describes how a host can run guests. It is written as JSON.
type Host struct {
	// KVM reports whether a trial guest ran under KVM. Acceleration is the reason, as a sentence.
	KVM          bool   `json:"kvm"`
	Acceleration string `json:"acceleration"`
	// LibvirtError is the reason why libvirt did not answer. The fields below are empty then.
	LibvirtError string `json:"libvirt_error,omitempty"`
	// Libvirt and QEMU are versions, such as 9.0.0.
	Libvirt string `json:"libvirt,omitempty"`
	QEMU    string `json:"qemu,omitempty"`
	// User is the user that QEMU runs as.
	User string `json:"qemu_user,omitempty"`
	// SecurityModel is the security driver that confines QEMU: "apparmor", "selinux"; "": none.
	SecurityModel string `json:"security_model,omitempty"`
}
