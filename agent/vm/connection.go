package vm

// connection.go - keeps and watches the connection to libvirt's daemon. No call waits for the daemon without a limit.

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"libvirt.org/go/libvirt"

	v1 "watari/api/watariv1"
)

// Time limits for libvirt. Keepalives detect a hanging daemon after keepaliveInterval*keepaliveCount.
const (
	connectTime       = 15 * time.Second
	quickTime         = 15 * time.Second
	bootTime          = 2 * time.Minute
	destroyTime       = 45 * time.Second
	saveTime          = 5 * time.Minute
	restoreTime       = 2 * time.Minute
	keepaliveInterval = 5 // seconds
	keepaliveCount    = 3
	retryAtFirst      = 100 * time.Millisecond
	retryAtMost       = 2 * time.Second
)

// Options of a connection.
type Options struct {
	// Acceleration is KVM or TCG, as found by package accel; unspecified means TCG.
	Acceleration v1.AccelerationKind
	// Log receives messages about lost and new connections; nil: slog.Default().
	Log *slog.Logger
}

// Libvirt is a host's hypervisor. Its methods may be called at the same time from several goroutines.
type Libvirt struct {
	uri     string
	options Options
	log     *slog.Logger
	events  *eventQueue
	finals  *finalProgress
	endings *endings

	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	done   chan struct{} // closed when the keeper has ended

	lock      sync.Mutex
	conn      *libvirt.Connect // nil while there is none
	closeConn func()           // closes conn
	ready     chan struct{}    // closed while conn is set
	host      *hostFacts       // of the last connection; kept when it is lost
	last      error            // why there is no connection
	creating  map[string]int   // calls under way that create a domain, by uid
}

// Connect keeps a connection to the daemon at uri ("qemu:///system") until Close. It does not wait for the first
// connection. It retries while the daemon does not answer or the host cannot run guests, and reconnects after the
// daemon restarts. Each new connection causes an event.
func Connect(uri string, options Options) (*Libvirt, error) {
	if err := startEventLoop(); err != nil {
		return nil, err
	}
	l := &Libvirt{
		uri: uri, options: options, log: options.Log, events: newEventQueue(), finals: newFinalProgress(), endings: newEndings(),
		done: make(chan struct{}), ready: make(chan struct{}), creating: map[string]int{},
	}
	if l.log == nil {
		l.log = slog.Default()
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	go l.keep()
	return l, nil
}

// Close closes the connection and the channel of events. Domains stay as they are.
func (l *Libvirt) Close() {
	l.cancel()
	<-l.done
}

// Events returns the channel of events. It is always the same channel, for one prompt reader. Close closes it.
func (l *Libvirt) Events() <-chan Event { return l.events.out }

// keep connects, waits until the connection is lost, and connects again.
func (l *Libvirt) keep() {
	defer close(l.done)
	defer l.events.close()
	wait := retryAtFirst
	for l.ctx.Err() == nil {
		lost, err := l.connect()
		if err != nil {
			l.setLast(err)
			if !sleep(l.ctx, wait) {
				return
			}
			wait = min(2*wait, retryAtMost)
			continue
		}
		wait = retryAtFirst
		l.log.Info("connected to libvirt", "uri", l.uri)
		l.events.push(Event{At: time.Now()})
		select {
		case reason := <-lost:
			l.log.Warn("the connection to libvirt was lost", "uri", l.uri, "reason", reason)
		case <-l.ctx.Done():
		}
		l.disconnect()
		if l.ctx.Err() == nil {
			l.events.push(Event{At: time.Now(), Lost: true})
		}
	}
}

// connect makes one connection, registers for events and reads the host's facts. lost gets one value when the
// connection is lost. Only one attempt is under way, however long a hanging daemon makes it take, because each attempt
// occupies a thread.
func (l *Libvirt) connect() (lost <-chan string, err error) {
	made := make(chan opened, 1)
	go func() { made <- l.open() }()
	late := time.NewTimer(connectTime)
	defer late.Stop()
	for {
		select {
		case o := <-made:
			if o.err != nil {
				return nil, plain(o.err)
			}
			l.lock.Lock()
			l.conn, l.closeConn, l.host, l.last = o.conn, o.close, o.host, nil
			close(l.ready)
			l.lock.Unlock()
			return o.lost, nil
		case <-late.C:
			l.setLast(fmt.Errorf("%w: connecting takes more than %v", ErrUnavailable, connectTime))
		case <-l.ctx.Done():
			go func() { // close the connection if it comes after all
				if o := <-made; o.err == nil {
					o.close()
				}
			}()
			return nil, l.ctx.Err()
		}
	}
}

// opened is the result of an attempt to connect.
type opened struct {
	conn  *libvirt.Connect
	close func() // may hang with the daemon
	host  *hostFacts
	lost  <-chan string
	err   error
}

// open connects, registers for events and reads the host's facts. It hangs if the daemon hangs.
func (l *Libvirt) open() opened {
	conn, err := libvirt.NewConnect(l.uri)
	if err != nil {
		return opened{err: err}
	}
	lost := make(chan string, 1)
	o := opened{conn: conn, lost: lost, close: func() { _, _ = conn.Close() }}
	fail := func(what string, err error) opened {
		o.close()
		return opened{err: fmt.Errorf("%s: %w", what, err)}
	}
	if err := conn.SetKeepAlive(keepaliveInterval, keepaliveCount); err != nil {
		return fail("set keepalive", err)
	}
	if err := conn.RegisterCloseCallback(func(_ *libvirt.Connect, reason libvirt.ConnectCloseReason) {
		select {
		case lost <- closeReason(reason):
		default:
		}
	}); err != nil {
		return fail("watch the connection", err)
	}
	unregister, err := l.registerEvents(conn)
	o.close = func() {
		unregister()
		_ = conn.UnregisterCloseCallback()
		_, _ = conn.Close()
	}
	if err != nil {
		return fail("ask for events", err)
	}
	if o.host, err = readHostFacts(conn, l.options.Acceleration); err != nil {
		return fail("look at what the host can run", err)
	}
	if o.host.support, err = readSupport(conn, o.host); err != nil {
		l.log.Warn("which CPUs guests can have here is not known; they get the host's own", "error", err)
	}
	return o
}

func (l *Libvirt) disconnect() {
	l.lock.Lock()
	closeConn := l.closeConn
	l.conn, l.closeConn, l.ready, l.last = nil, nil, make(chan struct{}), ErrUnavailable
	l.lock.Unlock()
	go closeConn()
}

func (l *Libvirt) setLast(err error) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.last == nil || l.last.Error() != err.Error() {
		l.log.Warn("libvirt cannot be reached; trying on", "uri", l.uri, "error", err)
	}
	l.last = err
}

