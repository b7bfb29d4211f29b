package vm

// saveimage.go - reads and writes the head of libvirt's save files. No other file knows this format, which libvirt does not promise to keep. (QEMU driver, save image version 2, as written by libvirt since 0.9.5.)
//
//	offset  0  magic          16 bytes, "LibvirtQemudSave"; "LibvirtQemudPart" while it is being written
//	       16  version         4 bytes, as are all further fields, in the host's byte order
//	       20  data length     of what follows the head, up to QEMU's stream
//	       24  was running     1: resume after restoring
//	       28  compressed      0: QEMU's stream is as QEMU wrote it
//	       32  cookie offset   within the data; 0: no cookie
//	       36  unused         56 bytes
//	       92  data: the domain's XML, NUL; the cookie, NUL; NULs (about 64 KiB, which leaves room to change the XML)
//	       92 + data length    QEMU's stream

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

const (
	saveMagic        = "LibvirtQemudSave"
	saveMagicPartial = "LibvirtQemudPart"
	saveVersion      = 2
	saveHeadLength   = 92
	// saveDataLimit is far above the size of any domain's XML. A file with a greater length is no save file.
	saveDataLimit = 16 << 20
)

// saveHead is the head and the data of a save file.
type saveHead struct {
	head   [saveHeadLength]byte
	length int // of the data
	xml    string
	cookie []byte // without its NUL; nil: none
}

// readSaveHead reads head and data, and checks their format.
func readSaveHead(r io.Reader) (*saveHead, error) {
	s := &saveHead{}
	if _, err := io.ReadFull(r, s.head[:]); err != nil {
		return nil, fmt.Errorf("read the head of the save file: %w", err)
	}
	switch magic := string(s.head[:16]); magic {
	case saveMagic:
	case saveMagicPartial:
		return nil, errors.New("the save file was not finished")
	default:
		return nil, fmt.Errorf("not a save file of libvirt's: it begins with %q", magic)
	}
	if version := s.field(16); version != saveVersion {
		return nil, fmt.Errorf("the save file is of version %d; only %d is known", version, saveVersion)
	}
	length, cookie := s.field(20), s.field(32)
	if length == 0 || length > saveDataLimit || cookie >= length {
		return nil, fmt.Errorf("the save file's data length %d or cookie offset %d cannot be", length, cookie)
	}
	data := make([]byte, length)
	if _, err := io.ReadFull(r, data); err != nil {
		return nil, fmt.Errorf("read the domain in the save file: %w", err)
	}
	s.length = int(length)
	return s, s.split(data, int(cookie))
}

// split finds XML and cookie. Each ends with a NUL, and only NULs may follow them.
func (s *saveHead) split(data []byte, cookie int) error {
	text := data
	rest := []byte(nil)
	if cookie > 0 {
		text, rest = data[:cookie], data[cookie:]
	}
	xml, after, ended := bytes.Cut(text, []byte{0})
	if !ended || len(bytes.Trim(after, "\x00")) > 0 {
		return errors.New("the domain in the save file does not end where it should")
	}
	s.xml = string(xml)
	if rest != nil {
		s.cookie, after, ended = bytes.Cut(rest, []byte{0})
		if !ended || len(bytes.Trim(after, "\x00")) > 0 {
			return errors.New("the cookie in the save file does not end where it should")
		}
	}
	return nil
}

// saveRoom is the room that libvirt leaves in its save files to change the XML.
const saveRoom = 64 << 10

// newSaveHead returns head and data of a save file for the domain with this XML, to be followed by QEMU's stream.
func newSaveHead(xml string) []byte {
	out := make([]byte, saveHeadLength+len(xml)+1+saveRoom)
	copy(out, saveMagic)
	binary.NativeEndian.PutUint32(out[16:], saveVersion)
	binary.NativeEndian.PutUint32(out[20:], uint32(len(out)-saveHeadLength))
	binary.NativeEndian.PutUint32(out[24:], 1) // it ran
	copy(out[saveHeadLength:], xml)
	return out
}

// streamOffset is where QEMU's stream begins in the file.
func (s *saveHead) streamOffset() int64 { return saveHeadLength + int64(s.length) }

// withXML returns head and data with another domain's XML. They have the same length as before, so that they can
// replace the old ones in front of QEMU's stream.
func (s *saveHead) withXML(xml string) ([]byte, error) {
	if bytes.IndexByte([]byte(xml), 0) >= 0 {
		return nil, errors.New("the domain has a NUL in it")
	}
	need := len(xml) + 1
	if s.cookie != nil {
		need += len(s.cookie) + 1
	}
	if need > s.length {
		return nil, fmt.Errorf("the domain needs %d bytes, and the save file has room for %d", need, s.length)
	}
	out := make([]byte, saveHeadLength+s.length)
	copy(out, s.head[:])
	data := out[saveHeadLength:]
	copy(data, xml)
	if s.cookie != nil {
		copy(data[len(xml)+1:], s.cookie)
		binary.NativeEndian.PutUint32(out[32:], uint32(len(xml)+1))
	}
	return out, nil
}

func (s *saveHead) field(offset int) uint32 { return binary.NativeEndian.Uint32(s.head[offset:]) }
