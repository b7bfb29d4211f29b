package root_test

// hostile_test.go - texts that hosts, guests and other users choose, on a person's terminal.

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"connectrpc.com/connect"
	"github.com/creack/pty"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "watari/api/watariv1"
	"watari/cmd/internal/cli"
	"watari/cmd/internal/stub"
	"watari/cmd/watari/root"
)

// hostile sets a terminal's title and clears the screen, with two forms of the control sequence. It also turns the direction
// of writing.
const hostile = "\x1b]0;x\a\x1b[2J\u009b2J\u202e"

// poison writes hostile text into each string of a message, except the names of objects, which the manager checks.
func poison(m protoreflect.Message) {
	m.Range(func(field protoreflect.FieldDescriptor, value protoreflect.Value) bool {
		text := field.Kind() == protoreflect.StringKind && (field.Name() != "name" || m.Descriptor().Name() != "Meta")
		switch {
		case field.IsList():
			list := value.List()
			for i := range list.Len() {
				if field.Message() != nil {
					poison(list.Get(i).Message())
				} else if text {
					list.Set(i, protoreflect.ValueOfString(hostile+list.Get(i).String()))
				}
			}
		case field.IsMap():
		case field.Message() != nil:
			if !strings.HasPrefix(string(field.Message().FullName()), "google.protobuf.") {
				poison(value.Message())
			}
		case text:
			m.Set(field, protoreflect.ValueOfString(hostile+value.String()))
		}
		return true
	})
}

func poisoned[M proto.Message](m M) M {
	m = proto.CloneOf(m)
	poison(m.ProtoReflect())
	return m
}

// hostileManager answers each call with hostile text, also in its refusals.
func hostileManager(t *testing.T) *stub.Manager {
	refusal := connect.NewError(connect.CodeFailedPrecondition, errors.New("refused: "+hostile))
	return (&stub.Manager{
		Unary: func(ctx context.Context, request any) (any, error) {
			answer, err := answers(ctx, request)
			if failed := (*connect.Error)(nil); errors.As(err, &failed) {
				return nil, connect.NewError(failed.Code(), errors.New(failed.Message()+hostile))
			}
			if m, is := answer.(proto.Message); is && err == nil {
				return poisoned(m), nil
			}
			return answer, err
		},
		OnEvents: func(_ context.Context, _ *v1.EventsRequest, send func(*v1.EventsResponse) error) error {
			return send(poisoned(&v1.EventsResponse{Event: &v1.Event{Id: 1, At: ago(time.Minute), Kind: "guest", Name: "md-0", Actor: "aiko", Message: "exec as root: "}}))
		},
		OnAudit: func(_ context.Context, _ *v1.AuditRequest, send func(*v1.AuditResponse) error) error {
			return send(poisoned(&v1.AuditResponse{Entry: &v1.AuditEntry{At: ago(time.Minute), Caller: "user aiko", Address: "192.0.2.7:1", Call: "GetFile", Object: "x", Error: "no"}}))
		},
		OnWatch: func(_ context.Context, _ *v1.WatchRequest, send func(*v1.WatchResponse) error) error {
			return errors.Join(send(poisoned(starting(0, guestStarting, guestStarting))), send(poisoned(starting(2, guestRunning, guestRunning))))
		},
		OnRunOutput: func(_ context.Context, _ *v1.RunOutputRequest, send func(*v1.RunOutputResponse) error) error {
			return send(output("", "", ended(v1.RunState_RUN_STATE_EXITED, 1, hostile)))
		},
		OnConsole: func(context.Context, *v1.GuestConsoleRequest, func(*v1.GuestConsoleResponse) error) error {
			return refusal
		},
		OnGetFile: func(context.Context, *v1.ControlGetFileRequest, func(*v1.ControlGetFileResponse) error) error {
			return refusal
		},
		OnPutFile: func(*v1.ControlPutFileRequest, []byte) error { return refusal },
		OnExec: func(_ context.Context, calls *connect.BidiStream[v1.GuestExecRequest, v1.GuestExecResponse]) error {
			first, err := calls.Receive()
			if err != nil {
				return err
			}
			if first.GetStart().GetCommand()[0] == "absent" {
				return refusal
			}
			return calls.Send(&v1.GuestExecResponse{Output: &v1.AttachResponse{Ended: &v1.Process{ExitCode: 1, Message: hostile}}})
		},
	}).Start(t)
}

// Only the output of programs, files, and a console that is written to a file come as the guest has written them.
func TestEachCommandQuotesTheTextsOfOthers(t *testing.T) {
	manager := hostileManager(t)
	commands := []string{"events", "audit", "guest console md-0", "guest exec md-0 -- absent", "guest exec md-0 -- false", "guest cp md-0:/x -", "guest cp hostile_test.go md-0:/x",
		"run logs md-run-1", "run attach md-run-1", "cluster create md --image mpi --wait"}
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dialogues: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if words, is := strings.CutPrefix(line, "$ watari "); is {
				commands = append(commands, strings.TrimSpace(words))
			}
		}
	}
	quoted := 0
	for _, command := range commands {
		for _, format := range []string{"table", "json", "yaml"} {
			before, after, program := strings.Cut(command, " -- ")
			args := append(strings.Fields(before), "--output", format)
			if program {
				args = append(append(args, "--"), strings.Fields(after)...)
			}
			result := manager.Run(t, args...)
			for _, text := range []string{result.Out, result.Err} {
				if i := strings.IndexFunc(text, func(r rune) bool {
					return r != '\n' && r != '\t' && (unicode.IsControl(r) || format != "yaml" && !unicode.IsPrint(r))
				}); i >= 0 {
					t.Errorf("watari %s: wrote %.60q", strings.Join(args, " "), text[max(0, i-20):])
				}
				if strings.Contains(text, `\x1b]0;`) || strings.Contains(text, `\u001b]0;`) || strings.Contains(text, `\e]0;`) {
					quoted++
				}
			}
		}
	}
	if quoted < len(commands) {
		t.Errorf("of %d commands, only %d outputs have the text at all", len(commands), quoted)
	}
}

func TestProgressOnATerminalQuotesTheTextsOfOthers(t *testing.T) {
	manager := hostileManager(t)
	screen, terminal, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer screen.Close()
	var shown bytes.Buffer
	read := make(chan struct{})
	go func() {
		defer close(read)
		io.Copy(&shown, screen)
	}()
	env := &cli.Env{In: strings.NewReader(""), Out: terminal, Err: terminal, Signals: make(chan os.Signal), Now: time.Now}
	status := root.Main(t.Context(), env, []string{"--config", save(t, manager.Config()), "cluster", "create", "md", "--image", "mpi", "--wait"})
	terminal.Close()
	<-read
	if text := shown.String(); status != 0 || strings.Contains(text, "\x1b]0;") || strings.Contains(text, "\u009b") || !strings.Contains(text, `\x1b]0;`) {
		t.Errorf("status %d, the terminal gets %q", status, text)
	}
}
