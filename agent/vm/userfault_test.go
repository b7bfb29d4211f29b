package vm

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

func TestUserfaultfdIsAllowedForAMoment(t *testing.T) {
	folder := t.TempDir()
	u := &userfaults{setting: filepath.Join(folder, "setting"), mark: filepath.Join(folder, "run", "mark")}
	set := func(value string) {
		t.Helper()
		if err := os.WriteFile(u.setting, []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	is := func(value string, marked bool) {
		t.Helper()
		got, err := os.ReadFile(u.setting)
		if err != nil || string(got) != value {
			t.Errorf("it is %q, %v", got, err)
		}
		if _, err := os.Stat(u.mark); (err == nil) != marked {
			t.Errorf("the mark: %v", err)
		}
	}
	allow := func() func() error {
		t.Helper()
		end, err := u.allow()
		if err != nil {
			t.Fatal(err)
		}
		return end
	}
	if _, err := u.allow(); err == nil {
		t.Error("a kernel without userfaultfd allowed it")
	}
	set("0\n")
	first, second := allow(), allow()
	if err := errors.Join(first(), first()); err != nil {
		t.Error(err)
	}
	is("1\n", true)
	if err := second(); err != nil {
		t.Error(err)
	}
	is("0\n", false)

	set("1\n") // as an administrator has set it
	if err := allow()(); err != nil {
		t.Error(err)
	}
	is("1\n", false)

	set("0\n")
	_ = allow()
	killed := &userfaults{setting: u.setting, mark: u.mark}
	is("1\n", true)
	for range 2 {
		if err := killed.recover(); err != nil {
			t.Error(err)
		}
		is("0\n", false)
	}
}
