package initd

// Modules are the kernel modules a guest needs until its root is mounted and the host is answered, in the
// order in which they are best loaded. Names are those of modinfo (with underscores). One that the kernel has
// built in, or does not have at all, is left out when an image is built.
var Modules = []string{
	"virtio_pci",
	"virtio_blk",
	"virtio_console",
	"squashfs",
	"erofs",
	"overlay",
	"virtio_net",
}

// LateModules are loaded while the guest agent already answers. They and their dependencies come after all of
// Modules in /watari/modules.
var LateModules = []string{
	"virtio_rng",
	"vmgenid",
	"nfsv4", // the shared home's client
	"nfsd",  // the shared home's server
}
