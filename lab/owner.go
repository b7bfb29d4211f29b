// Playing the owner of a host: keeping the CPUs busy, typing on a terminal, going away.

package lab

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"watari/internal/utmp"
)

// OwnerActivity is something that the owner of a host does.
type OwnerActivity string

// The owner's activities. OwnerAway ends the other two.
const (
	OwnerBusy  OwnerActivity = "busy"  // a process outside Watari computes
	OwnerTypes OwnerActivity = "types" // somebody is logged in and types
	OwnerAway  OwnerActivity = "away"
)

// OwnerActivities are all activities.
var OwnerActivities = []OwnerActivity{OwnerBusy, OwnerTypes, OwnerAway}

const (
	// ownerDir is the host's directory with one file for each activity, which holds the id of its process. The
	// directory is lost in a crash, like the processes.
	ownerDir = "/run/watari-owner"
	// ownerUser is the user who is logged in, and ownerID that user's number, by which hosts tell people's processes from
	// daemons'. The user need not be in /etc/passwd.
	ownerUser = "owner"
	ownerID   = "1000"
	// ownerGroup is the control group of the processes on a host with a systemd of its own.
	ownerGroup = "/sys/fs/cgroup/user.slice/watari-owner.scope"
	// sessionID marks the owner's entry in utmp.
	sessionID = "wtro"
)

// ownerStartScript starts $1 as the owner, in a session that outlives the shell, and writes its process id to the file
// $0.
const ownerStartScript = `mkdir -p ` + ownerDir + ` && chown ` + ownerID + ` ` + ownerDir + ` && cd / || exit
[ ! -d /run/systemd/system ] || mkdir -p ` + ownerGroup + ` || exit
sh -c '[ ! -d /run/systemd/system ] || echo $$ >` + ownerGroup + `/cgroup.procs
exec setsid setpriv --reuid=` + ownerID + ` --regid=` + ownerID + ` --clear-groups sh -c "$0" watari-owner' "$1" </dev/null >/dev/null 2>&1 &
echo $! >` + ownerDir + `/"$0"`

var ownerScripts = map[OwnerActivity]string{
	OwnerBusy: `while :; do :; done`,
	// cat reads each line from the terminal at once. The kernel notes that time as the terminal's last input.
	OwnerTypes: `while sleep 1; do echo; done | script -qc 'tty >` + ownerDir + `/tty; echo $$ >` + ownerDir + `/session; exec cat >/dev/null' /dev/null`,
}

// Owner starts an activity of the owner of a running host. Earlier activities go on, except with OwnerAway.
func (l *Lab) Owner(ctx context.Context, name string, does OwnerActivity) error {
	if !slices.Contains(OwnerActivities, does) {
		return fmt.Errorf("owner of host %s: %q is none of %v", name, does, OwnerActivities)
	}
	unlock, _, err := l.lockHost(ctx, name)
	if err != nil {
		return err
	}
	defer unlock()
	if l.hostProcess(name) == 0 {
		return l.down(name)
	}
	switch {
	case does == OwnerAway:
		if err = l.stopOwner(ctx, name); err == nil {
			err = l.applyShare(ctx, name, false)
		}
	case !slices.Contains(l.ownerActivities(name), does):
		err = l.startOwner(ctx, name, does)
	}
	if err != nil {
		return fmt.Errorf("play the owner of host %s: %w", name, err)
	}
	return nil
}

func (l *Lab) startOwner(ctx context.Context, name string, does OwnerActivity) error {
	if err := l.applyShare(ctx, name, true); err != nil {
		return err
	}
	if _, err := l.inHost(name, "", "sh", "-c", ownerStartScript, string(does), ownerScripts[does]); err != nil {
		return err
	}
	if does != OwnerTypes {
		return nil
	}
	var terminal string
	var session int
	err := waitFor(ctx, 30*time.Second, "owner's terminal", func() bool {
		terminal = l.readWord(name, ownerDir+"/tty")
		session, _ = strconv.Atoi(l.readWord(name, ownerDir+"/session"))
		return terminal != "" && session != 0
	})
	if err != nil {
		return err
	}
	return l.logIn(name, utmp.Entry{Kind: utmp.UserProcess, PID: session, Line: strings.TrimPrefix(terminal, "/dev/"), User: ownerUser, At: time.Now()})
}

// stopOwner ends the owner's activities and the owner's session.
func (l *Lab) stopOwner(ctx context.Context, name string) error {
	for _, does := range l.ownerActivities(name) {
		group := l.readWord(name, ownerDir+"/"+string(does))
		if _, err := l.inHost(name, "", "sh", "-c", `kill -KILL "-$0"`, group); err != nil {
			return err
		}
	}
	err := waitFor(ctx, 30*time.Second, "owner's processes to end", func() bool { return len(l.ownerActivities(name)) == 0 })
	if err != nil {
		return err
	}
	if l.readWord(name, ownerDir+"/session") != "" {
		if err := l.logIn(name, utmp.Entry{Kind: utmp.DeadProcess}); err != nil {
			return err
		}
	}
	_, err = l.inHost(name, "", "rm", "-rf", ownerDir)
	return err
}

// ownerListScript prints the current activities.
const ownerListScript = `cd ` + ownerDir + ` 2>/dev/null || exit 0
for does in ` + string(OwnerBusy) + ` ` + string(OwnerTypes) + `; do
	[ -e $does ] && kill -0 "$(cat $does)" 2>/dev/null && echo $does
done
true`

// ownerActivities returns the current activities of the owner of a running host; none if the host does not answer.
func (l *Lab) ownerActivities(name string) (does []OwnerActivity) {
	out, _ := l.inHost(name, "", "sh", "-c", ownerListScript)
	for word := range strings.FieldsSeq(out) {
		does = append(does, OwnerActivity(word))
	}
	return does
}

// readWord returns the trimmed content of a host's file; empty if there is no such file.
func (l *Lab) readWord(name, path string) string {
	out, _ := l.inHost(name, "", "cat", path)
	return strings.TrimSpace(out)
}

// inHost runs a command in a host with the given input, and returns its output.
func (l *Lab) inHost(name, input string, argv ...string) (string, error) {
	command := l.Command(name, argv...)
	command.Stdin = strings.NewReader(input)
	var out, errors bytes.Buffer
	command.Stdout, command.Stderr = &out, &errors
	if err := command.Run(); err != nil {
		return "", fmt.Errorf("%s: %w: %s", argv[0], err, bytes.TrimSpace(errors.Bytes()))
	}
	return out.String(), nil
}

// logIn writes the entry into the host's /run/utmp.
func (l *Lab) logIn(name string, entry utmp.Entry) error {
	before, err := l.inHost(name, "", "sh", "-c", "[ ! -e /run/utmp ] || cat /run/utmp")
	if err != nil {
		return err
	}
	_, err = l.inHost(name, string(withLogin([]byte(before), entry)), "sh", "-c", "cat >/run/utmp")
	return err
}

// withLogin returns a utmp file in which the entry replaces the owner's earlier one.
func withLogin(file []byte, entry utmp.Entry) []byte {
	entry.ID = sessionID
	for i, before := range utmp.Parse(file) {
		if before.ID == sessionID {
			return slices.Concat(file[:i*utmp.Size], entry.Bytes(), file[(i+1)*utmp.Size:])
		}
	}
	return slices.Concat(file[:len(file)/utmp.Size*utmp.Size], entry.Bytes())
}
