// Package utmp reads and writes entries of utmp(5), in which 64-bit Linux records who is logged in.
package utmp

import (
	"bytes"
	"encoding/binary"
	"strings"
	"time"
)

// Size is the length of an entry, bytes.
const Size = 384

// Kinds of entries.
const (
	UserProcess = 7 // a login
	DeadProcess = 8 // a login that has ended
)

// The offsets of an entry's fields, and the lengths of its texts.
const (
	pidAt, lineAt, idAt, userAt, timeAt = 4, 8, 40, 44, 340
	lineSize, idSize, userSize          = 32, 4, 32
)

// Entry is one entry.
type Entry struct {
	Kind uint16
	PID  int
	Line string // terminal, without /dev/
	ID   string // at most 4 bytes
	User string
	At   time.Time // in seconds; zero: none
}

// Bytes returns the entry in the file's format. It cuts texts that are too long.
func (e Entry) Bytes() []byte {
	data := make([]byte, Size)
	binary.NativeEndian.PutUint16(data, e.Kind)
	binary.NativeEndian.PutUint32(data[pidAt:], uint32(e.PID))
	copy(data[lineAt:lineAt+lineSize], e.Line)
	copy(data[idAt:idAt+idSize], e.ID)
	copy(data[userAt:userAt+userSize], e.User)
	if !e.At.IsZero() {
		binary.NativeEndian.PutUint32(data[timeAt:], uint32(e.At.Unix()))
	}
	return data
}

// Parse returns the entries of a file. It ignores an incomplete entry at the end.
func Parse(file []byte) (entries []Entry) {
	for ; len(file) >= Size; file = file[Size:] {
		e := Entry{Kind: binary.NativeEndian.Uint16(file), PID: int(int32(binary.NativeEndian.Uint32(file[pidAt:]))),
			Line: text(file[lineAt : lineAt+lineSize]), ID: text(file[idAt : idAt+idSize]), User: text(file[userAt : userAt+userSize])}
		if seconds := binary.NativeEndian.Uint32(file[timeAt:]); seconds != 0 {
			e.At = time.Unix(int64(seconds), 0)
		}
		entries = append(entries, e)
	}
	return entries
}

func text(field []byte) string {
	before, _, _ := bytes.Cut(field, []byte{0})
	return strings.ToValidUTF8(string(before), "?")
}
