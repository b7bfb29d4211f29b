// Package api_test compares the messages on the wire with those written down in descriptor.golden, so that no
// number or type changes by accident. go test ./api -rewrite writes the file anew; read the difference.
package api_test

import (
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"

	_ "watari/api/watariv1"
)

var rewrite = flag.Bool("rewrite", false, "write descriptor.golden anew")

func TestWireFormatIsAsWrittenDown(t *testing.T) {
	var lines []string
	protoregistry.GlobalFiles.RangeFilesByPackage("watari.v1", func(file protoreflect.FileDescriptor) bool {
		for i := range file.Messages().Len() {
			lines = append(lines, messageLines(file.Messages().Get(i))...)
		}
		for i := range file.Enums().Len() {
			values := file.Enums().Get(i).Values()
			for j := range values.Len() {
				lines = append(lines, fmt.Sprintf("%s = %d", values.Get(j).FullName(), values.Get(j).Number()))
			}
		}
		for i := range file.Services().Len() {
			methods := file.Services().Get(i).Methods()
			for j := range methods.Len() {
				m := methods.Get(j)
				lines = append(lines, fmt.Sprintf("%s(%s stream=%v) (%s stream=%v)", m.FullName(), m.Input().Name(), m.IsStreamingClient(), m.Output().Name(), m.IsStreamingServer()))
			}
		}
		return true
	})
	slices.Sort(lines)
	got := strings.Join(lines, "\n") + "\n"
	if *rewrite {
		if err := os.WriteFile("descriptor.golden", []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile("descriptor.golden")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("the wire format differs from descriptor.golden (-written down +now):\n%s", diff)
	}
}

func messageLines(m protoreflect.MessageDescriptor) []string {
	var lines []string
	for i := range m.Fields().Len() {
		f := m.Fields().Get(i)
		kind := f.Kind().String()
		if f.Message() != nil {
			kind = string(f.Message().Name())
		}
		lines = append(lines, fmt.Sprintf("%s = %d %s %s", f.FullName(), f.Number(), f.Cardinality(), kind))
	}
	return lines
}