// take returns the connection with a new reference, which the caller closes. It waits a little if there is no
// connection, because the daemon may be restarting.
func (l *Libvirt) take(ctx context.Context) (*libvirt.Connect, error) {
	for {
		l.lock.Lock()
		conn, ready := l.conn, l.ready
		if conn != nil {
			err := conn.Ref()
			l.lock.Unlock()
			return conn, err
		}
		l.lock.Unlock()
		select {
		case <-ready:
		case <-l.ctx.Done():
			return nil, fmt.Errorf("%w: the connection was closed", ErrUnavailable)
		case <-ctx.Done():
			l.lock.Lock()
			defer l.lock.Unlock()
			return nil, unavailable(ctx.Err(), l.last)
		}
	}
}

// unavailable returns the error for a missing connection. It prefers the failure of the last attempt, which says more
// than the end of ctx.
func unavailable(ended, last error) error {
	switch {
	case last == nil || !errors.Is(ended, context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrUnavailable, ended)
	case errors.Is(last, ErrUnavailable):
		return last
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, last)
}

// call runs fn with the connection. It returns when fn has returned, or with ErrUnavailable when ctx ends or limit has
// passed. In the latter case fn continues in the background, and the daemon may still carry out its request. fn must be
// quick: see callAlone.
func (l *Libvirt) call(ctx context.Context, limit time.Duration, fn func(*libvirt.Connect) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	conn, err := l.take(ctx)
	if err != nil {
		return err
	}
	return await(ctx, func() error {
		defer func() { _, _ = conn.Close() }()
		return fn(conn)
	})
}

