package bare

// client.go - calls to a guest's agent from the process that started the guest and from other processes.

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httputil"
	"os"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/net/http2"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"
)

// Client calls a guest's agent.
type Client struct {
	Guests    watariv1connect.GuestServiceClient
	Processes watariv1connect.ProcessServiceClient
}

func newClient(http connect.HTTPClient) *Client {
	return &Client{
		Guests:    watariv1connect.NewGuestServiceClient(http, "http://guest"),
		Processes: watariv1connect.NewProcessServiceClient(http, "http://guest", connect.WithGRPC()),
	}
}

// Serve forwards calls from a Unix socket to the guest's agent: a guest has one session with its host, which all
// processes share. Serving ends with the guest's process.
func (g *Guest) Serve(socket string) error {
	listener, err := net.Listen("unix", socket)
	if err != nil {
		return err
	}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(p *httputil.ProxyRequest) { p.Out.URL.Scheme, p.Out.URL.Host = "http", "guest" },
		Transport:     g.Link,
		FlushInterval: -1,
		ErrorLog:      log.New(io.Discard, "", 0), // logs only about callers that are gone; other callers get the error
	}
	server := &http.Server{Handler: proxy, Protocols: new(http.Protocols)}
	server.Protocols.SetUnencryptedHTTP2(true)
	go server.Serve(listener)
	return nil
}

// Connect returns a client that calls through the socket of Serve.
func Connect(socket string) *Client {
	return newClient(&http.Client{Transport: &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", socket)
		},
	}})
}

// holdSeconds is how long, in seconds, a process runs on after its caller is gone.
const holdSeconds = 5

// Run runs a command line with sh as a user ("": root), passes on its output, and waits until it ends.
func (c *Client) Run(ctx context.Context, user, script string, stdout, stderr io.Writer) (*v1.Process, error) {
	id := fmt.Sprintf("t%d", time.Now().UnixNano())
	_, err := c.Processes.StartProcess(ctx, connect.NewRequest(&v1.StartProcessRequest{
		Id: id, Command: []string{"/bin/sh", "-c", script}, User: user, HoldSeconds: holdSeconds,
	}))
	if err != nil {
		return nil, err
	}
	stream := c.Processes.Attach(ctx)
	defer stream.CloseResponse()
	if err := stream.Send(&v1.AttachRequest{Id: id}); err != nil {
		return nil, err
	}
	for {
		m, err := stream.Receive()
		if err != nil {
			return nil, err
		}
		stdout.Write(m.GetStdout())
		stderr.Write(m.GetStderr())
		if ended := m.GetEnded(); ended != nil {
			stream.CloseRequest()
			_, err := c.Processes.ForgetProcess(ctx, connect.NewRequest(&v1.ForgetProcessRequest{Id: id}))
			return ended, err
		}
	}
}

// Put copies a file to an absolute path in the guest, with its mode.
func (c *Client) Put(ctx context.Context, source, path string) error {
	file, err := os.Open(source)
	if err != nil {
		return err
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return err
	}
	stream := c.Guests.PutFile(ctx)
	message := &v1.PutFileRequest{Path: path, Mode: uint32(info.Mode().Perm())}
	buffer := make([]byte, 64<<10)
	for !message.GetLast() {
		n, err := io.ReadFull(file, buffer)
		message.Data = buffer[:n]
		message.Last = errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !message.GetLast() {
			return err
		}
		if stream.Send(message) != nil {
			break // the response has the reason
		}
		message = &v1.PutFileRequest{Last: message.GetLast()}
	}
	response, err := stream.CloseAndReceive()
	if err == nil && response.Msg.GetSize() != uint64(info.Size()) {
		return fmt.Errorf("%d of %d bytes of %s arrived", response.Msg.GetSize(), info.Size(), source)
	}
	return err
}
