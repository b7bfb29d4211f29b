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

// Client speaks HTTP/2 to a guest agent. It opens a new session when a request needs one and there is none. If a
// session ends, its requests fail; the caller may repeat them. Client is an http.RoundTripper and, by Do, a
// connect.HTTPClient. Requests go to http://guest/.
type Client struct {
	transport   *http2.Transport
	dialTimeout time.Duration // for opening a session

	mu      sync.Mutex
	session net.Conn // the latest
}

// NewClient makes a client. It calls dial, for instance DialUnix, when a request needs a session and there is none.
func NewClient(dial func(ctx context.Context) (net.Conn, error)) *Client {
	c := &Client{dialTimeout: 10 * time.Second}
	c.transport = &http2.Transport{
		AllowHTTP: true,
		DialTLSContext: func(ctx context.Context, _, _ string, _ *tls.Config) (net.Conn, error) {
			// Other requests wait for this session too, so its time limit must not depend on this request alone.
			ctx, cancel := context.WithTimeout(ctx, c.dialTimeout)
			defer cancel()
			session, err := dial(ctx)
			if err == nil {
				c.mu.Lock()
				c.session = session
				c.mu.Unlock()
			}
			return session, err
		},
		// Never open a second session: it would end the first.
		StrictMaxConcurrentStreams: true,
		MaxReadFrameSize:           64 << 10,
		DisableCompression:         true,
	}
	return c
}

// RoundTrip sends one request. The host in the request's URL is ignored.
func (c *Client) RoundTrip(request *http.Request) (*http.Response, error) {
	if request.URL.Scheme != "http" || request.URL.Host != "guest" {
		request = request.Clone(request.Context())
		request.URL.Scheme, request.URL.Host = "http", "guest" // the same key in the transport's pool, so the same session
	}
	return EndingStreams{c.transport}.RoundTrip(request)
}

// EndingStreams is an HTTP/2 transport whose streams end with their connection. When a connection ends, the standard
// transport first waits for a pending read of the request's body, and httputil.ReverseProxy passes bodies that cannot
// be closed. So a bidirectional stream would hang until its caller sends something. EndingStreams reads such bodies in
// a separate goroutine. It does not do so for bodies of known length, which end by themselves.
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
		w.CloseWithError(err) // nil means EOF
	}()
	request = request.Clone(request.Context())
	request.Body = &closableBody{r, body}
	answer, err := t.RoundTripper.RoundTrip(request)
	if err != nil {
		request.Body.Close() // the transport does not always close it, and the goroutine must end
	}
	return answer, err
}

type closableBody struct {
	*io.PipeReader
	from io.Closer
}

func (b *closableBody) Close() error { return errors.Join(b.PipeReader.Close(), b.from.Close()) }

// Do is the same as RoundTrip.
func (c *Client) Do(request *http.Request) (*http.Response, error) { return c.RoundTrip(request) }

// Close ends the session. Its requests fail. A later request opens a new session.
func (c *Client) Close() error {
	c.transport.CloseIdleConnections()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.session == nil {
		return nil
	}
	return c.session.Close()
}
