package mounts

import "testing"

func TestMountsAreReadAsWritten(t *testing.T) {
	for _, text := range []string{"nfs.lab:/data:/data:ro", "nfs.lab:/data:/data", "[fe80::1]:/:/mnt/x y", "10.0.0.1:/a:b:/c:ro"} {
		m, err := Parse(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if Text(m) != text {
			t.Errorf("%s became %s", text, Text(m))
		}
	}
	for _, text := range []string{"", "nfs.lab", "nfs.lab:/data", ":/data:/data", "nfs.lab:data:/data", "[fe80::1:/data:/data"} {
		if m, err := Parse(text); err == nil {
			t.Errorf("%q is read as %v", text, m)
		}
	}
	if m, err := Parse("nfs.lab:/data:/data:rw"); err != nil || m.ReadOnly || m.At != "/data" {
		t.Errorf("%v, %v", m, err)
	}
}
