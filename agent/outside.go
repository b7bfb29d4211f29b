package agent

import (
	"context"
	"net/http"

	"watari/agent/domain"
	"watari/agent/machine"
	v1 "watari/api/watariv1"
)

// Hypervisor is what the agent needs of libvirt (package vm). An act on an absent domain that is to end is no
// error; all acts may be repeated.
type Hypervisor interface {
	Events() <-chan domain.Event
	Versions() (hypervisor, qemu string, err error)
	// Confinement says how the hypervisor confines guests; nil before it has answered.
	Confinement() *v1.Confinement
	// MigrateSocket returns the path of the Unix socket by which a guest's memory leaves this host or arrives here,
	// and makes sure that the hypervisor may create a socket there. The path is the same on all hosts.
	MigrateSocket(name string) (path string, err error)
	// Support is what guests can be given here; nil before the hypervisor has answered.
	Support() *v1.GuestSupport
	List(ctx context.Context) ([]domain.Info, error)
	Boot(ctx context.Context, spec domain.Spec) error
	// Fork may fail with domain.ErrTemplateUnusable: the template is then of no use to other guests, either.
	Fork(ctx context.Context, spec domain.Spec, template string) error
	SaveTemplate(ctx context.Context, uid, path string) error
	TemplateKey(spec domain.Spec) string
	Destroy(ctx context.Context, uid string) error
	Resume(ctx context.Context, uid string) error
	// Migrate returns when the transfer has ended, with nil if the guest is whole, and paused, at the target and
	// exists here no more. Cancelling ctx aborts it.
	Migrate(ctx context.Context, uid string, options domain.MigrateOptions) error
	// Creating tells whether a call of Boot or Fork, whose caller has given it up, is still under way.
	Creating(uid string) bool
	// Busy tells whether the hypervisor is still at something with the domain.
	Busy(ctx context.Context, uid string) (bool, error)
	// Ended says how a guest's domain ended that is no more.
	Ended(uid, name string) domain.End
	// Progress of the transfer under way; an error where none is.
	Progress(ctx context.Context, uid string) (*v1.MigrationProgress, error)
}

// Network is what the agent needs of the overlay.
type Network interface {
	// PlugGuest makes the guest's tap, without a route to it.
	PlugGuest(ctx context.Context, g machine.Tap, mtu uint32) (tap string, err error)
	UnplugGuest(ctx context.Context, uid string) error
	// Apply makes the kernel's state that which is wanted; local guests are routed to their taps.
	Apply(ctx context.Context, wanted *v1.NetworkWanted, local []machine.Tap) error
	// Problems are what is wrong and stays so by itself, a sentence each. It does not wait for Apply.
	Problems() []string
}

// GuestDialer opens a guest's channel: HTTP/2 to its agent, redialled when it breaks.
type GuestDialer func(uid, socket string) GuestChannel

// GuestChannel is the way to one guest's agent.
type GuestChannel interface {
	http.RoundTripper
	Close() error
}

// Images is what the agent needs of the image cache.
type Images interface {
	// Ensure makes an image whole here; step is told what it is doing.
	Ensure(ctx context.Context, image *v1.Image, step func(string)) (ImageFiles, error)
	// Held are the digests of whole images.
	Held() []string
	// Keep says which images are wanted; others, of which inUse says that no guest uses them, are removed.
	Keep(wanted []*v1.Image, inUse func(digest string) bool)
	// Share replaces what the manager said about who fetches from whom; false: nothing.
	Share(sharing bool, shares []*v1.BlobShare)
	// Blobs are those held and those being fetched.
	Blobs() []*v1.BlobObserved
	// Rate is how fast content came from the manager last, bytes per second; 0: not known.
	Rate() uint64
	// Fetch makes a blob whole that only other hosts have, and links it to path.
	Fetch(ctx context.Context, blob *v1.Blob, path string, step func(string)) error
	// Pack compresses a file into a blob that other hosts can fetch, and links it to path.
	Pack(ctx context.Context, from, path string) (*v1.Blob, error)
	// Unpack writes what Pack compressed to a file of limit bytes at most, which appears whole or not at all.
	Unpack(ctx context.Context, packed, path string, limit int64) error
}

// ImageFiles are the paths of an image's parts.
type ImageFiles struct {
	Kernel, Initrd, Root string
}

// Tunnels is what the agent needs of the migration tunnel (package tunnel).
type Tunnels interface {
	// Expect lets a migration in, until the returned function is called. Connections that were let in go on.
	Expect(e Expected) (stop func())
	// Drop ends all connections of an incoming migration.
	Drop(migration string)
	// Open makes the way to a target. The hypervisor is to send the guest's memory to migrateSocket.
	Open(ctx context.Context, order *v1.MigrationOrder, migrateSocket string) (Way, error)
	// Active tells whether any connection of an incoming migration is open.
	Active(migration string) bool
}

// Expected is a migration that may come in.
type Expected struct {
	Migration, Source string
	SourceUID         string // the source host's
	MigrateSocket     string // path at which the hypervisor listens for the guest's memory
	// Admit is called before each connection is let in; an error refuses it.
	Admit func() error
	// Changed is called when a connection was opened or closed.
	Changed func()
}

// Way leads to a migration's target.
type Way struct {
	Options domain.MigrateOptions
	// Err is why a connection could not be carried to the target; nil: none failed.
	Err   func() error
	Close func()
}
