package store

import "testing"

// A state that an older version wrote has a term without an id and no records of terms.
func TestATermOfAnOlderVersionIsFollowedByOneWithAnID(t *testing.T) {
	dir := t.TempDir()
	ctx := testContext(t)
	s := open(t, dir)
	if _, err := s.client.Put(ctx, termKey, `{"term":4,"leader":"https://older"}`); err != nil {
		t.Fatal(err)
	}
	s.Close()
	for again, want := range []uint64{5, 6} {
		s := open(t, dir)
		if was := s.Snapshot(); was.Term != want-1 || (was.TermID == "") != (want == 5) || len(was.Terms) != again {
			t.Errorf("before term %d the store has term %d (%q) and records of %d terms", want, was.Term, was.TermID, len(was.Terms))
		}
		term, _, err := s.Lead(ctx, "https://newer")
		if err != nil || term != want {
			t.Fatal(term, err)
		}
		now := s.Snapshot()
		if record := now.Terms[now.TermID]; now.TermID == "" || now.TermID != s.Led().Id || record.GetNumber() != want {
			t.Errorf("term %d (%q): %v", want, now.TermID, record)
		}
		s.Close()
	}
}
