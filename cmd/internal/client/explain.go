package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"strings"

	"connectrpc.com/connect"
)

// explained is an error with a sentence for people instead of the protocol's text.
type explained struct {
	text string
	err  error
}

func (e *explained) Error() string { return e.text }
func (e *explained) Unwrap() error { return e.err }

// Explain replaces the text of a call's error by a sentence that names the thing, the reason and the next step. It
// returns other errors unchanged.
func Explain(err error) error {
	if already := (*explained)(nil); errors.As(err, &already) {
		return err
	}
	if errors.Is(err, ErrNoConfig) {
		return &explained{err.Error() + "; start a manager on this machine with `sudo watari up`, or use one " +
			"elsewhere with `watari login --manager URL --token TOKEN` (root's is read by sudo)", err}
	}
	var failed *connect.Error
	if !errors.As(err, &failed) {
		return err
	}
	before, _, _ := strings.Cut(err.Error(), failed.Error())
	return &explained{before + sentence(failed), err}
}

// sentence says why a call failed, and what to do.
func sentence(err *connect.Error) string {
	var unreachable *Unreachable
	var certificate *tls.CertificateVerificationError
	var alert tls.AlertError
	switch {
	case errors.As(err, &unreachable):
		if unreachable.elsewhere() {
			return unreachable.Error() + "; check the network, and on the manager's machine start it with `sudo watari up`"
		}
		return unreachable.Error() + "; start one with `sudo watari up`"
	case errors.As(err, &certificate):
		return fmt.Sprintf("what answers is not the manager of the client config: %s; get a new config with `watari login`", certificateReason(certificate))
	case errors.As(err, &alert):
		return fmt.Sprintf("the manager refused the connection: %v; get a new certificate with `watari login`", alert)
	case !connect.IsWireError(err) && errors.Is(err, context.Canceled):
		return "interrupted"
	}
	message := err.Message()
	switch err.Code() {
	case connect.CodeUnavailable:
		if !connect.IsWireError(err) {
			return fmt.Sprintf("cannot talk to the manager: %s; try again, or look at `watari status`", message)
		}
		return message + "; try again in a moment, or look at `watari status`"
	case connect.CodeUnauthenticated:
		return message + "; ask an administrator for a token (`watari user add`), then `watari login --token TOKEN`"
	case connect.CodePermissionDenied:
		return message + " (`watari status` says who you are)"
	case connect.CodeUnimplemented:
		return "the manager does not know this command; compare `watari version` with `watari status`"
	case connect.CodeInternal, connect.CodeUnknown:
		return message + "; the manager's log says more"
	}
	return message
}

func certificateReason(err *tls.CertificateVerificationError) string {
	var authority x509.UnknownAuthorityError
	if errors.As(err.Err, &authority) {
		return "its certificate is of another CA"
	}
	return err.Err.Error()
}

// Brief says why a call failed for a temporary reason, without a next step: the command waits anyway.
func Brief(err error) string {
	var unreachable *Unreachable
	var failed *connect.Error
	switch {
	case errors.As(err, &unreachable):
		return unreachable.Error()
	case errors.As(err, &failed) && connect.IsWireError(failed):
		return failed.Message()
	case errors.As(err, &failed):
		return "the connection broke"
	}
	return err.Error()
}

// Transient reports whether a call's error is temporary: the manager is restarting, another one takes over, or the
// connection broke.
func Transient(err error) bool {
	var failed *connect.Error
	if err == nil || !errors.As(err, &failed) {
		return false
	}
	if failed.Code() == connect.CodeUnavailable {
		var certificate *tls.CertificateVerificationError
		var alert tls.AlertError
		return !errors.As(err, &certificate) && !errors.As(err, &alert)
	}
	if connect.IsWireError(failed) {
		return false
	}
	switch failed.Code() {
	case connect.CodeUnknown, connect.CodeInternal, connect.CodeCanceled, connect.CodeAborted:
		return true // a stream that broke in the middle
	}
	return false
}
