// Package gate filters calls to a host's libvirt daemon. In a migration, the source's daemon calls the target's daemon. A
// caller of that daemon may do everything on the host. So the gate passes only the calls of a migration, for the expected
// guest, and replaces the guest's description with the one that this host makes.
package gate

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"

	xdr "github.com/stellar/go-xdr/xdr3"
)

// Guest is the expected guest.
type Guest struct {
	Domain string // libvirt's name of the guest
	Socket string // where QEMU is to listen for the guest's memory
	// Describe takes the source's description, and returns the one to use. An error refuses the migration.
	Describe func(xml string) (string, error)
}

// head begins each of libvirt's messages (libvirt, docs/internals/rpc.html). Length is that of the whole message.
type head struct {
	Length, Program, Version uint32
	Procedure, Type          int32
	Serial                   uint32
	Status                   int32
}

const (
	headSize = 28
	// mostMessage bounds a message, bytes. The largest message has a guest's description twice, and statistics.
	mostMessage = 256 << 10
	// Programs (libvirt, src/remote/remote_protocol.x and src/rpc/virkeepaliveprotocol.x).
	remoteProgram    = 0x20008086
	keepaliveProgram = 0x6b656570
	protocolVersion  = 1
	// Types.
	typeCall    = 0
	typeReply   = 1
	typeMessage = 2
	// The status and the error code of an answer to a failed call; the code is VIR_ERR_OPERATION_DENIED.
	statusError = 1
	errDenied   = 29
	levelError  = 2
)

// The procedures of a migration between two daemons (REMOTE_PROC_*).
const (
	connectOpen            = 1
	connectClose           = 2
	connectSupportsFeature = 60
	authList               = 66
	migratePrepare         = 303 // DOMAIN_MIGRATE_PREPARE3_PARAMS
	migrateFinish          = 306 // DOMAIN_MIGRATE_FINISH3_PARAMS
	registerCloseCallback  = 360
	forgetCloseCallback    = 361
)

// driver is the driver to which the source connects.
const driver = "qemu:///system"

// mayFlags are the permitted flags of a migration (VIR_MIGRATE_*): live, peer to peer, paused, auto-converge. Other flags
// would keep the domain's description on the host, copy disks to it, or more.
const mayFlags = 1<<0 | 1<<1 | 1<<5 | 1<<13

// RefusedError describes a message that is no part of the expected migration.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string {
	return "what the source asks of libvirt is no part of the migration: " + e.Reason
}

func refused(format string, a ...any) error { return &RefusedError{fmt.Sprintf(format, a...)} }

// Pass copies messages from the source to the daemon until the source ends. From the first message that is no part of the
// migration, it passes no messages. It then calls refuse for each message with the daemon's answer to a refused call, which
// tells the source the reason; the answer to a message that is no call is nil. In the end it returns a RefusedError.
func (g Guest) Pass(to io.Writer, from io.Reader, refuse func(answer []byte)) error {
	var refusal error
	for {
		message, err := ReadMessage(from, mostMessage)
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return cmp.Or(refusal, err)
		}
		if refusal == nil {
			pass, err := g.check(message)
			if err == nil {
				if _, err := to.Write(pass); err != nil {
					return err
				}
				continue
			}
			refusal = err
		}
		refuse(refusalOf(message, refusal))
	}
}

// ReadMessage reads a message of at most most bytes.
func ReadMessage(from io.Reader, most uint32) ([]byte, error) {
	var size [4]byte
	if _, err := io.ReadFull(from, size[:]); err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(size[:])
	if length < headSize || length > most {
		return nil, refused("a message of %d bytes", length)
	}
	message := make([]byte, length)
	copy(message, size[:])
	_, err := io.ReadFull(from, message[4:])
	return message, err
}

// check returns the message to pass, or an error if the message must be refused.
func (g Guest) check(message []byte) ([]byte, error) {
	var h head
	if _, err := binary.Decode(message, binary.BigEndian, &h); err != nil {
		return nil, err
	}
	body := message[headSize:]
	if h.Program == keepaliveProgram && h.Type == typeMessage && len(body) == 0 {
		return message, nil
	}
	if h.Program != remoteProgram || h.Version != protocolVersion || h.Type != typeCall {
		return nil, refused("a message of type %d for program %#x, version %d", h.Type, h.Program, h.Version)
	}
	switch h.Procedure {
	case authList, connectClose, registerCloseCallback, forgetCloseCallback:
		if len(body) == 0 {
			return message, nil
		}
	case connectSupportsFeature:
		if len(body) == 4 {
			return message, nil
		}
	case connectOpen:
		if opens(body) {
			return message, nil
		}
	case migratePrepare:
		changed, err := g.migration(body, 0)
		return framed(h, changed), err
	case migrateFinish:
		changed, err := g.migration(body, 4) // 4 more bytes: whether the migration was cancelled
		return framed(h, changed), err
	default:
		return nil, refused("it calls procedure %d", h.Procedure)
	}
	return nil, refused("it calls procedure %d with other arguments", h.Procedure)
}

