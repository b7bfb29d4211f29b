package rules

import (
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

var namedTest = regexp.MustCompile("`(Test[A-Za-z0-9]+)`")

// TestEachThreatHasATest checks that each row of the table of docs/design/threats.md names a test, and only tests that exist.
func TestEachThreatHasATest(t *testing.T) {
	_, folders := parsed(t)
	exists := map[string]bool{}
	for _, files := range folders {
		for _, file := range files {
			for _, decl := range file.Decls {
				if f, ok := decl.(*ast.FuncDecl); ok && f.Recv == nil {
					exists[f.Name.Name] = true
				}
			}
		}
	}
	text, err := os.ReadFile(filepath.Join(top, "docs/design/threats.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "| ") || strings.HasPrefix(line, "| attacker ") {
			continue
		}
		rows++
		tests := namedTest.FindAllStringSubmatch(line, -1)
		if len(tests) == 0 {
			t.Errorf("no test: %s", line)
		}
		for _, name := range tests {
			if !exists[name[1]] {
				t.Errorf("there is no %s: %s", name[1], line)
			}
		}
	}
	if rows < 20 {
		t.Errorf("%d rows; is it the table?", rows)
	}
}
