package controller

import (
	"slices"
	"strings"
	"testing"

	v1 "watari/api/watariv1"
)

func TestLaunchersAndTheirEnvironment(t *testing.T) {
	spec := &v1.RunSpec{Command: []string{"lmp", "-in", "a b"}, Env: map[string]string{"OMP_NUM_THREADS": "1", "UCX_TLS": "tcp"},
		TagOutput: true, LauncherArgs: []string{"-v"}}
	for _, test := range []struct {
		mpi          []string
		command, env string
	}{
		{[]string{"openmpi"}, "mpirun -n 4 --tag-output -x OMP_NUM_THREADS -x UCX_TLS -v lmp -in a b", "OMPI_MCA_plm_rsh_agent=" + guestAgent + " rsh"},
		{[]string{"mpich", "openmpi"}, "mpirun -n 4 --tag-output -x OMP_NUM_THREADS -x UCX_TLS -v lmp -in a b", "OMPI_MCA_orte_default_hostfile=" + hostfile},
		{nil, "mpirun -n 4 --tag-output -x OMP_NUM_THREADS -x UCX_TLS -v lmp -in a b", "OMPI_MCA_pml=ob1"},
		{[]string{"mpich"}, "mpiexec.hydra -n 4 -prepend-rank -v lmp -in a b", "HYDRA_LAUNCHER_EXEC=" + guestAgent + "-rsh"},
	} {
		command, env := launch(test.mpi, spec, 4)
		if got := strings.Join(command, " "); got != test.command {
			t.Errorf("%v: %s", test.mpi, got)
		}
		for _, want := range []string{test.env, "OMP_NUM_THREADS=1", "UCX_TLS=tcp"} {
			if !slices.Contains(env, want) {
				t.Errorf("%v: no %s in %v", test.mpi, want, env)
			}
		}
		if slices.Contains(env, "UCX_TLS=self,sm,tcp") {
			t.Errorf("%v: a default stands beside what the run asks for", test.mpi)
		}
	}
}
