package agent

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	"watari/agent/machine"
	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/internal/stamp"
)

func newAuthority(t *testing.T) *ca.Authority {
	t.Helper()
	a, err := ca.New("test")
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// stamped returns orders of a term.
func stamped(t *testing.T, a *ca.Authority, term uint64, id string, revision int64) *v1.HostWanted {
	t.Helper()
	s, err := stamp.New(a, &v1.Term{Number: term, Id: id}, revision)
	if err != nil {
		t.Fatal(err)
	}
	return &v1.HostWanted{Term: term, Generation: uint64(revision), Stamp: s}
}

func TestStampsAreKeptOverRestarts(t *testing.T) {
	a := &Agent{config: Config{StateDir: t.TempDir()}}
	if term, s, err := a.readTerm(); term != 0 || s != nil || err != nil {
		t.Fatal(term, s, err)
	}
	want := stamped(t, newAuthority(t), 4, "x", 30).Stamp
	if err := a.keepTerm(4, want); err != nil {
		t.Fatal(err)
	}
	if term, s, err := a.readTerm(); term != 4 || !proto.Equal(s, want) || err != nil {
		t.Fatal(term, s, err)
	}
}

func TestAPlainTermOfAnEarlierAgentIsRead(t *testing.T) {
	a := &Agent{config: Config{StateDir: t.TempDir()}}
	if err := os.WriteFile(a.termFile(), []byte("7\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if term, s, err := a.readTerm(); term != 7 || s != nil || err != nil {
		t.Fatal(term, s, err)
	}
	if err := a.keepTerm(8, nil); err != nil { // from an earlier manager
		t.Fatal(err)
	}
	if text, err := os.ReadFile(a.termFile()); string(text) != "8\n" || err != nil {
		t.Fatalf("%q %v", text, err)
	}
	os.WriteFile(a.termFile(), []byte("nonsense"), 0o600)
	if _, _, err := a.readTerm(); err == nil {
		t.Fatal("a damaged file is not told of")
	}
}

func TestOrdersWithAStampThatIsNotGenuineAreRefusedAndReported(t *testing.T) {
	authority := newAuthority(t)
	o := newOutside(t)
	o.start()
	o.agent.config.Authority = authority.CertificatePEM()
	forged, mismatched := stamped(t, authority, 6, "x", 20), stamped(t, authority, 9, "x", 20)
	forged.Stamp.Revision++
	mismatched.Term = 10
	for name, c := range map[string]struct {
		orders *v1.HostWanted
		says   string
	}{
		"another authority":     {stamped(t, newAuthority(t), 6, "x", 20), "not signed"},
		"a changed stamp":       {forged, "not signed"},
		"a stamp of other ones": {mismatched, "their stamp is of term 9"},
	} {
		if err := o.agent.Take(c.orders); !errors.Is(err, machine.ErrStale) || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		report, _ := o.agent.Observed()
		if !slices.ContainsFunc(report.Problems, func(p string) bool { return strings.Contains(p, c.says) }) {
			t.Errorf("%s is not reported: %q", name, report.Problems)
		}
	}
	genuine := stamped(t, authority, 5, "mine", 10)
	if err := o.agent.Take(genuine); err != nil {
		t.Fatal(err)
	}
	o.await("the stamp is shown", func(report *v1.HostObserved) bool { return proto.Equal(report.Stamp, genuine.Stamp) })
	if _, kept, err := o.agent.readTerm(); err != nil || !proto.Equal(kept, genuine.Stamp) {
		t.Error(kept, err)
	}
}

func TestATermThatCannotBeReadIsNotTakenForNone(t *testing.T) {
	authority := newAuthority(t)
	o := newOutside(t)
	reader := &Agent{config: Config{StateDir: filepath.Join(o.dir, "state")}}
	file := reader.termFile()
	if err := os.MkdirAll(reader.config.StateDir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"nonsense", "", "{}"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, _, err := reader.readTerm(); err == nil || !strings.Contains(err.Error(), "remove the file") {
			t.Errorf("%q: %v", text, err)
		}
	}
	os.Remove(file)
	if err := os.Mkdir(file, 0o700); err != nil { // reading fails, as it does when descriptors run out
		t.Fatal(err)
	}
	o.start()
	o.agent.config.Authority = authority.CertificatePEM()
	wanted := stamped(t, authority, 6, "x", 20)
	if err := o.agent.Take(wanted); err != nil {
		t.Fatal(err)
	}
	o.await("the problem is reported", func(report *v1.HostObserved) bool {
		return report.Stamp == nil && slices.ContainsFunc(report.Problems, func(p string) bool { return strings.Contains(p, "orders are ignored") })
	})
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o.await("the orders that waited are in force", func(report *v1.HostObserved) bool { return proto.Equal(report.Stamp, wanted.Stamp) })
}
