package gate

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	xdr "github.com/stellar/go-xdr/xdr3"
)

// recorded returns all messages that a source's libvirt 9.0 sent to a target's in a migration.
func recorded(t testing.TB) []byte {
	t.Helper()
	text, err := os.ReadFile("testdata/migration-libvirt-9.0")
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func expected() Guest {
	return Guest{Domain: "watari-md-0", Socket: "/run/libvirt/watari/m.tunnelmigrate.dest.watari-md-0",
		Describe: func(xml string) (string, error) { return xml, nil }}
}

func TestAMigrationPasses(t *testing.T) {
	all := recorded(t)
	var passed bytes.Buffer
	if err := expected().Pass(&passed, iotest.OneByteReader(bytes.NewReader(all)), nil); err != nil || !bytes.Equal(passed.Bytes(), all) {
		t.Fatalf("%d of %d bytes: %v", passed.Len(), len(all), err)
	}
	// The host's own description replaces the source's everywhere.
	g := expected()
	g.Describe = func(string) (string, error) { return "<domain>ours</domain>", nil }
	passed.Reset()
	if err := g.Pass(&passed, bytes.NewReader(all), nil); err != nil || bytes.Contains(passed.Bytes(), []byte("<name>watari-md-0</name>\n  <uuid>833ba93c-f41b-870f-9e41-1f7513316b0a</uuid>\n  <genid>")) ||
		bytes.Count(passed.Bytes(), []byte("ours")) != 2 {
		t.Errorf("%v: the source's description is passed", err)
	}
	if err := expected().Pass(&bytes.Buffer{}, bytes.NewReader(passed.Bytes()), nil); err != nil {
		t.Errorf("what is passed is no migration any more: %v", err)
	}
}

// call makes a message.
func call(program uint32, kind, procedure int32, arguments ...any) []byte {
	var body bytes.Buffer
	for _, a := range arguments {
		if _, err := xdr.NewEncoder(&body).Encode(a); err != nil {
			panic(err)
		}
	}
	return framed(head{Program: program, Version: 1, Type: kind, Procedure: procedure}, body.Bytes())
}

func remote(procedure int32, arguments ...any) []byte {
	return call(remoteProgram, typeCall, procedure, arguments...)
}

// text is a parameter of a migration.
func text(name, value string) []any { return []any{name, uint32(typeText), value} }

// migrates makes the arguments of a migration.
func migrates(flags uint32, rest []any, parameters ...[]any) []any {
	list := []any{uint32(len(parameters))}
	for _, p := range parameters {
		list = append(list, p...)
	}
	return append(append(list, []byte("cookie"), flags), rest...)
}

// A stranger's source calls more of a target's libvirt than a migration needs.
func TestOtherCallsAreRefused(t *testing.T) {
	g := expected()
	xml, uri, name := text("destination_xml", "<domain/>"), text("migrate_uri", "unix://"+g.Socket), text("destination_name", g.Domain)
	cancelled := []any{int32(1)}
	for what, message := range map[string][]byte{
		"a migration begins":                   remote(migratePrepare, migrates(0x23, nil, xml, uri)...),
		"a migration is cancelled":             remote(migrateFinish, migrates(0x23, cancelled, xml, uri, name)...),
		"a sign of life":                       call(keepaliveProgram, typeMessage, 1),
		"bad: a domain is created":             remote(10, "<domain/>", uint32(0)),
		"bad: a domain is defined":             remote(11, "<domain/>"),
		"bad: domains are listed":              remote(273, int32(1), uint32(0)),
		"bad: a procedure that nobody has":     remote(1 << 30),
		"bad: a negative procedure":            remote(-1),
		"bad: QEMU's monitor":                  call(0x20008087, typeCall, 1, "x"),
		"bad: libvirt's administration":        call(0x06900690, typeCall, 1),
		"bad: a stream":                        call(remoteProgram, 3, migratePrepare, "x"),
		"bad: a call with descriptors":         call(remoteProgram, 4, connectClose),
		"bad: a reply":                         call(remoteProgram, 1, connectClose),
		"bad: another version":                 framed(head{Program: remoteProgram, Version: 2, Procedure: connectClose}, nil),
		"bad: another driver":                  remote(connectOpen, true, "test:///default", uint32(0)),
		"bad: another host":                    remote(connectOpen, true, "qemu+ssh://other/system", uint32(0)),
		"bad: any driver":                      remote(connectOpen, false, uint32(0)),
		"bad: a driver with flags":             remote(connectOpen, true, driver, uint32(1)),
		"bad: more than a name":                remote(connectOpen, true, driver, uint32(0), uint32(0)),
		"bad: a close with arguments":          remote(connectClose, uint32(0)),
		"bad: it keeps the domain":             remote(migratePrepare, migrates(0x23|1<<3, nil, xml, uri)...),
		"bad: it copies disks":                 remote(migratePrepare, migrates(0x23|1<<6, nil, xml, uri)...),
		"bad: it comes through libvirt":        remote(migratePrepare, migrates(0x23|1<<2, nil, xml, uri)...),
		"bad: a migration without description": remote(migratePrepare, migrates(0x23, nil, uri)...),
		"bad: a migration without address":     remote(migratePrepare, migrates(0x23, nil, xml)...),
		"bad: two descriptions":                remote(migratePrepare, migrates(0x23, nil, xml, xml, uri)...),
		"bad: QEMU listens to all":             remote(migratePrepare, migrates(0x23, nil, xml, text("migrate_uri", "tcp://0.0.0.0:1"))...),
		"bad: QEMU listens elsewhere":          remote(migratePrepare, migrates(0x23, nil, xml, text("migrate_uri", "unix:///run/x"))...),
		"bad: disks from elsewhere":            remote(migratePrepare, migrates(0x23, nil, xml, uri, text("disks_uri", "unix:///run/x"))...),
		"bad: a persistent description":        remote(migratePrepare, migrates(0x23, nil, xml, uri, text("persistent_xml", "<domain/>"))...),
		"a migration with a limit":             remote(migratePrepare, migrates(0x23, nil, xml, uri, []any{"bandwidth", uint32(typeULLong), uint64(8)}, []any{"auto_converge.initial", uint32(typeInt), int32(30)})...),
		"bad: a limit of another type":         remote(migratePrepare, migrates(0x23, nil, xml, uri, []any{"bandwidth", uint32(typeInt), int32(8)})...),
		"bad: another number":                  remote(migratePrepare, migrates(0x23, nil, xml, uri, []any{"disks_port", uint32(typeInt), int32(8)})...),
		"bad: half a number":                   remote(migratePrepare, uint32(1), "bandwidth", uint32(typeULLong), uint32(1)),
		"bad: more than a migration":           remote(migratePrepare, migrates(0x23, []any{uint32(0)}, xml, uri)...),
		"bad: very many parameters":            remote(migratePrepare, uint32(1<<31)),
		"bad: a migration of nothing":          remote(migratePrepare),
		"bad: another domain ends":             remote(migrateFinish, migrates(0x23, cancelled, xml, uri, text("destination_name", "watari-other"))...),
		"bad: no domain ends":                  remote(migrateFinish, migrates(0x23, cancelled, xml, uri)...),
		"bad: a sign of life with a body":      call(keepaliveProgram, typeMessage, 1, uint32(0)),
		"bad: a large message":                 remote(migratePrepare, make([]byte, mostMessage)),
		"bad: a message without an end":        {0, 0, 0, 4},
	} {
		var passed bytes.Buffer
		var answers [][]byte
		err := g.Pass(&passed, bytes.NewReader(append(message, remote(connectClose)...)), func(answer []byte) { answers = append(answers, answer) })
		var refusal *RefusedError
		if bad := strings.HasPrefix(what, "bad: "); bad != errors.As(err, &refusal) || bad == (passed.Len() > 0) || !bad && len(answers) > 0 {
			t.Errorf("%s: %d bytes passed, %v", what, passed.Len(), err)
		}
		for _, answer := range answers {
			if answer != nil && !bytes.Contains(answer, []byte(refusal.Reason)) {
				t.Errorf("%s: the source is told %q", what, answer)
			}
		}
	}
	g.Describe = func(string) (string, error) { return "", errors.New("it is another guest") }
	if err := g.Pass(&bytes.Buffer{}, bytes.NewReader(recorded(t)), func([]byte) {}); err == nil || !strings.Contains(err.Error(), "another guest") {
		t.Errorf("another guest's description: %v", err)
	}
}

func FuzzPass(f *testing.F) {
	all := recorded(f)
	f.Add(all)
	f.Add(all[:len(all)/2])
	f.Add(remote(migratePrepare, uint32(1<<31)))
	f.Fuzz(func(t *testing.T, data []byte) {
		var passed bytes.Buffer
		_ = expected().Pass(&passed, bytes.NewReader(data), func([]byte) {})
		for rest := passed.Bytes(); len(rest) > 0; { // only whole messages of permitted procedures pass
			size := binary.BigEndian.Uint32(rest)
			var h head
			if _, err := binary.Decode(rest, binary.BigEndian, &h); err != nil || int(size) > len(rest) {
				t.Fatalf("half a message: %v", err)
			}
			if h.Program == remoteProgram && !strings.Contains(" 1 2 60 66 303 306 360 361 ", " "+strconv.Itoa(int(h.Procedure))+" ") {
				t.Fatalf("procedure %d passes", h.Procedure)
			}
			rest = rest[size:]
		}
	})
}
