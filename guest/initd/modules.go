package initd

// Modules are the kernel modules that a guest needs until its root is mounted and the host gets an answer, in the best
// order of loading. Names are those of modinfo (with underscores). An image leaves out modules that its kernel has
// built in or does not have.
var Modules = []string{
	"virtio_pci",
	"virtio_blk",
	"virtio_console",
	"squashfs",
	"erofs",
	"overlay",
	"virtio_net",
}

// LateModules are loaded while the guest agent already answers. They and their dependencies come after all of Modules
// in /watari/modules.
var LateModules = []string{
	"virtio_rng",
	"vmgenid",
	"nfsv4",          // the shared home's client
	"nfsd",           // the shared home's server
	"crc32c_generic", // of ext4
	"ext4",           // a volume
}