// refusalOf returns the answer that refuses a call; nil: the message is no call.
func refusalOf(message []byte, why error) []byte {
	var h head
	if _, err := binary.Decode(message, binary.BigEndian, &h); err != nil || h.Type != typeCall {
		return nil
	}
	// An error (remote_error) has: a code, a part of libvirt, optional a text, a level, optional a domain and three more texts, two
	// numbers, optional a network.
	var body bytes.Buffer
	out := xdr.NewEncoder(&body)
	for _, part := range []any{int32(errDenied), int32(0), true, why.Error(), int32(levelError), false, false, false, false, int32(0), int32(0), false} {
		if _, err := out.Encode(part); err != nil {
			return nil
		}
	}
	h.Type, h.Status = typeReply, statusError
	return framed(h, body.Bytes())
}

// opens reports whether the arguments of connectOpen (an optional name, and flags) are those of a migration.
func opens(body []byte) bool {
	from := bytes.NewReader(body)
	in := xdr.NewDecoder(from)
	named, _, err1 := in.DecodeBool()
	name, _, err2 := in.DecodeString(mostMessage)
	flags, _, err3 := in.DecodeUint()
	return errors.Join(err1, err2, err3) == nil && from.Len() == 0 && named && name == driver && flags == 0
}

func framed(h head, body []byte) []byte {
	h.Length = uint32(headSize + len(body))
	message, err := binary.Append(nil, binary.BigEndian, h)
	if err != nil {
		panic(err) // unreachable: a head has only numbers
	}
	return append(message, body...)
}

const (
	// Types of parameters (VIR_TYPED_PARAM_*).
	typeInt    = 1
	typeULLong = 4
	typeText   = 7
	mostParams = 8
)

// numbers are the numeric parameters, with their types. They tell how fast the source sends.
var numbers = map[string]uint32{"bandwidth": typeULLong, "bandwidth.postcopy": typeULLong, "auto_converge.initial": typeInt, "auto_converge.increment": typeInt}

// migration checks the arguments of migratePrepare and migrateFinish: parameters, a cookie, flags, and rest more bytes. It
// returns them with the description to use. It does not check the cookie, which has statistics, the CPU and capabilities:
// the flags determine what libvirt does with it.
func (g Guest) migration(body []byte, rest int) ([]byte, error) {
	from, to := bytes.NewReader(body), new(bytes.Buffer)
	in, out := xdr.NewDecoder(from), xdr.NewEncoder(to)
	number := func() (uint32, error) {
		n, _, err := in.DecodeUint()
		return n, err
	}
	count, err := number()
	if err != nil || count > mostParams {
		return nil, refused("a migration has %d parameters", count)
	}
	_, _ = out.EncodeUint(count) // a buffer accepts all writes
	var seen []string
	for range count {
		name, _, err := in.DecodeString(mostMessage)
		kind, err2 := number()
		numeric := numbers[name] == kind && kind != 0
		if err != nil || err2 != nil || !numeric && kind != typeText || slices.Contains(seen, name) {
			return nil, refused("a migration has a parameter %q of type %d", name, kind)
		}
		seen = append(seen, name)
		_, _ = out.EncodeString(name)
		_, _ = out.EncodeUint(kind)
		if numeric {
			value, _, err := in.DecodeFixedOpaque(map[uint32]int32{typeInt: 4, typeULLong: 8}[kind])
			if err != nil {
				return nil, refused("the parameter %s of a migration cannot be read: %v", name, err)
			}
			_, _ = out.EncodeFixedOpaque(value)
			continue
		}
		text, _, err := in.DecodeString(mostMessage)
		if err != nil {
			return nil, refused("the parameter %s of a migration cannot be read: %v", name, err)
		}
		if text, err = g.parameter(name, text); err != nil {
			return nil, err
		}
		_, _ = out.EncodeString(text)
	}
	cookie, _, err := in.DecodeOpaque(mostMessage)
	if err != nil {
		return nil, refused("the cookie of a migration cannot be read: %v", err)
	}
	flags, err := number()
	if err != nil || flags&^mayFlags != 0 {
		return nil, refused("a migration has the flags %#x", flags)
	}
	if from.Len() != rest {
		return nil, refused("a migration has %d bytes more, not %d", from.Len(), rest)
	}
	if rest == 0 && (!slices.Contains(seen, "destination_xml") || !slices.Contains(seen, "migrate_uri")) {
		return nil, refused("a migration has no description or no address")
	}
	if rest > 0 && !slices.Contains(seen, "destination_name") {
		return nil, refused("a migration that ends has no name")
	}
	_, _ = out.EncodeOpaque(cookie)
	_, _ = out.EncodeUint(flags)
	return append(to.Bytes(), body[len(body)-rest:]...), nil
}

// parameter returns the text to use for a text parameter of the migration.
func (g Guest) parameter(name, text string) (string, error) {
	switch name {
	case "destination_xml":
		described, err := g.Describe(text)
		if err != nil {
			return "", refused("%v", err)
		}
		return described, nil
	case "destination_name":
		if text != g.Domain {
			return "", refused("it is about domain %q, not %s", text, g.Domain)
		}
	case "migrate_uri":
		if text != "unix://"+g.Socket {
			return "", refused("QEMU is to listen at %q", text)
		}
	default:
		return "", refused("a migration has the parameter %q", name)
	}
	return text, nil
}
