// Package mounts parses and formats folders of file servers: SERVER:/PATH, with an IPv6 address in brackets. It does no I/O.
package mounts

import (
	"fmt"
	"strings"

	v1 "watari/api/watariv1"
)

// Cut splits SERVER:/PATH.
func Cut(text string) (server, path string, ok bool) {
	server, path, ok = strings.Cut(text, ":/")
	if inner, bracketed := strings.CutPrefix(server, "["); bracketed {
		if server, bracketed = strings.CutSuffix(inner, "]"); !bracketed {
			return "", "", false
		}
	}
	return server, "/" + path, ok && server != ""
}

// Source formats SERVER:/PATH.
func Source(server, path string) string {
	if strings.Contains(server, ":") {
		server = "[" + server + "]"
	}
	return server + ":" + path
}

// Parse parses SERVER:/PATH:/AT, optionally followed by :ro or :rw.
func Parse(text string) (*v1.Mount, error) {
	rest, readOnly := strings.CutSuffix(text, ":ro")
	if !readOnly {
		rest = strings.TrimSuffix(rest, ":rw")
	}
	i := strings.LastIndex(rest, ":/")
	if i < 0 {
		return nil, fmt.Errorf("%q: give SERVER:/PATH:/AT, such as nfs.lab:/data:/data:ro", text)
	}
	server, path, ok := Cut(rest[:i])
	if !ok {
		return nil, fmt.Errorf("%q: give SERVER:/PATH:/AT, such as nfs.lab:/data:/data:ro", text)
	}
	return &v1.Mount{Server: server, Path: path, At: rest[i+1:], ReadOnly: readOnly}, nil
}

// Text returns the form that Parse reads.
func Text(m *v1.Mount) string {
	text := Source(m.GetServer(), m.GetPath()) + ":" + m.GetAt()
	if m.GetReadOnly() {
		text += ":ro"
	}
	return text
}
