package stamp

import (
	"testing"

	"google.golang.org/protobuf/proto"

	v1 "watari/api/watariv1"
	"watari/ca"
)

func TestEveryFieldIsSigned(t *testing.T) {
	a, err := ca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	term := &v1.Term{Number: 7, Id: "i", Leader: "l", Revision: 9}
	s, err := New(a, term, 12)
	if err != nil {
		t.Fatal(err)
	}
	if err := SignTerm(a, term); err != nil {
		t.Fatal(err)
	}
	if Verify(a.Certificate(), s) != nil || VerifyTerm(a.Certificate(), term) != nil {
		t.Fatal("a genuine one was refused")
	}
	for name, change := range map[string]func(*v1.Stamp){
		"term": func(s *v1.Stamp) { s.Term++ }, "id": func(s *v1.Stamp) { s.Id = "j" }, "revision": func(s *v1.Stamp) { s.Revision++ },
		"signature": func(s *v1.Stamp) { s.Signature = term.Signature },
	} {
		forged := proto.CloneOf(s)
		change(forged)
		if Verify(a.Certificate(), forged) == nil {
			t.Errorf("a stamp with another %s is taken", name)
		}
	}
	for name, change := range map[string]func(*v1.Term){
		"number": func(t *v1.Term) { t.Number++ }, "id": func(t *v1.Term) { t.Id = "j" }, "leader": func(t *v1.Term) { t.Leader = "m" },
		"revision": func(t *v1.Term) { t.Revision++ },
	} {
		forged := proto.CloneOf(term)
		change(forged)
		if VerifyTerm(a.Certificate(), forged) == nil {
			t.Errorf("a term with another %s is taken", name)
		}
	}
	if Verify(a.Certificate(), nil) == nil {
		t.Error("no stamp is taken")
	}
}
