package output

import "testing"

func TestMountsAreReadAsWritten(t *testing.T) {
	for _, text := range []string{"nfs.lab:/data:/data:ro", "nfs.lab:/data:/data", "[fe80::1]:/:/mnt/x y", "10.0.0.1:/a:b:/c:ro"} {
		m, err := ParseMount(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		} else if Mount(m) != text {
			t.Errorf("%s became %s", text, Mount(m))
		}
	}
	for _, text := range []string{"", "nfs.lab", "nfs.lab:/data", ":/data:/data", "nfs.lab:data:/data", "[fe80::1:/data:/data"} {
		if m, err := ParseMount(text); err == nil {
			t.Errorf("%q is read as %v", text, m)
		}
	}
	if m, err := ParseMount("nfs.lab:/data:/data:rw"); err != nil || m.ReadOnly || m.At != "/data" {
		t.Errorf("%v, %v", m, err)
	}
}
