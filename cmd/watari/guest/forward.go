package guest

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/client"
	"watari/guest/forward"
	"watari/guest/initd"
)

// endGrace is how long the process in the guest may take to end after Ctrl-C.
const endGrace = 2 * time.Second

type forwardFlags struct {
	address string
	stdio   bool
}

func newForward(env *cli.Env) *cobra.Command {
	var f forwardFlags
	command := &cobra.Command{
		Use:   "forward GUEST PORT|LOCAL:PORT...",
		Short: "Carry TCP ports of this machine to ports in a guest",
		Long: "Carry TCP connections to ports of this machine to ports in a guest, until Ctrl-C: for a notebook that runs in a guest, or a debugger. " +
			"Connections go on while the guest moves to another host. Port 0 as LOCAL takes a free port.\n\n" +
			"Only programs on this machine can connect, unless --address says otherwise. With --stdio, standard input and output are one connection " +
			"to one port; ssh and scp use that to reach an SSH server in a guest.",
		Example: "  watari guest forward md-0 8888                  # then open http://localhost:8888\n" +
			"  watari guest forward md-0 9000:8888 6006\n" +
			"  ssh -o ProxyCommand='watari guest forward --stdio %h 22' watari@md-0",
		Args:              cli.ArgsAtLeast("GUEST", "PORT"),
		ValidArgsFunction: env.Complete(cli.Guests),
		RunE: env.Run(func(ctx context.Context, args []string) error {
			return carry(ctx, env, args[0], args[1:], f)
		}),
	}
	command.Flags().StringVar(&f.address, "address", "127.0.0.1", "address of this machine to listen on")
	command.Flags().BoolVar(&f.stdio, "stdio", false, "carry standard input and output instead")
	return command
}

// ports are a port of this machine and one in the guest.
type ports struct{ local, guest uint16 }

func parsePorts(text string) (p ports, err error) {
	local, inGuest, two := strings.Cut(text, ":")
	if !two {
		inGuest = local
	}
	number := func(port string, least uint64) uint16 {
		n, failed := strconv.ParseUint(port, 10, 16)
		if failed != nil || n < least {
			err = cli.Usagef("%q: give a port, as 8888, or two, as 9000:8888", text)
		}
		return uint16(n)
	}
	return ports{number(local, 0), number(inGuest, 1)}, err
}

// carry forwards connections until the user ends the command.
func carry(ctx context.Context, env *cli.Env, guest string, args []string, f forwardFlags) error {
	if err := cli.CheckName("guest", guest); err != nil {
		return err
	}
	var wanted []ports
	for _, arg := range args {
		p, err := parsePorts(arg)
		if err != nil {
			return err
		}
		wanted = append(wanted, p)
	}
	if f.stdio && len(wanted) > 1 {
		return cli.Usagef("--stdio carries one connection, to one port")
	}
	w := &tunnel{env: env, guest: guest}
	if !f.stdio {
		for _, p := range wanted {
			listener, err := net.Listen("tcp", net.JoinHostPort(f.address, fmt.Sprint(p.local)))
			if err != nil {
				return fmt.Errorf("listen on port %d: %w", p.local, err)
			}
			defer listener.Close()
			w.listeners = append(w.listeners, listening{listener, p.guest})
		}
		if ip := net.ParseIP(f.address); ip == nil || !ip.IsLoopback() {
			env.Notef("whoever reaches %s can connect to the guest", f.address)
		}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if err := w.open(ctx, cancel); err != nil {
		return err
	}
	defer w.close()
	if f.stdio {
		conn, err := w.client.Open(ctx, wanted[0].guest)
		if err != nil {
			return w.explain(ctx, fmt.Errorf("connect to port %d of guest %s: %w", wanted[0].guest, guest, err))
		}
		return w.standard(ctx, conn)
	}
	for _, l := range w.listeners {
		env.Notef("%s -> %s:%d", l.Addr(), guest, l.port)
		go w.accept(ctx, l)
	}
	select {
	case <-ctx.Done():
	case <-w.client.Ended():
	}
	return w.explain(ctx, fmt.Errorf("the connection to guest %s has ended", guest))
}

type listening struct {
	net.Listener
	port uint16 // in the guest
}

// tunnel is the connection into a guest: a process there, whose input and output carry many connections on one stream.
type tunnel struct {
	env       *cli.Env
	guest     string
	listeners []listening
	client    *forward.Client
	said      lockedBuffer  // the process's standard error
	ended     chan struct{} // closed when the process has ended
	err       error         // valid after ended is closed
	input     *io.PipeWriter
}

// stream is the process's output and input.
type stream struct {
	io.Reader
	io.WriteCloser
}

func (w *tunnel) open(ctx context.Context, cancel context.CancelCauseFunc) (err error) {
	c, err := w.env.Client()
	if err != nil {
		return err
	}
	in, input := io.Pipe()
	output, out := io.Pipe()
	inside := *w.env
	inside.Out, inside.Err = out, &w.said
	s := &session{env: &inside, guest: w.guest, leave: func() {}, input: readInput(ctx, in), start: &v1.StartProcessRequest{
		Id: "forward-" + rand.Text(), Command: []string{initd.Program, "forward"}, Stdin: true, HoldSeconds: holdSeconds, KeepBytes: forward.Kept}}
	w.input, w.ended = input, make(chan struct{})
	// After Ctrl-C, the process in the guest is told to end.
	process, stop := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer cancel(nil) // after w.ended is closed, which says that this was no Ctrl-C
		defer close(w.ended)
		defer stop()
		w.err = w.env.Patiently(process, c, "\n", func(alive func()) error { return s.attempt(process, c, alive) })
		if w.err == nil && s.ended.GetExitCode() != 0 {
			w.err = fmt.Errorf("%s", strings.TrimSpace(w.said.String()))
			if s.ended.GetExitCode() == 2 { // the guest does not know the command
				w.err = errors.New("its image was built by an earlier version of Watari; build it anew")
			}
		}
		out.CloseWithError(io.EOF)
		in.CloseWithError(io.ErrClosedPipe)
	}()
	context.AfterFunc(ctx, func() {
		input.Close()
		time.AfterFunc(endGrace, stop)
	})
	w.client, err = forward.NewClient(stream{output, input})
	return err
}

