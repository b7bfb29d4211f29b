package rsh

import "testing"

func TestArgumentsAreReadAsSSHDoes(t *testing.T) {
	for _, test := range []struct {
		args []string
		want arguments
		ok   bool
	}{
		{[]string{"md-1", "hostname"}, arguments{"md-1", "hostname", false}, true},
		{[]string{"-x", "md-1", "PATH=/usr/bin:$PATH ;", "orted", "-mca", "ess", "env"}, arguments{"md-1", "PATH=/usr/bin:$PATH ; orted -mca ess env", false}, true},
		{[]string{"-l", "watari", "-T", "-n", "md-1", "true", "-n"}, arguments{"md-1", "true -n", true}, true},
		{[]string{"-lwatari", "md-1", "true"}, arguments{"md-1", "true", false}, true},
		{[]string{"md-1", "-l", "watari", "-n", "true"}, arguments{"md-1", "true", true}, true},
		{[]string{"-o", "BatchMode=yes", "watari@md-1", "--", "echo", "-n"}, arguments{"md-1", "echo -n", false}, true},
		{[]string{"-xnT", "md-1", "true"}, arguments{"md-1", "true", true}, true},
		{[]string{"md-1"}, arguments{host: "md-1"}, false},
		{[]string{}, arguments{}, false},
		{[]string{"-l"}, arguments{}, false},
	} {
		got, err := parse(test.args)
		if got != test.want || (err == nil) != test.ok {
			t.Errorf("%q: %+v, %v", test.args, got, err)
		}
	}
}
