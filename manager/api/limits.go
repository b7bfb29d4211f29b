package api

// limits.go - bounds what the requests of one caller use before anybody asks whether they are permitted: their bodies are read, and
// decompressed, first.

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
)

const (
	// maxMessage bounds a request of one message, and maxPart a message of a stream, bytes.
	maxMessage = 8 << 20
	maxPart    = 4 << 20 // a command may be that long
	// mostRequests is how many requests of one caller may be under way. It is more than a user's commands in guests can be.
	mostRequests = 800
)

// readLimits bounds the messages that a service reads.
func readLimits() connect.HandlerOption {
	return connect.WithConditionalHandlerOptions(func(spec connect.Spec) []connect.HandlerOption {
		if spec.StreamType == connect.StreamTypeUnary {
			return []connect.HandlerOption{connect.WithReadMaxBytes(maxMessage)}
		}
		return []connect.HandlerOption{connect.WithReadMaxBytes(maxPart)}
	})
}

// strangersTime is how long the request body of a caller without a valid certificate may take to arrive, and requestTime that of
// another caller, unless it is a stream or an upload.
var (
	strangersTime = 10 * time.Second
	requestTime   = time.Minute
)

// limitStrangers bounds the request body of a caller without a valid certificate.
func limitStrangers(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if callerOf(r.Context()).kind == "" {
			for _, header := range []string{"Content-Encoding", "Connect-Content-Encoding", "Grpc-Encoding"} {
				if r.Header.Get(header) != "" {
					http.Error(w, "only callers with a certificate may send compressed requests", http.StatusUnsupportedMediaType)
					return
				}
			}
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(strangersTime)) // only a test's writer has none
			r.Body = http.MaxBytesReader(w, r.Body, maxJoinBytes)
		}
		next.ServeHTTP(w, r)
	})
}

// tally counts what each caller has under way.
type tally struct {
	mu sync.Mutex
	of map[string]int // by caller
}

// enter counts one more of a caller. It returns false if there are most already.
func (t *tally) enter(caller string, most int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[caller] >= most {
		return false
	}
	if t.of == nil {
		t.of = map[string]int{}
	}
	t.of[caller]++
	return true
}

// leave undoes enter.
func (t *tally) leave(caller string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[caller]--; t.of[caller] == 0 {
		delete(t.of, caller)
	}
}

// callersLimit bounds the requests under way of each caller with a certificate.
type callersLimit struct{ requests tally }

// limit bounds the number of a caller's requests, and the time that their bodies take.
func (l *callersLimit) limit(next http.Handler) http.Handler {
	refuse := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := callerOf(r.Context())
		if c.kind == "" {
			next.ServeHTTP(w, r)
			return
		}
		caller := string(c.kind) + " " + c.uid
		if !l.requests.enter(caller, mostRequests) {
			err := fail(connect.CodeResourceExhausted, "%s %s has %d requests under way; wait for some, or end them", c.kind, c.name, mostRequests)
			if refuse.IsSupported(r) {
				_ = refuse.Write(w, r, err) // the caller is gone
			} else {
				http.Error(w, err.Error(), http.StatusTooManyRequests)
			}
			return
		}
		defer l.requests.leave(caller)
		if r.Method == http.MethodPost && !isStream(r) {
			control := http.NewResponseController(w)
			if control.SetReadDeadline(time.Now().Add(requestTime)) == nil { // only a test's writer has none
				r.Body = &timedBody{r.Body, control}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// isStream reports whether a request may be a stream, which lasts as long as its caller likes.
func isStream(r *http.Request) bool {
	kind := r.Header.Get("Content-Type")
	return strings.HasPrefix(kind, "application/connect+") || strings.HasPrefix(kind, "application/grpc")
}

// timedBody lifts the deadline when the body has arrived: the answer may take longer.
type timedBody struct {
	io.ReadCloser
	control *http.ResponseController
}

func (b *timedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err == io.EOF {
		_ = b.control.SetReadDeadline(time.Time{})
	}
	return n, err
}
