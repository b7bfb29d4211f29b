package lab

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A lab that ends does not forbid userfaultfd while another lab needs it. The last one does, unless it was allowed before.
func TestTheLastLabForbidsUserfaultfd(t *testing.T) {
	for _, before := range []string{"0", "1"} {
		root := t.TempDir()
		setting := userfaultSetting
		userfaultSetting = filepath.Join(root, "setting")
		t.Cleanup(func() { userfaultSetting = setting })
		if err := os.WriteFile(userfaultSetting, []byte(before+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var labs []*Lab
		for _, name := range []string{"one", "two"} {
			l := &Lab{dir: filepath.Join(root, name), progress: func(string) {}}
			if err := os.Mkdir(l.dir, 0o700); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second time, it completes a lab
				if err := l.allowUserfaults(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
			labs = append(labs, l)
		}
		for i, l := range labs {
			if value, _ := os.ReadFile(userfaultSetting); strings.TrimSpace(string(value)) != "1" {
				t.Errorf("with %d labs, the setting is %s", 2-i, value)
			}
			for range 2 {
				if err := l.forbidUserfaults(context.Background()); err != nil {
					t.Fatal(err)
				}
			}
		}
		if value, _ := os.ReadFile(userfaultSetting); strings.TrimSpace(string(value)) != before {
			t.Errorf("after the last lab, the setting is %s; before, it was %s", value, before)
		}
	}
}
