// Package rsh runs a command in another guest of the cluster as rsh and ssh would, through the guest agents:
// it is what MPI launchers (Open MPI's plm_rsh_agent, Hydra's launcher) call.
package rsh

import (
	"errors"
	"fmt"
	"strings"
)

// arguments is a launcher's request.
type arguments struct {
	host    string
	command string
	noInput bool // -n: standard input is /dev/null
}

// takesValue are the options of ssh that take a value.
const takesValue = "BbcDEeFIiJLlmOopQRSWw"

var errUsage = errors.New("usage: watari-guest rsh [options of rsh and ssh] HOST COMMAND [ARGUMENT...]")

// parse parses a command line like ssh's. It ignores all options except -n, because there is one user, no terminal and
// nothing to configure. Like ssh, it joins the command's words with blanks.
func parse(args []string) (arguments, error) {
	var a arguments
	for len(args) > 0 {
		arg := args[0]
		if arg == "--" || !strings.HasPrefix(arg, "-") || arg == "-" {
			if arg == "--" {
				args = args[1:]
			}
			if a.host != "" || len(args) == 0 {
				break
			}
			a.host, args = args[0], args[1:]
			continue
		}
		args = args[1:]
		for i := 1; i < len(arg); i++ {
			if arg[i] == 'n' {
				a.noInput = true
			}
			if strings.IndexByte(takesValue, arg[i]) >= 0 {
				if i == len(arg)-1 {
					if len(args) == 0 {
						return a, fmt.Errorf("option -%c has no value; %w", arg[i], errUsage)
					}
					args = args[1:]
				}
				break
			}
		}
	}
	if _, host, ok := strings.Cut(a.host, "@"); ok {
		a.host = host
	}
	a.command = strings.Join(args, " ")
	if a.host == "" || a.command == "" {
		return a, errUsage
	}
	return a, nil
}
