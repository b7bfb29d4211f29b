package api

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"connectrpc.com/connect"

	v1 "watari/api/watariv1"
	"watari/ca"
	"watari/manager/session"
	"watari/manager/store"
)

func TestOnlySignalsThatEndProgramsCancelARunThatWaits(t *testing.T) {
	s := openStore(t)
	server := New(Options{Store: s, Sessions: session.New(nil, nil)})
	ctx := context.WithValue(t.Context(), callerKey{}, caller{kind: ca.KindUser, name: Admin, admin: true})
	for signal, ends := range map[syscall.Signal]bool{syscall.SIGINT: true, syscall.SIGKILL: true, syscall.SIGUSR1: false, 40: false} {
		run := &v1.Run{Meta: &v1.Meta{Name: "r"}, State: v1.RunState_RUN_STATE_PENDING}
		if err := s.Txn(t.Context(), store.Create(run)); err != nil {
			t.Fatal(err)
		}
		_, err := server.CancelRun(ctx, connect.NewRequest(&v1.CancelRunRequest{Name: "r", Signal: int32(signal)}))
		if cancelled := s.Snapshot().Runs["r"].Cancel; cancelled != ends || (err == nil) != ends {
			t.Errorf("signal %d: cancelled %v, %v", signal, cancelled, err)
		}
		if !ends && (connect.CodeOf(err) != connect.CodeFailedPrecondition || !strings.Contains(err.Error(), "take "+signalName(signal))) {
			t.Errorf("signal %d: %v", signal, err)
		}
		if err := s.Txn(t.Context(), store.Delete(s.Snapshot().Runs["r"])); err != nil {
			t.Fatal(err)
		}
	}
	if got := signalName(syscall.SIGUSR1) + ", " + signalName(40); got != "SIGUSR1, signal 40" {
		t.Error(got)
	}
}

func TestOutputThatWasCutIsReadAgainIfItsRunWentBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "stdout")
	out := &tail{path: path}
	defer out.close()
	read := func(want string, from uint64) {
		t.Helper()
		data, err := out.next()
		if err != nil || string(data) != want || *out.begin(data) != from {
			t.Errorf("read %q from %d on, want %q from %d on (%v)", data, *out.begin(data), want, from, err)
		}
	}
	replace := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	replace("one two three")
	read("one two three", 0)
	replace("one ")
	read("", 13)
	out.cut = true
	read("", 4)
	replace("one TWO")
	read("TWO", 4)
}
