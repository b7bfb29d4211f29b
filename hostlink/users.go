package hostlink

// users.go - keeps users' calls from taking all calls that a connection carries.

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
)

// ForUsers returns a transport for users' calls over the same connection. It refuses a call while mostForUsers others have not ended.
func ForUsers(t *http.Transport) http.RoundTripper {
	return &usersTransport{transport: t, free: make(chan struct{}, mostForUsers)}
}

type usersTransport struct {
	transport *http.Transport
	free      chan struct{} // has one element for each call
}

func (u *usersTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	select {
	case u.free <- struct{}{}:
	default:
		if r.Body != nil {
			r.Body.Close()
		}
		return nil, fmt.Errorf("the host serves %d calls of users now; try again later", mostForUsers)
	}
	resp, err := u.transport.RoundTrip(r)
	if err != nil {
		<-u.free
		return nil, err
	}
	end := sync.OnceFunc(func() { <-u.free })
	stop := context.AfterFunc(r.Context(), end) // then the call has ended, whether its body is closed or not
	resp.Body = &usersBody{ReadCloser: resp.Body, end: func() { stop(); end() }}
	return resp, nil
}

// usersBody is the body of an answer. The call ends when it is closed.
type usersBody struct {
	io.ReadCloser
	end func()
}

func (b *usersBody) Close() error {
	defer b.end()
	return b.ReadCloser.Close()
}
