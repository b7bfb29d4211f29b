package api

// proxy.go - reaches a guest through the agent of its present host.

import (
	"context"
	"errors"
	"fmt"
	"time"

	"watari/core"
	"watari/hostlink"
	"watari/manager/view"

	v1 "watari/api/watariv1"
	"watari/api/watariv1/watariv1connect"

	"connectrpc.com/connect"
)

// guestByUID finds a guest and checks its uid, unless uid is empty.
func (s *Server) guestByUID(name, uid string) (*v1.Guest, error) {
	g := s.Store.Snapshot().Guests[name]
	if g == nil || uid != "" && g.Meta.Uid != uid {
		return nil, fail(connect.CodeNotFound, "guest %s no longer exists", name)
	}
	return g, nil
}

// passingPatience is how long a call waits for a guest that is briefly unreachable: it moves, or its guest agent reconnects.
const passingPatience = 10 * time.Second

// readyGuest finds the caller's guest and checks that its guest agent answers.
func (s *Server) readyGuest(ctx context.Context, name string) (*v1.Guest, error) {
	ctx, cancel := context.WithTimeout(ctx, passingPatience)
	defer cancel()
	stored, observed := s.Store.Subscribe(ctx), s.Sessions.Subscribe(ctx)
	for {
		snap := s.Store.Snapshot()
		g, err := find(callerOf(ctx), "guest", name, snap.Guests)
		if err != nil {
			return nil, err
		}
		seen := view.Guest(snap, s.Sessions, name)
		if seen.Ready {
			return g, nil
		}
		if !passing(seen.State) || ctx.Err() != nil {
			return nil, fail(connect.CodeFailedPrecondition, "guest %s is not ready: %s", name, describe(seen))
		}
		select {
		case <-stored:
		case <-observed:
		case <-ctx.Done():
		}
	}
}

// passing reports whether a guest that is not ready may soon be. After a move, a guest is starting until its guest agent
// answers.
func passing(s v1.GuestState) bool {
	return s == v1.GuestState_GUEST_STATE_MIGRATING || s == v1.GuestState_GUEST_STATE_UNKNOWN ||
		s == v1.GuestState_GUEST_STATE_STARTING
}

// describe returns a guest's state and its reason.
func describe(g *v1.Guest) string {
	text := core.StateName(g.State.String())
	if g.Message != "" {
		text += ", " + g.Message
	}
	return text
}

// reach returns an HTTP client and base URL for a guest's services.
func (s *Server) reach(g *v1.Guest) (connect.HTTPClient, string, error) {
	if g.Host == "" {
		return nil, "", fail(connect.CodeUnavailable, "guest %s runs nowhere", g.Meta.Name)
	}
	client, err := s.Sessions.UsersClient(g.Host)
	if err != nil {
		return nil, "", connect.NewError(connect.CodeUnavailable, fmt.Errorf("reach guest %s: %w", g.Meta.Name, err))
	}
	return client, hostlink.GuestURL(g.Meta.Uid), nil
}

func (s *Server) processes(g *v1.Guest) (watariv1connect.ProcessServiceClient, error) {
	client, url, err := s.reach(g)
	if err != nil {
		return nil, err
	}
	return watariv1connect.NewProcessServiceClient(client, url, hostlink.GuestLimit()), nil
}

func (s *Server) files(g *v1.Guest) (watariv1connect.GuestServiceClient, error) {
	client, url, err := s.reach(g)
	if err != nil {
		return nil, err
	}
	return watariv1connect.NewGuestServiceClient(client, url, hostlink.GuestLimit()), nil
}

// final is an error that is returned as it is, without another attempt.
type final struct{ error }

func (f final) Unwrap() error { return f.error }

// broken reports whether a call failed because of the connection, so that it may be repeated, and not because the guest
// answered with an error. An agent that ends cancels the calls that it serves.
func broken(err error) bool {
	var f final
	if errors.As(err, &f) {
		return false
	}
	code := connect.CodeOf(err)
	return !connect.IsWireError(err) || code == connect.CodeUnavailable || code == connect.CodeCanceled
}

// wrapError adds what was attempted to an error of a guest or agent. It keeps the code; a failed connection gets code
// unavailable.
func wrapError(err error, format string, a ...any) error {
	var f final
	if errors.As(err, &f) {
		return f.error
	}
	code, text := connect.CodeUnavailable, err.Error()
	var ce *connect.Error
	if errors.As(err, &ce) {
		text = ce.Message()
	}
	if !broken(err) {
		code = connect.CodeOf(err)
	}
	return connect.NewError(code, fmt.Errorf("%s: %s", fmt.Sprintf(format, a...), text))
}

// guestPatience is how long a stream to a guest waits until the guest can be reached again.
const guestPatience = 5 * time.Minute

// retry calls attempt with the present guest object. It repeats this while attempt fails because of the connection and the
// guest is still the same one and not stopped. attempt calls alive when it has reached the guest. The caller passes the
// error to wrapError.
func (s *Server) retry(ctx context.Context, name, uid string, attempt func(g *v1.Guest, alive func()) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stored, observed := s.Store.Subscribe(ctx), s.Sessions.Subscribe(ctx)
	since, pause := time.Now(), 50*time.Millisecond
	for {
		g, err := s.guestByUID(name, uid)
		if err != nil {
			return final{err}
		}
		if g.Stopped || g.Failure != "" {
			return final{fail(connect.CodeAborted, "guest %s was stopped", name)}
		}
		begun, reached := time.Now(), false
		err = attempt(g, func() { since, pause, reached = time.Now(), 50*time.Millisecond, true })
		if reached || time.Since(begun) > guestPatience {
			since = time.Now() // the connection stood until now, though nothing came
		}
		if err == nil || ctx.Err() != nil || !broken(err) {
			return err
		}
		if time.Since(since) > guestPatience {
			return wrapError(err, "reach guest %s for %v", name, guestPatience)
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-stored:
		case <-observed:
		case <-time.After(pause):
		}
		pause = min(2*pause, 2*time.Second)
		if err := s.mustLead(ctx); err != nil {
			return final{err}
		}
	}
}
