package rules

import (
	"bytes"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const top = "../.."

// sources returns the Go files of the repository, except generated ones, by path from the repository's root.
func sources(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() && path != top && (strings.HasPrefix(name, ".") || name == "build" || name == "testdata" || name == "watariv1") {
			return filepath.SkipDir
		}
		if strings.HasSuffix(name, ".go") {
			all = append(all, strings.TrimPrefix(path, top+"/"))
		}
		return nil
	})
	if err != nil || len(all) == 0 {
		t.Fatalf("find the sources: %v", err)
	}
	return all
}

func TestSourcesAreFormatted(t *testing.T) {
	for _, path := range sources(t) {
		text, err := os.ReadFile(filepath.Join(top, path))
		if err != nil {
			t.Fatal(err)
		}
		formatted, err := format.Source(text)
		if err != nil || !bytes.Equal(text, formatted) {
			t.Errorf("%s is not as gofmt has it: %v", path, err)
		}
	}
}

// parsed parses all sources, by directory.
func parsed(t *testing.T) (*token.FileSet, map[string][]*ast.File) {
	t.Helper()
	set, folders := token.NewFileSet(), map[string][]*ast.File{}
	for _, path := range sources(t) {
		file, err := parser.ParseFile(set, filepath.Join(top, path), nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		folders[filepath.Dir(path)] = append(folders[filepath.Dir(path)], file)
	}
	return set, folders
}

func TestPackagesSayWhatTheyAreFor(t *testing.T) {
	_, folders := parsed(t)
	for folder, files := range folders {
		said := false
		for _, file := range files {
			said = said || file.Doc != nil
		}
		if !said {
			t.Errorf("package %s has no doc comment", folder)
		}
	}
}

func TestExportedThingsAreDocumented(t *testing.T) {
	set, folders := parsed(t)
	for _, files := range folders {
		for _, file := range files {
			if strings.HasSuffix(set.Position(file.Pos()).Filename, "_test.go") || file.Name.Name == "main" {
				continue
			}
			for _, declaration := range file.Decls {
				undocumented(declaration, func(name string, at token.Pos) {
					t.Errorf("%s: %s has no doc comment", set.Position(at), name)
				})
			}
		}
	}
}

// undocumented reports exported declarations without a comment. Values in a block are explained by the comment of their
// type.
func undocumented(declaration ast.Decl, tell func(string, token.Pos)) {
	switch d := declaration.(type) {
	case *ast.FuncDecl:
		if d.Doc == nil && d.Name.IsExported() && exportedReceiver(d) {
			tell(d.Name.Name, d.Pos())
		}
	case *ast.GenDecl:
		for _, spec := range d.Specs {
			switch s := spec.(type) {
			case *ast.TypeSpec:
				if d.Doc == nil && s.Doc == nil && s.Comment == nil && s.Name.IsExported() {
					tell(s.Name.Name, s.Pos())
				}
			case *ast.ValueSpec:
				if !d.Lparen.IsValid() && d.Doc == nil && s.Comment == nil && s.Names[0].IsExported() {
					tell(s.Names[0].Name, s.Pos())
				}
			}
		}
	}
}

// wellKnown lists methods that need no comment because an interface defines them.
var wellKnown = map[string]bool{"Error": true, "Unwrap": true, "String": true, "Close": true, "Read": true, "Write": true,
	"Len": true, "Less": true, "Swap": true, "Push": true, "Pop": true, "RoundTrip": true, "ServeHTTP": true, "Is": true,
	"LocalAddr": true, "RemoteAddr": true, "SetDeadline": true, "SetReadDeadline": true, "SetWriteDeadline": true,
	"Network": true, "Timeout": true, "Temporary": true, "Enabled": true, "Handle": true, "WithAttrs": true, "WithGroup": true}

func exportedReceiver(d *ast.FuncDecl) bool {
	if d.Recv == nil {
		return true
	}
	kind := d.Recv.List[0].Type
	if star, ok := kind.(*ast.StarExpr); ok {
		kind = star.X
	}
	if index, ok := kind.(*ast.IndexExpr); ok {
		kind = index.X
	}
	name, ok := kind.(*ast.Ident)
	return ok && name.IsExported() && !wellKnown[d.Name.Name]
}

// mayPrint lists the directories of packages that may print: programs and their front ends, tests, and a guest's first
// process, which writes to the console.
var mayPrint = []string{"cmd/", "bench/", "test", "internal/", "examples/", "experiments", "guest/initd", "sim/"}

func TestLibrariesDoNotPrint(t *testing.T) {
	set, folders := parsed(t)
	for folder, files := range folders {
		allowed := false
		for _, prefix := range mayPrint {
			allowed = allowed || strings.HasPrefix(folder, prefix)
		}
		for _, file := range files {
			if allowed || strings.HasSuffix(set.Position(file.Pos()).Filename, "_test.go") {
				continue
			}
			ast.Inspect(file, func(node ast.Node) bool {
				if call, ok := node.(*ast.CallExpr); ok && prints(call) {
					t.Errorf("%s: a library prints; return it or log it with log/slog", set.Position(call.Pos()))
				}
				return true
			})
		}
	}
}

func prints(call *ast.CallExpr) bool {
	switch function := call.Fun.(type) {
	case *ast.Ident:
		return function.Name == "println" || function.Name == "print"
	case *ast.SelectorExpr:
		of, ok := function.X.(*ast.Ident)
		name := function.Sel.Name
		return ok && (of.Name == "fmt" && (name == "Print" || name == "Println" || name == "Printf") ||
			of.Name == "log" && (strings.HasPrefix(name, "Print") || strings.HasPrefix(name, "Fatal")))
	}
	return false
}
