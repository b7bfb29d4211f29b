package controller

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	v1 "watari/api/watariv1"
	"watari/manager/store"
)

func TestOutputIsKeptOnceAndLeavesRoomOnTheDisk(t *testing.T) {
	dir := t.TempDir()
	out, err := openOutput(filepath.Join(dir, "uid"))
	if err != nil {
		t.Fatal(err)
	}
	defer out.close()
	run := &v1.Run{Meta: &v1.Meta{Name: "md-run-1", Uid: "uid", Owner: "ann", OwnerUid: "u1"}}
	s := &store.Snapshot{
		Users: map[string]*v1.User{"ann": {Meta: &v1.Meta{Name: "ann", Uid: "u1"}, Quota: &v1.Quota{OutputBytes: 10}}},
		Runs:  map[string]*v1.Run{"md-run-1": run},
	}
	all := outputs{dir: dir, used: map[string]usedOutput{}}
	write := func(offset uint64, text string) error {
		return out.write(&v1.AttachResponse{Stdout: []byte(text), StdoutOffset: offset}, func(n uint64) error { return all.room(s, run, n) })
	}
	if err := write(0, "one "); err != nil {
		t.Fatal(err)
	}
	reserve := outputReserve
	outputReserve = math.MaxUint64 / 2
	if err := write(4, "two"); !errors.Is(err, errDiskFull) {
		t.Errorf("on a full disk: %v", err)
	}
	if err := write(0, "one "); err != nil {
		t.Errorf("what is kept already needs no room: %v", err)
	}
	outputReserve = reserve
	if err := write(2, "e two"); err != nil {
		t.Fatal(err)
	}
	if kept, err := os.ReadFile(filepath.Join(dir, "uid", "stdout")); string(kept) != "one two" {
		t.Errorf("kept %q, %v", kept, err)
	}
	if err := write(7, " three"); !errors.Is(err, errOverQuota) || !strings.Contains(err.Error(), "the quota of user ann is 10 B") {
		t.Errorf("beyond the quota: %v", err)
	}
}

func TestTheQuotaOfOutputIsForAllRunsOfAUser(t *testing.T) {
	dir := t.TempDir()
	s := &store.Snapshot{Users: map[string]*v1.User{}, Runs: map[string]*v1.Run{}}
	for _, user := range []string{"ann", "bob"} {
		s.Users[user] = &v1.User{Meta: &v1.Meta{Name: user, Uid: user + "-uid"}, Quota: &v1.Quota{OutputBytes: 10}}
		for _, name := range []string{user + "-1", user + "-2"} {
			s.Runs[name] = &v1.Run{Meta: &v1.Meta{Name: name, Uid: name, Owner: user, OwnerUid: user + "-uid"}}
		}
	}
	all := outputs{dir: dir, used: map[string]usedOutput{}}
	write := func(name, text string) error {
		out, err := openOutput(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		defer out.close()
		return out.write(&v1.AttachResponse{Stdout: []byte(text)}, func(n uint64) error { return all.room(s, s.Runs[name], n) })
	}
	if err := write("ann-1", "seven b"); err != nil {
		t.Fatal(err)
	}
	if err := write("ann-2", "four"); !errors.Is(err, errOverQuota) {
		t.Errorf("11 bytes in two runs: %v", err)
	}
	if err := write("bob-1", "four"); err != nil {
		t.Errorf("another user's: %v", err)
	}
	again := outputs{dir: dir, used: map[string]usedOutput{}} // of a manager that has restarted
	if err := again.room(s, s.Runs["ann-2"], 4); !errors.Is(err, errOverQuota) {
		t.Errorf("after a restart: %v", err)
	}
	if err := again.room(s, s.Runs["bob-2"], 6); err != nil {
		t.Errorf("another user's after a restart: %v", err)
	}
}

// A power failure may leave the file with a stream's shift empty.
func TestOutputWhoseShiftIsDamagedIsStillKept(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, streams[0]+shiftSuffix), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := openOutput(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer out.close()
	if err := out.write(&v1.AttachResponse{Stdout: []byte("more")}, func(uint64) error { return nil }); err != nil || out[0].at() != 4 {
		t.Errorf("%v, at %d", err, out[0].at())
	}
}

func TestOutputThatIsNotKeptMovesNothing(t *testing.T) {
	dir := t.TempDir()
	open := func() output {
		out, err := openOutput(dir)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	out := open()
	left := uint64(0)
	write := func(offset uint64, text string) error {
		return out.write(&v1.AttachResponse{Stdout: []byte(text), StdoutOffset: offset}, func(n uint64) error {
			if n > left {
				return fmt.Errorf("%w: full", errOverQuota)
			}
			left -= n
			return nil
		})
	}
	const note = "\n[watari: a part of its output is not kept: full]\n"
	for n, step := range []struct {
		left   uint64
		offset uint64
		text   string
		over   bool
		at     uint64
		kept   string
	}{
		{10, 0, "0123", false, 4, "0123"},
		{2, 4, "4567", true, 8, "0123" + note},
		{2, 8, "89ab", true, 12, "0123" + note},           // one note for all discarded output
		{2, 8, "89ab", false, 12, "0123" + note},          // no byte is written twice
		{10, 10, "abcd", false, 14, "0123" + note + "cd"}, // there is room again
		{10, 20, "kl", false, 22, "0123" + note + "cdkl"}, // the guest has dropped six bytes
		{10, 18, "ijkl", false, 22, "0123" + note + "cdkl"},
	} {
		left = step.left
		if err := write(step.offset, step.text); errors.Is(err, errOverQuota) != step.over || err != nil && !step.over {
			t.Errorf("step %d: %v", n, err)
		}
		out.close()
		out = open() // as after a restart
		if kept, err := os.ReadFile(filepath.Join(dir, "stdout")); string(kept) != step.kept || out[0].at() != step.at {
			t.Errorf("step %d: kept %q up to %d, %v", n, kept, out[0].at(), err)
		}
	}
	// A restored process has written 21 bytes, and writes on from there.
	if err := out.cut(21, 0); err != nil || out[0].at() != 21 {
		t.Errorf("cut to %d, %v", out[0].at(), err)
	}
	if err := out.cut(1, 0); err != nil || out[0].at() != 1 {
		t.Errorf("cut to %d, %v", out[0].at(), err)
	}
	out.close()
}
