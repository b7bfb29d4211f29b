package auditlog

import (
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"slices"
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

// What the manager's calls can do to the log: there is no method that changes or removes an entry.
func TestNoMethodChangesAnEntry(t *testing.T) {
	var methods []string
	for m := range reflect.TypeFor[*Log]().Methods() {
		methods = append(methods, m.Name)
	}
	if want := []string{"Close", "Forward", "Last", "Record"}; !slices.Equal(methods, want) {
		t.Errorf("the methods are %v, want %v: does a new one change entries?", methods, want)
	}
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
	for i := range 100_000 {
		address := fmt.Sprintf("[2001:db8::%x]:40112", i)
		l.Record(&v1.AuditEntry{At: timestamppb.New(now), Caller: flood, Address: address, Call: "WhoAmI", Error: "a certificate is needed"})
	}
	l.Record(&v1.AuditEntry{At: timestamppb.New(now), Caller: "user aiko", Call: "DeleteCluster"})
	l.Record(&v1.AuditEntry{At: timestamppb.New(now.Add(time.Second)), Caller: flood, Call: "WhoAmI", Error: "a certificate is needed"})
	got := last(t, l, 0)
	if len(got) != burst+3 || got[0].Call != "CreateCluster" || got[burst+1].Call != "DeleteCluster" || got[burst+2].LeftOut != 100_000-burst {
		t.Errorf("flood of %q: %d entries, the last one %v", flood, len(got), got[len(got)-1])
	}
}

// Strangers share one rate. Their refused calls do not hide that one of them was admitted, with a token or a key.
func TestAFloodOfRefusedStrangersHidesNoJoin(t *testing.T) {
	l, now := open(t, t.TempDir()), timestamppb.Now()
	for range 10 * burst {
		l.Record(&v1.AuditEntry{At: now, Call: "Join", Error: "the token is not known"})
	}
	l.Record(&v1.AuditEntry{At: now, Address: "10.0.0.9:40112", Call: "Join", Object: "a1"})
	if got := last(t, l, 0); got[len(got)-1].Object != "a1" {
		t.Errorf("the last entry is %v", got[len(got)-1])
	}
}

// The entries of one caller take two days to fill the kept files, whatever the caller writes into them.
func TestAFloodTakesTwoDaysToReplaceTheLog(t *testing.T) {
	const seconds = 120
	for what, text := range map[string]string{"short": "md", "long": strings.Repeat("x", 10_000), "wide": strings.Repeat("\U0001f4a3", 1000),
		"escaped": strings.Repeat("\x1b", 1000), "quotes": strings.Repeat(`"`, 1000)} {
		l, now := open(t, t.TempDir()), time.Now()
		for i := range 10 * seconds {
			at := timestamppb.New(now.Add(time.Duration(i) * time.Second / 10))
			l.Record(&v1.AuditEntry{At: at, Caller: "user mallory", Uid: "5a7c1a52-0000-4000-8000-000000000001", Address: "[2001:db8::1]:40112", Call: "DeleteCluster",
				Object: text, Code: "not_found", Error: "there is no cluster " + text})
		}
		info, err := os.Stat(l.path)
		if err != nil {
			t.Fatal(err)
		}
		const atOnce = 100 * 300 // bytes
		if most := int64(keptFiles*fileSize<<20)*seconds/(48*3600) + atOnce; info.Size() > most {
			t.Errorf("%s texts: %d seconds take %d bytes, more than %d", what, seconds, info.Size(), most)
		}
		if got := last(t, l, 0); len(got) < seconds/2 {
			t.Errorf("%s texts: only %d calls in %d seconds are recorded", what, len(got), seconds)
		}
	}
}

// The page on threats gives these numbers.
func TestTheLogHasAHundredCallsAtOnceAndTheNumberOfTheOthers(t *testing.T) {
	dir, now := t.TempDir(), time.Now()
	l := open(t, dir)
	call := func(after time.Duration) {
		l.Record(&v1.AuditEntry{At: timestamppb.New(now.Add(after)), Caller: "user mallory", Call: "WhoAmI", Error: "no"})
	}
	for range 107 {
		call(0)
	}
	if got := last(t, l, 0); len(got) != 100 {
		t.Errorf("%d calls at once are recorded", len(got))
	}
	for range 20 {
		call(time.Second)
	}
	got := last(t, l, 0)
	if len(got) != 105 || got[100].LeftOut != 7 || got[101].LeftOut != 0 {
		t.Errorf("a second later, %d calls are recorded; the next one tells of %d others", len(got), got[min(100, len(got)-1)].LeftOut)
	}
	call(time.Minute)
	if got := last(t, l, 1); got[0].LeftOut != 15 {
		t.Errorf("a minute later, the entry tells of %d others", got[0].LeftOut)
	}
}
