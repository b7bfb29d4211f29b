package rules

import (
	"go/ast"
	"go/types"
	"os"
	"path/filepath"
	"regexp"
	"slices"
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

// A guest may have altered its agent, so the clients of guests that hosts and the manager have limit the answers that they read.
func TestEachClientOfAGuestLimitsWhatItReads(t *testing.T) {
	set, folders := parsed(t)
	clients := 0
	for folder, files := range folders {
		if folder != "agent" && !strings.HasPrefix(folder, "manager") {
			continue
		}
		for _, file := range files {
			if strings.HasSuffix(set.Position(file.Pos()).Filename, "_test.go") {
				continue
			}
			ast.Inspect(file, func(n ast.Node) bool {
				call, is := n.(*ast.CallExpr)
				if !is || !guestClient.MatchString(types.ExprString(call.Fun)) {
					return true
				}
				clients++
				limit, is := call.Args[len(call.Args)-1].(*ast.CallExpr)
				if !is || !slices.Contains([]string{"hostlink.GuestLimit", "connect.WithReadMaxBytes"}, types.ExprString(limit.Fun)) {
					t.Errorf("%s: no limit", set.Position(call.Pos()))
				}
				return true
			})
		}
	}
	if clients < 7 {
		t.Errorf("only %d clients were found", clients)
	}
}

var guestClient = regexp.MustCompile(`\.New(Guest|Process)ServiceClient$`)
