package cli

import "fmt"

// Exit statuses of watari. `watari run` and `watari guest exec` end with the program's exit status.
const (
	StatusOK          = 0
	StatusFailed      = 1
	StatusUsage       = 2
	StatusInterrupted = 130 // 128 + SIGINT
)

// Exit ends the program with a status. Err may be nil if the message has been printed already.
type Exit struct {
	Code int
	Err  error
}

func (e *Exit) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("exit status %d", e.Code)
	}
	return e.Err.Error()
}
func (e *Exit) Unwrap() error { return e.Err }

// Usagef returns an error for a mistake in the command line.
func Usagef(format string, args ...any) error {
	return &Exit{Code: StatusUsage, Err: fmt.Errorf(format, args...)}
}

// Interruptedf ends the program with status 130 and a message that says what continues and how to look at it.
func Interruptedf(format string, args ...any) error {
	return &Exit{Code: StatusInterrupted, Err: fmt.Errorf(format, args...)}
}
