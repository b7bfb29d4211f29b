package vm

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
)

// saveFile writes a save file's head as libvirt does, spelled out byte by byte.
func saveFile(magic string, version, running uint32, xml, cookie string, padding int) []byte {
	var b bytes.Buffer
	b.WriteString(magic)
	data := xml + "\x00"
	offset := uint32(0)
	if cookie != "" {
		offset = uint32(len(data))
		data += cookie + "\x00"
	}
	data += strings.Repeat("\x00", padding)
	for _, field := range []uint32{version, uint32(len(data)), running, 0, offset} {
		_ = binary.Write(&b, binary.NativeEndian, field)
	}
	b.Write(make([]byte, 56))
	b.WriteString(data)
	b.WriteString("QEVMstream")
	return b.Bytes()
}

func TestSaveHeadIsReadAndRewritten(t *testing.T) {
	for _, cookie := range []string{"", "<cookie/>"} {
		file := saveFile(saveMagic, 2, 1, "<domain/>", cookie, 100)
		s, err := readSaveHead(bytes.NewReader(file))
		if err != nil {
			t.Fatal(err)
		}
		if s.xml != "<domain/>" || string(s.cookie) != cookie || string(file[s.streamOffset():]) != "QEVMstream" {
			t.Errorf("read %q, %q, stream at %d", s.xml, s.cookie, s.streamOffset())
		}
		// The same XML gives the same bytes.
		same, err := s.withXML("<domain/>")
		if err != nil || !bytes.Equal(same, file[:s.streamOffset()]) {
			t.Errorf("rewritten unchanged: %v\n%q\n%q", err, same, file[:s.streamOffset()])
		}
		for _, xml := range []string{"", "<d/>", "<domain>" + strings.Repeat("x", 80) + "</domain>"} {
			out, err := s.withXML(xml)
			if err != nil {
				t.Fatal(err)
			}
			again, err := readSaveHead(bytes.NewReader(out))
			if err != nil || again.xml != xml || string(again.cookie) != cookie || again.streamOffset() != s.streamOffset() {
				t.Errorf("%q came back as %+v, %v", xml, again, err)
			}
			if again.field(24) != 1 {
				t.Error("was-running was lost")
			}
		}
		if _, err := s.withXML(strings.Repeat("x", 200)); err == nil {
			t.Error("XML longer than the room was taken")
		}
		if _, err := s.withXML("a\x00b"); err == nil {
			t.Error("XML with a NUL was taken")
		}
	}
}

func TestSaveHeadRefusesWhatItDoesNotKnow(t *testing.T) {
	good := saveFile(saveMagic, 2, 1, "<domain/>", "<cookie/>", 100)
	change := func(offset int, value uint32) []byte {
		file := bytes.Clone(good)
		binary.NativeEndian.PutUint32(file[offset:], value)
		return file
	}
	for name, file := range map[string][]byte{
		"empty":              {},
		"cut in the head":    good[:50],
		"cut in the data":    good[:100],
		"partial":            saveFile(saveMagicPartial, 2, 1, "<domain/>", "", 0),
		"another magic":      saveFile("LibvirtQemudSav2", 2, 1, "<domain/>", "", 0),
		"version 1":          change(16, 1),
		"version 3":          change(16, 3),
		"other byte order":   change(16, 2<<24),
		"no data":            change(20, 0),
		"huge data":          change(20, 1<<31),
		"cookie beyond data": change(32, 5000),
		"cookie inside XML":  change(32, 3),
		"no NUL":             saveFile(saveMagic, 2, 1, "<domain/>", "", 0)[:saveHeadLength],
	} {
		if s, err := readSaveHead(bytes.NewReader(file)); err == nil {
			t.Errorf("%s: taken as %+v", name, s)
		}
	}
}

func FuzzSaveHead(f *testing.F) {
	f.Add(saveFile(saveMagic, 2, 1, "<domain/>", "<cookie/>", 100), "<domain>other</domain>")
	f.Add(saveFile(saveMagic, 2, 0, "<domain/>", "", 0), "")
	f.Add([]byte(saveMagic), "x")
	f.Fuzz(func(t *testing.T, file []byte, xml string) {
		s, err := readSaveHead(bytes.NewReader(file))
		if err != nil {
			return
		}
		if s.streamOffset() > int64(len(file)) {
			t.Fatalf("stream at %d of %d bytes", s.streamOffset(), len(file))
		}
		out, err := s.withXML(xml)
		if err != nil {
			return
		}
		again, err := readSaveHead(bytes.NewReader(out))
		if err != nil || again.xml != xml || !bytes.Equal(again.cookie, s.cookie) || again.length != s.length {
			t.Fatalf("%q came back as %+v, %v", xml, again, err)
		}
	})
}
