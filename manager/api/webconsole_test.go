package api

import (
	"testing"
	"time"

	"watari/ca"
)

func TestLogins(t *testing.T) {
	now := time.Unix(1_000_000, 0)
	l := &logins{now: func() time.Time { return now }}
	ann, bob := ca.Identity{Kind: ca.KindUser, Name: "ann", UID: "1"}, ca.Identity{Kind: ca.KindUser, Name: "bob", UID: "2"}
	link, _ := l.add(ann, true, time.Minute)
	if _, good := l.take(link, false); good {
		t.Error("a link is a session")
	}
	if k, good := l.take(link, true); !good || k.user != ann {
		t.Errorf("the link is good for %+v, %v", k, good)
	}
	if _, good := l.take(link, true); good {
		t.Error("the link is good twice")
	}
	session, _ := l.add(ann, false, time.Hour)
	other, _ := l.add(bob, false, time.Hour)
	if _, good := l.take(session, true); good {
		t.Error("a session is a link")
	}
	for range 2 { // a session can be used repeatedly
		if _, good := l.take(session, false); !good {
			t.Error("the session is over")
		}
	}
	late, _ := l.add(ann, true, time.Minute)
	now = now.Add(time.Minute)
	if _, good := l.take(late, true); good {
		t.Error("a link is good after its time")
	}
	for range 2 * mostLogins {
		now = now.Add(time.Second)
		l.add(ann, false, time.Hour)
	}
	if _, good := l.take(session, false); good || len(l.kept) > mostLogins+1 {
		t.Errorf("%d logins are kept, the first among them: %v", len(l.kept), good)
	}
	if _, good := l.take(other, false); !good {
		t.Error("another user's session is gone")
	}
	l.remove(other)
	if _, good := l.take(other, false); good {
		t.Error("a session is good after the log-out")
	}
}
