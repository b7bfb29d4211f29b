package controller

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	v1 "watari/api/watariv1"
)

func TestOutputIsKeptOnceAndLeavesRoomOnTheDisk(t *testing.T) {
	dir := t.TempDir()
	out, err := openOutput(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer out.close()
	write := func(offset uint64, text string) error {
		return out.write(&v1.AttachResponse{Stdout: []byte(text), StdoutOffset: offset})
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
	if kept, err := os.ReadFile(filepath.Join(dir, "stdout")); string(kept) != "one two" {
		t.Errorf("kept %q, %v", kept, err)
	}
}
