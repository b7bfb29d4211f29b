// Package stamp signs and verifies terms and the stamps of orders (docs/design/manager.md).
package stamp

import (
	"crypto/x509"
	"encoding/binary"
	"fmt"

	v1 "watari/api/watariv1"
	"watari/ca"
)

// The contexts prevent a signature of a term from being valid for a stamp.
const (
	stampContext = "stamp of orders, 1"
	termContext  = "term, 1"
)

// message joins numbers and texts so that no two different lists give the same bytes.
func message(numbers []uint64, texts ...string) []byte {
	var b []byte
	for _, n := range numbers {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	for _, text := range texts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(text)))
		b = append(b, text...)
	}
	return b
}

func ofStamp(s *v1.Stamp) []byte {
	return message([]uint64{s.GetTerm(), uint64(s.GetRevision())}, s.GetId())
}

func ofTerm(t *v1.Term) []byte {
	return message([]uint64{t.GetNumber(), uint64(t.GetRevision())}, t.GetId(), t.GetLeader())
}

// New makes a signed stamp of orders of a term that were computed from the store at a revision.
func New(a *ca.Authority, term *v1.Term, revision int64) (*v1.Stamp, error) {
	s := &v1.Stamp{Term: term.GetNumber(), Id: term.GetId(), Revision: revision}
	var err error
	s.Signature, err = a.SignMessage(stampContext, ofStamp(s))
	return s, err
}

// Verify checks that the authority signed a stamp.
func Verify(authority *x509.Certificate, s *v1.Stamp) error {
	if err := ca.VerifyMessage(authority, stampContext, ofStamp(s), s.GetSignature()); err != nil {
		return fmt.Errorf("the stamp of term %d (%s): %w", s.GetTerm(), s.GetId(), err)
	}
	return nil
}

// SignTerm signs a term's record.
func SignTerm(a *ca.Authority, t *v1.Term) error {
	var err error
	t.Signature, err = a.SignMessage(termContext, ofTerm(t))
	return err
}

// VerifyTerm checks that the authority signed a term's record.
func VerifyTerm(authority *x509.Certificate, t *v1.Term) error {
	if err := ca.VerifyMessage(authority, termContext, ofTerm(t), t.GetSignature()); err != nil {
		return fmt.Errorf("the record of term %d (%s): %w", t.GetNumber(), t.GetId(), err)
	}
	return nil
}
