package link

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"golang.org/x/net/http2"
)

// Client speaks HTTP/2 to a guest agent and opens a new session whenever the last one has ended. A request
// that was under way when a session ended fails; whoever sent it may send it again. It is an
// http.RoundTripper and, by Do, a connect.HTTPClient. Requests go to http://guest/.
type Client struct {
	transport *http2.Transport
	patience  time.Duration // for a session to open

	mu      sync.Mutex
	session net.Conn // the newest
}

// NewClient makes a client; dial opens a session, with DialUnix for instance. It is called when a request
// needs a session and there is none.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) *Client {
	c := &Client{patience: 10 * time.Second}
	c.transport = &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) {
			// All requests wait for this one's session, whatever their own deadlines.
			ctx, cancel := context.WithTimeout(ctx, c.patience)
			defer cancel()
			session, err := dial(ctx)
			if err == nil {
				c.mu.Lock()
				c.session = session
				c.mu.Unlock()
			}
			return session, err
		},
		// A second session would end the first.
		StrictMaxConcurrentStreams: true,
		MaxReadFrameSize:           64 << 10,
		DisableCompression:         true,
	}
	return c
}

// RoundTrip sends one request; its host is of no matter.
func (c *Client) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "http" || request.URL.Host != "guest" {
		request = request.Clone(request.Context())
		request.URL.Scheme, request.URL.Host = "http", "guest" // one key in the transport's pool: one session
	}
	return EndingStreams{c.transport}.RoundTrip(request)
}

// EndingStreams is an HTTP/2 transport whose streams end with their connection. The transport waits for a read of a
// request's body that is under way before it tells of a connection's end, and httputil.ReverseProxy gives it bodies
// that cannot be closed: streams in both directions would hang for as long as their caller sends nothing. So such a
// body is read by a goroutine of its own. A body of known length is not: nobody has to be waited for.
type EndingStreams struct{ http.RoundTripper }

// RoundTrip sends one request.
func (t EndingStreams) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.Body == nil || request.Body == http.NoBody || request.ContentLength > 0 {
		return t.RoundTripper.RoundTrip(request)
	}
	r, w := io.Pipe()
	body := request.Body
	go func() {
		_, err := io.Copy(w, body)
		w.CloseWithError(err) // nil is the end
	}()
	request = request.Clone(request.Context())
	request.Body = &bodyThatEnds{r, body}
	answer, err := t.RoundTripper.RoundTrip(request)
	if err != nil {
		request.Body.Close() // the transport does not always, and the goroutine is to end
	}
	return answer, err
}

type bodyThatEnds struct {
	*io.PipeReader
	from io.Closer
}

func (b *bodyThatEnds) Close() error { return errors.Join(b.PipeReader.Close(), b.from.Close()) }

// Do is RoundTrip.
func (c *Client) Do(request *http.Request) (*http.Response, error) { return c.RoundTrip(request) }

// Close ends the session; requests under way fail. A later request opens a new one.
func (c *Client) Close() error {
	c.transport.CloseIdleConnections()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil {
		return nil
	}
	return c.session.Close()
}
