package session

// bound.go - limits how much of a report is kept, and escapes its texts. A host under an attacker's control must not fill the
// manager's memory or its store, or write control characters to a person's terminal.

import (
	"fmt"
	"math"
	"strings"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "watari/api/watariv1"
	"watari/internal/printable"
)

// Limits on the kept part of a report.
const (
	maxName    = 256     // bytes of a string in HostInfo: a name or a version
	maxMessage = 4 << 10 // bytes of any other string: most are for people
	maxFacts   = 1000    // entries of a list in HostInfo
	maxList    = 16384   // entries of any other list: guests, blobs
	maxLines   = 1000    // entries of problems
	// maxInfo bounds an encoded HostInfo, bytes. Each changed HostInfo is stored, and etcd keeps old values for half an
	// hour.
	maxInfo = 64 << 10
)

// bound cuts the parts of a report that exceed the limits, and reports whether it cut any.
func bound(o *v1.HostObserved) bool {
	guests := len(o.Guests)
	cut := false
	if len(o.Problems) > maxLines {
		o.Problems, cut = o.Problems[:maxLines:maxLines], true
	}
	if info := o.Info; info != nil {
		cut = boundMessage(info.ProtoReflect(), maxName, maxFacts) || cut
		if proto.Size(info) > maxInfo {
			// Only lists make it so large. A host without them gets no guests.
			info.NumaNodes, info.GuestSupport, cut = nil, &v1.GuestSupport{}, true
		}
	}
	info := o.Info
	o.Info = nil // it is bounded already
	cut = boundMessage(o.ProtoReflect(), maxMessage, maxList) || cut
	o.Info = info
	if len(o.Guests) < guests {
		o.ProcessesUnknown = true // guests run that are not listed
	}
	if cut {
		o.Problems = append(o.Problems, fmt.Sprintf("the host reported more than the manager keeps: strings of more than %d bytes, lists of more "+
			"than %d entries or a description of more than %d bytes were cut", maxMessage, maxList, maxInfo))
	}
	return cut
}

// boundLoad applies limits to the load, which is kept from every report.
func boundLoad(load *v1.HostLoad) {
	if load != nil {
		boundMessage(load.ProtoReflect(), maxName, maxFacts)
	}
}

// boundMessage cuts strings and lists, escapes strings, and drops numbers that are none (NaN, infinity) and large fields that this version
// does not know.
func boundMessage(m protoreflect.Message, text, entries int) (cut bool) {
	if len(m.GetUnknown()) > text {
		m.SetUnknown(nil)
		cut = true
	}
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		kind := field.Kind()
		switch {
		case field.IsList():
			list := value.List()
			if list.Len() > entries {
				list.Truncate(entries)
				cut = true
			}
			for i := 0; i < list.Len() && (kind == protoreflect.MessageKind || isText(kind)); i++ {
				if kind == protoreflect.MessageKind {
					cut = boundMessage(list.Get(i).Message(), text, entries) || cut
				} else {
					value, longer := bounded(list.Get(i), kind, text)
					list.Set(i, value)
					cut = cut || longer
				}
			}
		case kind == protoreflect.MessageKind:
			cut = boundMessage(value.Message(), text, entries) || cut
		case isText(kind):
			value, longer := bounded(value, kind, text)
			m.Set(field, value)
			cut = cut || longer
		case kind == protoreflect.DoubleKind || kind == protoreflect.FloatKind:
			if f := value.Float(); math.IsNaN(f) || math.IsInf(f, 0) { // nobody measures that, and a browser cannot compute with it
				m.Clear(field)
			}
		}
		return true
	})
	return cut
}

func isText(kind protoreflect.Kind) bool {
	return kind == protoreflect.StringKind || kind == protoreflect.BytesKind
}

// bounded returns the beginning of a string or of bytes, and whether the value was longer. It escapes a string. It copies what
// it cuts, so that the rest does not stay in memory.
func bounded(v protoreflect.Value, kind protoreflect.Kind, most int) (protoreflect.Value, bool) {
	if kind == protoreflect.BytesKind {
		b := v.Bytes()
		if len(b) <= most {
			return v, false
		}
		return protoreflect.ValueOfBytes(append([]byte(nil), b[:most]...)), true
	}
	was := v.String()
	s := beginning(printable.Text(beginning(was, most)), most)
	if s == was {
		return v, false
	}
	return protoreflect.ValueOfString(s), len(was) > most
}

// beginning returns at most the first bytes of a string, without a part of a character.
func beginning(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return strings.Clone(s[:most])
}
