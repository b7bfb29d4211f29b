package main

import (
	"flag"
	"os"
	"strings"
	"testing"
)

func TestManPageHasEachFlag(t *testing.T) {
	page, err := os.ReadFile("../../man/watari-agent.8")
	if err != nil {
		t.Fatal(err)
	}
	new(options).flags().VisitAll(func(f *flag.Flag) {
		if !strings.Contains(string(page), ".It Fl -"+f.Name) {
			t.Errorf("man/watari-agent.8 does not tell of --%s", f.Name)
		}
	})
}
