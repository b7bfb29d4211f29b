package agent

// interfaces.go - interfaces of the parts that the agent uses: hypervisor, images, network, tunnels.

import (
	"context"
	"net/http"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// Hypervisor is the part of libvirt (package vm) that the agent uses. Ending an absent domain is no error. All calls may be
// repeated.
type Hypervisor interface {
	Events() <-chan domain.Event
	Versions() (hypervisor, qemu string, err error)
	// Confinement returns how the hypervisor confines guests; nil before it has answered.
	Confinement() *v1.Confinement
	// MigrateSocket returns the path of the Unix socket for a guest's memory, outgoing or incoming. It makes sure that
	// the hypervisor may create a socket there. The path is the same on all hosts.
	MigrateSocket(name string) (path string, err error)
	// Support returns the machine types and CPUs that guests can have; nil before the hypervisor has answered.
	Support() *v1.GuestSupport
	List(ctx context.Context) ([]domain.Info, error)
	Boot(ctx context.Context, spec domain.Spec) error
	// Fork may fail with domain.ErrTemplateUnusable. No guest can be forked from the template then.
	Fork(ctx context.Context, spec domain.Spec, template string) error
	SaveTemplate(ctx context.Context, uid, path string) error
	TemplateKey(spec domain.Spec) string
	Destroy(ctx context.Context, uid string) error
	Resume(ctx context.Context, uid string) error
	// Broken reports whether an error of Resume says that the guest can never continue.
	Broken(err error) bool
	// Migrate returns when the transfer has ended. It returns nil if the whole guest is at the target, paused, and no
	// longer exists here. Cancelling ctx aborts the transfer.
	Migrate(ctx context.Context, uid string, options domain.MigrateOptions) error
	// Incoming takes the source's description of an incoming domain, and returns the one to use. It fails if the host itself
	// would describe the guest otherwise.
	Incoming(spec domain.Spec, xml string) (string, error)
	// Creating reports whether a call of Boot or Fork is under way, perhaps without a waiting caller.
	Creating(uid string) bool
	// Busy reports whether the hypervisor has a job on the domain.
	Busy(ctx context.Context, uid string) (bool, error)
	// Ended returns how a guest's domain ended. The domain no longer exists.
	Ended(uid, name string) domain.End
	// Progress returns the progress of the transfer under way; an error if there is none.
	Progress(ctx context.Context, uid string) (*v1.MigrationProgress, error)
}

// Network is the part of the overlay that the agent uses.
type Network interface {
	// PlugGuest makes the guest's tap, without a route to it.
	PlugGuest(ctx context.Context, g machine.Tap, mtu uint32) (tap string, err error)
	UnplugGuest(ctx context.Context, uid string) error
	// Plugged returns the uids of the guests that have a tap, also from an earlier agent.
	Plugged() []string
	// Apply brings the kernel's network into the wanted state. It routes local guests to their taps.
	Apply(ctx context.Context, wanted *v1.NetworkWanted, local []machine.Tap) error
	// OpenStorage lets guests reach these TCP ports of their gateway, by uid, and no others.
	OpenStorage(ctx context.Context, ports map[string][]uint16) error
	// Problems returns lasting problems, a sentence each. It does not wait for Apply.
	Problems() []string
	// Paths returns what is known of the paths to other hosts. It does not wait for Apply.
	Paths() []*v1.PathObserved
}

// GuestDialer opens a guest's channel: HTTP/2 to its agent, redialled when it breaks.
type GuestDialer func(uid, socket string) GuestChannel

// GuestChannel is the connection to one guest's agent.
type GuestChannel interface {
	http.RoundTripper
	Close() error
}

// Images is the part of the image cache that the agent uses.
type Images interface {
	// Ensure fetches the missing parts of an image. It calls step with what it is doing.
	Ensure(ctx context.Context, image *v1.Image, step func(string)) (ImageFiles, error)
	// Held returns the digests of complete images.
	Held() []string
	// Prune removes images that are not in use.
	Prune(inUse func(digest string) bool)
	// Share replaces the manager's orders about which host fetches a blob from which hosts. If sharing is false, there
	// are none.
	Share(sharing bool, shares []*v1.BlobShare)
	// Blobs returns the complete blobs and those being fetched.
	Blobs() []*v1.BlobObserved
	// Rate is the speed of the last transfer from the manager, bytes per second; 0: not known.
	Rate() uint64
	// Fetch fetches a blob that only other hosts have, and links it to path.
	Fetch(ctx context.Context, blob *v1.Blob, path string, step func(string)) error
	// Adopt lets other hosts fetch a file that was made here.
	Adopt(digest, path string) error
	// Forget removes a blob whose last file the caller has removed.
	Forget(digest string)
	// Pack compresses a file into a blob that other hosts can fetch, and links it to path.
	Pack(ctx context.Context, from, path string) (*v1.Blob, error)
	// Unpack decompresses what Pack compressed into a file of at most limit bytes. The file appears complete or not at
	// all.
	Unpack(ctx context.Context, packed, path string, limit int64) error
}

// ImageFiles are the paths of an image's parts.
type ImageFiles struct {
	Kernel, Initrd, Root string
}

// Tunnels is the part of the migration tunnel (package tunnel) that the agent uses.
type Tunnels interface {
	// Expect admits a migration until the returned function is called. Admitted connections continue.
	Expect(e Expected) (stop func())
	// Drop ends all connections of an incoming migration.
	Drop(migration string)
	// Open makes the sockets that lead to a target. The hypervisor must send the guest's memory to migrateSocket.
	Open(ctx context.Context, order *v1.MigrationOrder, migrateSocket string) (OutgoingTunnel, error)
	// Active reports whether an incoming migration has an open connection.
	Active(migration string) bool
	// Revoke sets the least generations of hosts' certificates that are valid, by the hosts' uids, and ends connections of
	// hosts that showed earlier ones.
	Revoke(least map[string]uint32)
}

// Expected is an incoming migration that is expected.
type Expected struct {
	Migration, Source string
	SourceUID         string // the source host's
	MigrateSocket     string // path at which the hypervisor listens for the guest's memory
	Name              string // the guest's
	// Describe takes the source's description of the guest, and returns the one for this host's hypervisor. An error refuses
	// the migration.
	Describe func(xml string) (string, error)
	// Admit is called before each connection is admitted; an error refuses it.
	Admit func() error
	// Changed is called after a connection was opened or closed.
	Changed func()
}

// OutgoingTunnel leads to a migration's target.
type OutgoingTunnel struct {
	Options domain.MigrateOptions
	// Err returns why a connection to the target failed; nil: none failed.
	Err func() error
	// Sent returns how many bytes of the guest's memory went to the target; 0: they are not counted.
	Sent  func() uint64
	Close func()
}
