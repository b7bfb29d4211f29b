package api

// webconsole.go - access to the web console. A browser has no certificate. It exchanges a key, which `watari console` prints
// and which is valid once, for a cookie. The cookie stands for the user who made the key, with all rights of that user.

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"net/http"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/timestamppb"

	"watari/ca"
	"watari/manager/webconsole"

	v1 "watari/api/watariv1"
)

const (
	consolePath = "/console/"
	// browsersPath has the control service for browsers. A cookie counts only there, and a certificate does not.
	browsersPath = consolePath + "api/"
	// linkTime is how long a link is valid, and sessionTime how long a browser stays logged in.
	linkTime    = 5 * time.Minute
	sessionTime = 12 * time.Hour
	// mostLogins bounds the links and sessions of one user; the one that expires first is dropped.
	mostLogins = 100
	cookieName = "__Host-watari"
	// noLogin is the reason for refusing a browser that has neither a key nor a cookie nor a user's certificate.
	noLogin = "you are not logged in; `watari console` prints a link"
)

// logins are unused links, and sessions of browsers. They are only in memory, so a restarted manager has none.
type logins struct {
	mu   sync.Mutex
	now  func() time.Time // nil: time.Now
	kept map[[sha256.Size]byte]login
}

// login is what a secret stands for. Only the secret's hash is kept.
type login struct {
	user ca.Identity
	link bool // a link is valid once
	ends time.Time
}

func (l *logins) time() time.Time {
	if l.now != nil {
		return l.now()
	}
	return time.Now()
}

// add makes a secret.
func (l *logins) add(user ca.Identity, link bool, lasts time.Duration) (secret string, ends time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, own := l.time(), 0
	var first [sha256.Size]byte // the user's login that expires first
	for hash, k := range l.kept {
		switch {
		case !now.Before(k.ends):
			delete(l.kept, hash)
		case k.user.UID == user.UID:
			own++
			if o, is := l.kept[first]; !is || k.ends.Before(o.ends) {
				first = hash
			}
		}
	}
	if own >= mostLogins {
		delete(l.kept, first)
	}
	if l.kept == nil {
		l.kept = map[[sha256.Size]byte]login{}
	}
	secret, ends = rand.Text(), now.Add(lasts)
	l.kept[sha256.Sum256([]byte(secret))] = login{user, link, ends}
	return secret, ends
}

// take finds the login of a secret. A link can be taken only once.
func (l *logins) take(secret string, link bool) (login, bool) {
	hash := sha256.Sum256([]byte(secret))
	l.mu.Lock()
	defer l.mu.Unlock()
	k, is := l.kept[hash]
	if !is || k.link != link || !l.time().Before(k.ends) {
		return login{}, false
	}
	if link {
		delete(l.kept, hash)
	}
	return k, true
}

func (l *logins) remove(secret string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.kept, sha256.Sum256([]byte(secret)))
}

// CreateConsoleLink makes a key for one login. A browser's session cannot make one: it would have no end.
func (s *Server) CreateConsoleLink(ctx context.Context, _ *connect.Request[v1.CreateConsoleLinkRequest]) (*connect.Response[v1.CreateConsoleLinkResponse], error) {
	if callerOf(ctx).login != "" {
		return nil, fail(connect.CodePermissionDenied, "a browser cannot make a link; `watari console` does")
	}
	secret, ends := s.logins.add(callerOf(ctx).identity(), true, linkTime)
	return connect.NewResponse(&v1.CreateConsoleLinkResponse{Url: s.Store.Snapshot().Leader + consolePath + "#" + secret, Expires: timestamppb.New(ends)}), nil
}

// webConsole serves the web console, and control to browsers. Other sites' pages cannot use a browser's
// cookie: the browser sends it with none of their requests (SameSite), and requests from other sites are refused.
func (s *Server) webConsole(control http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /console/", http.StripPrefix("/console", webconsole.Handler()))
	mux.HandleFunc("POST /console/session", s.logIn)
	mux.HandleFunc("DELETE /console/session", s.logOut)
	mux.Handle("POST "+browsersPath, http.StripPrefix("/console/api", control))
	return http.NewCrossOriginProtection().Handler(mux)
}

// logInRequest is the body of a login. Without a key, the browser's certificate identifies the user.
type logInRequest struct {
	Key string `json:"key"`
}

// logIn sets the browser's cookie.
func (s *Server) logIn(w http.ResponseWriter, r *http.Request) {
	var asked logInRequest
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1000)).Decode(&asked); err != nil {
		http.Error(w, "the request cannot be read", http.StatusBadRequest)
		return
	}
	if err := s.mustLead(r.Context()); err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	c, refused := callerOf(r.Context()), ""
	if k, good := s.logins.take(asked.Key, true); good {
		c = who(s.Store.Snapshot(), k.user)
		refused = c.why
	} else if asked.Key != "" {
		refused = "the link has been used already, or is too old; `watari console` makes another one"
	} else if c.kind != ca.KindUser && r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		refused = cmp.Or(c.why, noLogin)
	} else if c.kind != ca.KindUser {
		refused = noLogin
	}
	if refused != "" {
		s.recordHTTP(c, r, "LogIn", "web console", http.StatusUnauthorized, refused)
		http.Error(w, refused, http.StatusUnauthorized)
		return
	}
	s.recordHTTP(c, r, "LogIn", "web console", http.StatusNoContent, "")
	secret, ends := s.logins.add(c.identity(), false, sessionTime)
	http.SetCookie(w, &http.Cookie{Name: cookieName, Value: secret, Path: "/", Expires: ends, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.WriteHeader(http.StatusNoContent)
}

func (s *Server) logOut(w http.ResponseWriter, r *http.Request) {
	if cookie, err := r.Cookie(cookieName); err == nil {
		s.logins.remove(cookie.Value)
	}
	http.SetCookie(w, &http.Cookie{Name: cookieName, Path: "/", MaxAge: -1, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode})
	w.WriteHeader(http.StatusNoContent)
}

// browser returns the user whose browser is logged in.
func (s *Server) browser(r *http.Request) caller {
	if cookie, err := r.Cookie(cookieName); err == nil {
		if k, good := s.logins.take(cookie.Value, false); good {
			c := who(s.Store.Snapshot(), k.user)
			c.login = cookie.Value
			return c
		}
	}
	return caller{why: noLogin}
}
