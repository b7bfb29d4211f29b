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
		{[]string{"openmpi"}, "mpirun -n 4 --tag-output -x OMP_NUM_THREADS -x UCX_TLS -v lmp -in a b", "OMPI_MCA_plm_rsh_agent=" + launcher},
		{[]string{"mpich", "openmpi"}, "mpirun -n 4 --tag-output -x OMP_NUM_THREADS -x UCX_TLS -v lmp -in a b", "OMPI_MCA_orte_default_hostfile=" + hostfile},
		{[]string{"openmpi", "prrte"}, "mpirun -n 4 --tag-output -x OMP_NUM_THREADS -x UCX_TLS -v lmp -in a b", "PRTE_MCA_prte_default_hostfile=" + hostfile},
		{nil, "mpirun -n 4 --tag-output -x OMP_NUM_THREADS -x UCX_TLS -v lmp -in a b", "OMPI_MCA_pml=ob1"},
		{[]string{"mpich"}, "mpiexec.hydra -n 4 -prepend-rank -v lmp -in a b", "HYDRA_LAUNCHER_EXEC=" + launcher},
	} {
		command, env := launch(test.mpi, spec, 4, "")
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

func TestARunOverPMHasItsParametersAndAKeyOfItsOwn(t *testing.T) {
	spec := &v1.RunSpec{Command: []string{"lmp"}, Transport: v1.Transport_TRANSPORT_PM, Env: map[string]string{"PM_RAILS": "udp", "PM_PATIENCE": "60"}}
	key := newJobKey()
	command, env := launch([]string{"openmpi"}, spec, 2, key)
	if got, want := strings.Join(command, " "),
		"mpirun -n 2 -x FI_PROVIDER -x FI_PROVIDER_PATH -x PM_JOB_KEY -x PM_PATIENCE -x PM_RAILS lmp"; got != want {
		t.Errorf("%s; want %s", got, want)
	}
	for _, want := range []string{"OMPI_MCA_pml=cm", "OMPI_MCA_mtl_ofi_provider_include=pm", "OMPI_MCA_btl=self", "OMPI_MCA_orte_default_hostfile=" + hostfile,
		"FI_PROVIDER_PATH=" + providers, "PM_JOB_KEY=" + key, "PM_RAILS=udp", "PM_PATIENCE=60"} {
		if !slices.Contains(env, want) {
			t.Errorf("no %s in %v", want, env)
		}
	}
	if _, env := launch([]string{"openmpi", "prrte"}, spec, 2, key); !slices.Contains(env, "OMPI_MCA_osc=^ucx") || !slices.Contains(env, "OMPI_MCA_pml=cm") {
		t.Errorf("Open MPI 5.0 has no osc/pt2pt: %v", env)
	}
	if len(key) != 64 || newJobKey() == key {
		t.Errorf("the key is %q, and not a fresh one each time", key)
	}
	for _, transport := range []v1.Transport{v1.Transport_TRANSPORT_UNSPECIFIED, v1.Transport_TRANSPORT_TCP} {
		spec := &v1.RunSpec{Command: []string{"lmp"}, Transport: transport}
		if command, env := launch(nil, spec, 2, key); strings.Contains(strings.Join(append(command, env...), " "), "PM_") || !slices.Contains(env, "OMPI_MCA_btl=self,vader,tcp") {
			t.Errorf("%v: %v %v", transport, command, env)
		}
	}
}
