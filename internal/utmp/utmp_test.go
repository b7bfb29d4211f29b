package utmp

import (
	"strings"
	"testing"
	"time"
)

func TestEntriesAreReadAsTheyAreWritten(t *testing.T) {
	login := Entry{Kind: UserProcess, PID: 61, Line: "pts/3", ID: "ts/3", User: "ann", At: time.Unix(1000, 0)}
	ended := Entry{Kind: DeadProcess, PID: -1}
	got := Parse(append(append(login.Bytes(), ended.Bytes()...), "torn"...))
	if len(got) != 2 || got[0] != login || got[1] != ended {
		t.Errorf("%+v", got)
	}
	odd := Entry{User: strings.Repeat("x", 40), Line: "\xff"}.Bytes()
	if got := Parse(odd); len(odd) != Size || len(got[0].User) != 32 || got[0].Line != "?" {
		t.Errorf("%d bytes, %+v", len(odd), got)
	}
}
