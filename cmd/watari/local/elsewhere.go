package local

// elsewhere.go - joining a manager on another machine.

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"watari/ca"
	"watari/cmd/internal/daemon"
)

// joinPatience is how long `watari up` waits for a manager on another machine that this host has joined before.
const joinPatience = 10 * time.Second

// noBlob is a path of a blob with a digest that no image has.
var noBlob = "/blobs/sha256:" + strings.Repeat("0", 64)

// recognition is how a manager on another machine regards this host.
type recognition int

const (
	unclear recognition = iota // the manager does not answer or gives no clear answer
	refused                    // the manager does not accept the host's certificate
	known
)

// managers returns the URLs of the managers on other machines.
func (u *up) managers() (list []string) {
	for _, manager := range strings.Split(u.Manager, ",") {
		list = append(list, strings.TrimRight(strings.TrimSpace(manager), "/"))
	}
	return list
}

// recognized asks the managers, with the agent's certificate, whether they know this host. One of them may be cut off from the store, and
// not know it yet: the host is refused only if all refuse it.
func (u *up) recognized(ctx context.Context) (recognition, string) {
	verdict := refused
	var reasons []string
	for _, manager := range u.managers() {
		answer, why := u.recognizedBy(ctx, manager)
		if answer == known {
			return known, ""
		}
		if answer == unclear {
			verdict = unclear
		}
		reasons = append(reasons, why)
	}
	return verdict, strings.Join(reasons, "; ")
}

// recognizedBy asks one manager.
func (u *up) recognizedBy(ctx context.Context, manager string) (recognition, string) {
	var pem [3][]byte
	for i, name := range []string{"ca.pem", "certificate.pem", "key.pem"} {
		var err error
		if pem[i], err = os.ReadFile(filepath.Join(u.agentPKI(), name)); err != nil {
			return unclear, "joining " + manager
		}
	}
	options, err := ca.ClientTLS(pem[0], pem[1], pem[2])
	if err != nil {
		return refused, err.Error()
	}
	transport := &http.Transport{TLSClientConfig: options}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, manager+noBlob, nil)
	if err != nil {
		return refused, err.Error()
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		if outer := (*url.Error)(nil); errors.As(err, &outer) {
			err = outer.Err
		}
		if unknown := (x509.UnknownAuthorityError{}); errors.As(err, &unknown) {
			return refused, "it is not the manager that this host has joined"
		}
		if verdict := (*net.OpError)(nil); errors.As(err, &verdict) && verdict.Op == "remote error" { // a TLS alert
			return refused, verdict.Err.Error()
		}
		return unclear, fmt.Sprintf("%s does not answer: %v", manager, err)
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotFound {
		return known, ""
	}
	text, _ := io.ReadAll(io.LimitReader(response.Body, 1024))
	why, _, _ := strings.Cut(strings.TrimSpace(string(text)), ";") // without the next step, which is added here
	if response.StatusCode != http.StatusUnauthorized {
		return unclear, fmt.Sprintf("%s answers %s: %s", manager, response.Status, why)
	}
	return refused, why
}

// admitElsewhere makes sure that the agent can join the manager on another machine: it has a certificate that is valid
// there, or a token.
func (u *up) admitElsewhere(ctx context.Context) error {
	if u.token == "" {
		if u.hasCertificate() {
			return nil
		}
		return fmt.Errorf("join %s: a token is missing; get one there with `watari token create --host` and pass it with --token", u.Manager)
	}
	if u.hasCertificate() {
		// The user may have repeated the same command. While the manager does not answer, the certificate may still be
		// valid. Without it the manager would not know this host and its guests.
		if answer, _ := u.recognized(ctx); answer != refused {
			return nil
		}
		if err := u.forgetCertificate(); err != nil {
			return err
		}
	}
	return u.writeToken(u.token)
}

// awaitElsewhere waits until the manager on another machine knows this host.
func (u *up) awaitElsewhere(ctx context.Context, process *daemon.Process, before bool) error {
	var answer recognition
	var why string
	begun := time.Now()
	err := u.await(ctx, process, "starting the agent", func() (bool, string) {
		answer, why = u.recognized(ctx)
		return answer != unclear || before && time.Since(begun) > joinPatience, why
	})
	switch {
	case err != nil:
		return err
	case answer == refused:
		return fmt.Errorf("join %s: it refuses this host's certificate: %s; end the agent with `sudo watari down`, then join with a new token (--token)", u.Manager, why)
	}
	_ = os.Remove(u.tokenFile()) // the token is used up
	if answer == unclear {
		u.lines.Notef("the agent runs%s, and keeps trying: %s", process.Number(), why)
		return nil
	}
	u.lines.Notef("host %s has joined %s; the agent runs%s, its log is %s", u.Name, u.Manager, process.Number(), process.Log())
	return nil
}
