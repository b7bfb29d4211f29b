package monitor

// systembus.go - asks systemd-logind over D-Bus.

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/coreos/go-systemd/v22/login1"
	"github.com/godbus/dbus/v5"
)

// systemBus is a connection to logind over the system bus.
type systemBus struct {
	conn *login1.Conn
	new  chan struct{}
}

// openSystemBus connects to logind. If the bus does not answer, it returns only when the bus ends.
func openSystemBus() (bus, error) {
	conn, err := login1.New()
	if err != nil {
		return nil, fmt.Errorf("connect to the system bus: %w", err)
	}
	b := &systemBus{conn, make(chan struct{}, 1)}
	signals := conn.Subscribe("SessionNew")
	go func() {
		for range signals { // until the connection ends
			select {
			case b.new <- struct{}{}:
			default:
			}
		}
	}()
	return b, nil
}

func (b *systemBus) begun() <-chan struct{} { return b.new }

func (b *systemBus) close() { b.conn.Close() }

// unknownObject is the name of the error that a call to an object gets that does not exist.
const unknownObject = "org.freedesktop.DBus.Error.UnknownObject"

func (b *systemBus) sessions(ctx context.Context) (list []session, err error) {
	all, err := b.conn.ListSessionsContext(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the login sessions: %w", err)
	}
	for _, one := range all {
		properties, err := b.conn.GetSessionPropertiesContext(ctx, one.Path)
		if refusal := (dbus.Error{}); errors.As(err, &refusal) && refusal.Name == unknownObject {
			continue // the session has ended
		}
		if err != nil {
			return nil, fmt.Errorf("read login session %s: %w", one.ID, err)
		}
		if s, is := personal(one, properties); is {
			list = append(list, s)
		}
	}
	return list, nil
}

// Classes and types of sessions (sd_session_get_class(3), sd_session_get_type(3)). Since systemd 256, root's logins at a console
// have a class of their own. Other classes belong to login screens, cron jobs and the like.
var (
	peoplesClasses = []string{"user", "user-early", "user-light"}
	graphicalTypes = []string{"x11", "wayland", "mir"}
)

// personal returns a session as its properties describe it; false: it is not a person's, or only its processes remain.
func personal(one login1.Session, properties map[string]dbus.Variant) (session, bool) {
	text := func(name string) string {
		value, _ := properties[name].Value().(string)
		return value
	}
	instant := func(name string) (t time.Time) {
		if microseconds, _ := properties[name].Value().(uint64); microseconds != 0 {
			t = time.UnixMicro(int64(microseconds))
		}
		return t
	}
	if !slices.Contains(peoplesClasses, text("Class")) || text("State") == "closing" {
		return session{}, false
	}
	s := session{id: one.ID, user: one.User, uid: one.UID, scope: text("Scope"), began: instant("Timestamp"), seated: one.Seat != ""}
	if slices.Contains(graphicalTypes, text("Type")) {
		s.graphical = true
		s.idle, _ = properties["IdleHint"].Value().(bool)
		s.idleSince = instant("IdleSinceHint")
	} else {
		s.tty = text("TTY")
	}
	return s, true
}