// callAlone is call for a long request, on a separate connection. limit 0: only ctx limits it. The daemon handles at
// most 5 requests of one connection at once. Before libvirt 10.0, a long call may also delay another thread's call on
// the same connection until the next keepalive.
func (l *Libvirt) callAlone(ctx context.Context, limit time.Duration, fn func(*libvirt.Connect) error) error {
	if limit > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	shared, err := l.take(ctx) // wait until the daemon answers
	if err != nil {
		return err
	}
	_, _ = shared.Close()
	return await(ctx, func() error {
		conn, err := libvirt.NewConnect(l.uri)
		if err != nil {
			return err
		}
		defer func() { _, _ = conn.Close() }()
		if err := conn.SetKeepAlive(keepaliveInterval, keepaliveCount); err != nil {
			return err
		}
		return fn(conn)
	})
}

// create is callAlone for a call that creates a domain. Creating reports the call until it ends.
func (l *Libvirt) create(ctx context.Context, uid string, limit time.Duration, fn func(*libvirt.Connect) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return l.callAlone(ctx, 0, func(conn *libvirt.Connect) error {
		l.countCreating(uid, 1)
		defer l.countCreating(uid, -1)
		// The caller may have given up while the connection was made. The call is counted before this check, so that no
		// uncounted call creates a domain.
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fn(conn)
	})
}

func (l *Libvirt) countCreating(uid string, n int) {
	l.lock.Lock()
	defer l.lock.Unlock()
	if l.creating[uid] += n; l.creating[uid] == 0 {
		delete(l.creating, uid)
	}
}

// Creating reports whether a call that creates the domain of this uid is under way, even if its caller has given up.
func (l *Libvirt) Creating(uid string) bool {
	l.lock.Lock()
	defer l.lock.Unlock()
	return l.creating[uid] > 0
}

// await returns fn's result, or ErrUnavailable if ctx ends first.
func await(ctx context.Context, fn func() error) error {
	ended := make(chan error, 1)
	go func() { ended <- plain(classify(fn())) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
}

// withDomain runs fn with the domain of this uid, as call does. It fails with ErrNotFound if there is none.
func (l *Libvirt) withDomain(ctx context.Context, uid string, fn func(*libvirt.Domain) error) error {
	ctx, cancel := context.WithTimeout(ctx, quickTime)
	defer cancel()
	return l.call(ctx, quickTime, onDomain(ctx, uid, fn))
}

// onDomain looks a domain up for fn. If the daemon hung meanwhile and ctx has ended, it does not run fn: the guest may have ended and
// been started again, and fn would pause, resume or end the new domain.
func onDomain(ctx context.Context, uid string, fn func(*libvirt.Domain) error) func(*libvirt.Connect) error {
	return func(conn *libvirt.Connect) error {
		domain, err := conn.LookupDomainByUUIDString(uid)
		if err != nil {
			return err
		}
		defer func() { _ = domain.Free() }()
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fn(domain)
	}
}

// classify adds the sentinel that callers branch on to an error of libvirt's.
func classify(err error) error {
	var e libvirt.Error
	if !errors.As(err, &e) || errors.Is(err, ErrNotFound) || errors.Is(err, ErrUnavailable) {
		return err
	}
	switch {
	case e.Code == libvirt.ERR_NO_DOMAIN:
		return fmt.Errorf("%w: %w", ErrNotFound, err)
	case e.Domain == libvirt.FROM_RPC, e.Code == libvirt.ERR_INVALID_CONN, e.Code == libvirt.ERR_NO_CONNECT:
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	case isOwnerConflict(err):
		// A file that guests share belongs to the user of guests that were started earlier.
		return fmt.Errorf("%w; guests run here that were started before QEMU's user or security driver was changed: "+
			"move them away by `watari host drain`, then take guests again by `watari host drain --undo`", err)
	}
	return err
}

func closeReason(reason libvirt.ConnectCloseReason) string {
	switch reason {
	case libvirt.CONNECT_CLOSE_REASON_ERROR:
		return "error"
	case libvirt.CONNECT_CLOSE_REASON_EOF:
		return "the daemon ended"
	case libvirt.CONNECT_CLOSE_REASON_KEEPALIVE:
		return "the daemon hangs"
	case libvirt.CONNECT_CLOSE_REASON_CLIENT:
		return "closed here"
	}
	return "unknown"
}

// sleep waits; false: ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
