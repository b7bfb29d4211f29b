package image

import (
	"bytes"
	"strings"
	"testing"

	"watari/guest/image"
)

func TestBuildProgressIsALineAStepWithoutATerminal(t *testing.T) {
	var out bytes.Buffer
	show := newBuildProgress(&out)
	show.update(image.Progress{Step: "install packages"})
	for i := range int64(100) {
		show.update(image.Progress{Step: "install packages", Done: i + 1, Total: 100, Unit: "packages"})
	}
	show.update(image.Progress{Step: "pack the root file system"})
	show.end()
	want := "install packages\ninstall packages: 1 %  1 of 100 packages\npack the root file system\n"
	if got := out.String(); got != want {
		t.Errorf("shown:\n%swant:\n%s", got, want)
	}
}

func TestBarIsFullAtTheEnd(t *testing.T) {
	if got := amount(image.Progress{Done: 7, Total: 7, Unit: "packages"}, true); !strings.Contains(got, "["+strings.Repeat("=", 24)+"] 100 %  7 of 7 packages") {
		t.Errorf("got %q", got)
	}
}
