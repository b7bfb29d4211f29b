package controller

import (
	"errors"
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
	s := &store.Snapshot{
		Users: map[string]*v1.User{"ann": {Meta: &v1.Meta{Name: "ann"}, Quota: &v1.Quota{OutputBytes: 10}}},
		Runs:  map[string]*v1.Run{"md-run-1": {Meta: &v1.Meta{Name: "md-run-1", Uid: "uid", Owner: "ann"}}},
	}
	all := outputs{dir: dir, used: map[string]usedOutput{}}
	write := func(offset uint64, text string) error {
		return out.write(&v1.AttachResponse{Stdout: []byte(text), StdoutOffset: offset}, func(n uint64) error { return all.room(s, "ann", n) })
	}
	if err := write(0, "one "); err != nil {
		t.Fatal(err)
	}
	reserve := outputReserve
	outputReserve = math.MaxUint64 / 2
	if err := write(4, "two"); !errors.Is(err, errOutputFull) {
		t.Errorf("on a full disk: %v", err)
	}
	if err := write(0, "one "); err != nil {
		t.Errorf("what is kept already needs no room: %v", err)
	}
	outputReserve = reserve
	if err := write(2, "e two"); err != nil {
		t.Fatal(err)
	}
	if err := write(7, " three"); !errors.Is(err, errOutputFull) || !strings.Contains(err.Error(), "quota of user ann is 10 B") {
		t.Errorf("beyond the quota: %v", err)
	}
	if kept, err := os.ReadFile(filepath.Join(dir, "uid", "stdout")); string(kept) != "one two" {
		t.Errorf("kept %q, %v", kept, err)
	}
}
