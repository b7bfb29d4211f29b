package auditlog

import (
	"fmt"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	v1 "watari/api/watariv1"
)

func open(t *testing.T, dir string) *Log {
	t.Helper()
	l, err := Open(dir, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func last(t *testing.T, l *Log, n int) []*v1.AuditEntry {
	t.Helper()
	entries, err := l.Last(n)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

func TestEntriesOutliveTheManagerAndItsCrash(t *testing.T) {
	dir := t.TempDir()
	l := open(t, dir)
	if got := last(t, l, 0); len(got) != 0 {
		t.Fatal(got)
	}
	l.Record(&v1.AuditEntry{At: timestamppb.Now(), Caller: "user aiko", Call: "CreateCluster", Object: "md"})
	f, err := os.OpenFile(l.path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(f, `{"call": "half a li`) // the manager was killed
	f.Close()
	l = open(t, dir)
	l.Record(&v1.AuditEntry{At: timestamppb.Now(), Call: "Join", Object: "x\x1b[2J\n{}", Error: strings.Repeat("no", 1000)})
	got := last(t, l, 0)
	if len(got) != 2 || got[0].Object != "md" || strings.ContainsAny(got[1].Object, "\x1b\n") || len(got[1].Error) > textLimit+10 {
		t.Errorf("%v", got)
	}
	if got := last(t, l, 1); len(got) != 1 || got[0].Call != "Join" {
		t.Errorf("the last: %v", got)
	}
	if info, err := os.Stat(l.path); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("others may read it: %v, %v", info, err)
	}
}

func TestNobodyPushesOthersOutOfTheLog(t *testing.T) {
	for _, flood := range []string{"", "user mallory"} { // all strangers share one rate
		nobodyPushesOthersOut(t, flood)
	}
}

func nobodyPushesOthersOut(t *testing.T, flood string) {
	l, now := open(t, t.TempDir()), time.Now()
	l.Record(&v1.AuditEntry{At: timestamppb.New(now), Caller: "user aiko", Call: "CreateCluster"})
	for range 100_000 {
		l.Record(&v1.AuditEntry{At: timestamppb.New(now), Caller: flood, Call: "WhoAmI", Error: "a certificate is needed"})
	}
	l.Record(&v1.AuditEntry{At: timestamppb.New(now), Caller: "user aiko", Call: "DeleteCluster"})
	l.Record(&v1.AuditEntry{At: timestamppb.New(now.Add(time.Second)), Caller: flood, Call: "WhoAmI", Error: "a certificate is needed"})
	got := last(t, l, 0)
	if len(got) != burst+3 || got[0].Call != "CreateCluster" || got[burst+1].Call != "DeleteCluster" || got[burst+2].LeftOut != 100_000-burst {
		t.Errorf("flood of %q: %d entries, the last one %v", flood, len(got), got[len(got)-1])
	}
}
