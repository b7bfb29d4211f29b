package image

import (
	"strings"
	"testing"
)

func TestAnotherSuiteComesFromTheMirrorsOfThisMachine(t *testing.T) {
	known := "Debian\tbookworm\thttp://mirror.example/debian/\tmain\n" +
		"Debian\tbookworm\thttp://mirror.example/debian/\tmain\n" +
		"Debian\tbookworm-updates\thttp://mirror.example/debian/\tmain\n" +
		"Debian Backports\tbookworm-backports\thttp://mirror.example/debian/\tmain\n" +
		"Debian-Security\tbookworm-security\thttp://security.example/debian-security/\tmain\n" +
		"Other\tbookworm\thttps://apt.example/\tmain\n"
	want := []string{
		"deb [signed-by=" + debianKeys + "] http://mirror.example/debian/ trixie main",
		"deb [signed-by=" + debianKeys + "] http://mirror.example/debian/ trixie-updates main",
		"deb [signed-by=" + debianKeys + "] http://security.example/debian-security/ trixie-security main",
	}
	if got := suiteSources(known, "bookworm", "trixie"); got != strings.Join(want, "\n")+"\n" {
		t.Errorf("got\n%s", got)
	}
	if got := suiteSources("Ubuntu\tjammy\thttp://mirror.example/ubuntu/\tmain\n", "jammy", "trixie"); got != "" {
		t.Errorf("a mirror of another distribution has Debian's suites: %s", got)
	}
}

func TestOnlyKnownSuitesAreBuilt(t *testing.T) {
	for suite, good := range map[string]bool{"": true, "bookworm": true, "trixie": true, "sid": false, "-o": false, "trixie main": false} {
		if err := checkSuite(suite); (err == nil) != good {
			t.Errorf("suite %q: %v", suite, err)
		}
	}
}

func TestTheLauncherOfOpenMPI5IsFound(t *testing.T) {
	for name, want := range map[string]string{"libprrte.so.3": "prrte", "prterun": "prrte", "libopen-pal.so.80": "openmpi", "mpirun": ""} {
		if got := mpiOf(name); got != want {
			t.Errorf("%s is of %q, not %q", name, got, want)
		}
	}
}