// close ends the process in the guest.
func (w *tunnel) close() {
	w.client.Close()
	w.input.Close()
	select {
	case <-w.ended:
	case <-time.After(endGrace):
	}
}

// inputPatience is how long, after the guest's side has ended, input may make no progress.
const inputPatience = 10 * time.Second

// standard joins standard input and output with a connection. When the guest's side ends, it closes standard output, so that ssh, for
// instance, ends. Then it goes on until the input ends, or makes no progress: a read of standard input may last for ever.
func (w *tunnel) standard(ctx context.Context, conn net.Conn) error {
	defer conn.Close()
	lost := fmt.Errorf("the connection to guest %s has ended", w.guest)
	var passed atomic.Int64
	input, output := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := io.Copy(counting{conn, &passed}, w.env.In)
		conn.Close() // only this direction
		input <- err
	}()
	go func() {
		_, err := io.Copy(w.env.Out, conn)
		if out, is := w.env.Out.(io.Closer); is {
			out.Close()
		}
		output <- err
	}()
	outputEnded := false
	idle := time.NewTicker(inputPatience)
	defer idle.Stop()
	for before := int64(-1); input != nil || !outputEnded; {
		select {
		case err := <-input:
			if input = nil; err != nil {
				return w.explain(ctx, fmt.Errorf("%w before it had all of the input: %w", lost, err))
			}
		case err := <-output:
			if outputEnded = true; err != nil {
				return w.explain(ctx, fmt.Errorf("%w: %w", lost, err))
			}
		case <-idle.C:
			now := passed.Load()
			if outputEnded && now == before {
				return w.explain(ctx, fmt.Errorf("%w, and the input has not", lost))
			}
			before = now
		case <-ctx.Done():
			return w.explain(ctx, lost)
		case <-w.client.Ended():
			return w.explain(ctx, lost)
		}
	}
	select {
	case <-w.client.Ended(): // and therefore the output
		return w.explain(ctx, lost)
	default:
		return nil
	}
}

// counting counts the bytes that are written.
type counting struct {
	io.Writer
	n *atomic.Int64
}

func (c counting) Write(b []byte) (int, error) {
	n, err := c.Writer.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// explain returns why the tunnel has ended: the process's reason, if the process ended first.
func (w *tunnel) explain(ctx context.Context, err error) error {
	select {
	case <-w.ended:
		if w.err != nil {
			return fmt.Errorf("reach into guest %s: %w", w.guest, client.Explain(w.err))
		}
	default:
		if ctx.Err() != nil {
			return &cli.Exit{Code: cli.StatusInterrupted}
		}
	}
	return err
}

// accept accepts the connections of a port.
func (w *tunnel) accept(ctx context.Context, l listening) {
	places := make(chan struct{}, forward.MostConnections/len(w.listeners))
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		select {
		case places <- struct{}{}: // when all places are taken, a connection waits until another one has ended
		case <-ctx.Done():
			return
		}
		go func() {
			defer func() { <-places }()
			far, err := w.client.Open(ctx, l.port)
			if err != nil {
				if ctx.Err() == nil {
					w.env.Notef("port %d of guest %s: %v", l.port, w.guest, err)
				}
				conn.Close()
				return
			}
			forward.Join(far, conn)
		}()
	}
}

// lockedBuffer is a buffer for two goroutines.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
