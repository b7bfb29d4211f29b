package controller

// launch.go - the command that starts an MPI program over a cluster's guests.

import (
	"crypto/rand"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"

	v1 "watari/api/watariv1"
	"watari/core"
	"watari/manager/store"
)

// Paths in every guest: the program by which launchers reach other guests, and the file of hosts and slots.
const (
	launcher  = "/run/watari/watari-guest-rsh"
	hostfile  = "/run/watari/hostfile"  // with .hydra: as MPICH reads it
	providers = "/run/watari/libfabric" // folder with PM's libfabric provider, if the image has it
)

// openMPI are defaults of Open MPI's parameters. They are environment variables, so that a user's own arguments win.
// They name the guest's launcher. They keep Open MPI from searching for transports that a guest does not have: under
// emulation that takes longer than the rest of the start.
var openMPI = map[string]string{
	"OMPI_MCA_plm_rsh_agent":          launcher,
	"OMPI_MCA_orte_default_hostfile":  hostfile,
	"OMPI_MCA_pml":                    "ob1",
	"OMPI_MCA_btl":                    "self,vader,tcp",
	"OMPI_MCA_osc":                    "^ucx",
	"OMPI_MCA_btl_tcp_if_exclude":     "lo",
	"OMPI_MCA_oob_tcp_if_exclude":     "lo",
	"OMPI_MCA_oob_tcp_keepalive_time": "0", // otherwise a guest that is unreachable for some minutes would end the run
}

// prrte are the same parameters for PRRTE, the separate launcher of Open MPI since 5.0.
var prrte = map[string]string{
	"PRTE_MCA_plm_ssh_agent":          launcher,
	"PRTE_MCA_prte_default_hostfile":  hostfile,
	"PRTE_MCA_prte_if_exclude":        "lo",
	"PRTE_MCA_oob_tcp_keepalive_time": "0",
}

// openMPIOverPM are further parameters, or other values, if PM carries the messages.
var openMPIOverPM = map[string]string{
	"OMPI_MCA_pml":                      "cm",
	"OMPI_MCA_mtl":                      "ofi",
	"OMPI_MCA_mtl_ofi_provider_include": "pm",
	"OMPI_MCA_btl":                      "self",
	"OMPI_MCA_osc":                      "pt2pt",
}

// pm are PM's environment variables for the ranks, except the job's key.
var pm = map[string]string{
	"FI_PROVIDER":      "pm",
	"FI_PROVIDER_PATH": providers,
	"PM_PATIENCE":      "1000000000", // seconds: no limit; a guest may be unreachable for long, and its loss ends the run
}

// mpich are the same parameters for MPICH, whose launcher is Hydra and whose transport is UCX.
var mpich = map[string]string{
	"HYDRA_LAUNCHER":      "rsh",
	"HYDRA_LAUNCHER_EXEC": launcher, // Hydra takes one word
	"HYDRA_HOST_FILE":     hostfile + ".hydra",
	"UCX_TLS":             "self,sm,tcp",
	"UCX_NET_DEVICES":     "eth0",
	"UCX_TCP_KEEPIDLE":    "inf", // otherwise a peer that is unreachable for half a minute would end the program
}

func startRequest(s *store.Snapshot, run *v1.Run) (*v1.StartProcessRequest, error) {
	cluster := s.Clusters[run.Spec.Cluster]
	if cluster == nil {
		return nil, fmt.Errorf("cluster %s no longer exists", run.Spec.Cluster)
	}
	ranks := run.Spec.Ranks
	if ranks == 0 {
		guests := len(run.StartedEpochs) // the cluster may have been resized since
		if guests == 0 {
			guests = int(cluster.Spec.Guests)
		}
		ranks = uint32(guests) * cluster.Spec.Shape.GetVcpus()
	}
	user := run.Spec.User
	if user == "" {
		user = GuestUser
	}
	// If the start is repeated because its answer was lost, the guest keeps the first process and its key.
	command, env := launch(mpiOf(s, cluster.ImageDigest), run.Spec, ranks, newJobKey())
	return &v1.StartProcessRequest{Id: run.Meta.Uid, Command: command, Env: env, Directory: core.RunDirectory(run), User: user}, nil
}

// mpiOf returns the MPI libraries of an image.
func mpiOf(s *store.Snapshot, digest string) []string {
	for _, image := range s.Images {
		if image.Digest == digest {
			return image.Mpi
		}
	}
	return nil
}

// newJobKey makes the secret by which PM's processes of a run authenticate each other: 32 bytes, in hexadecimal digits.
func newJobKey() string {
	var key [32]byte
	rand.Read(key[:]) // never fails
	return hex.EncodeToString(key[:])
}

// merged returns the union of maps; later maps win.
func merged(all ...map[string]string) map[string]string {
	union := map[string]string{}
	for _, one := range all {
		maps.Copy(union, one)
	}
	return union
}

// launch returns the command and the environment for an image's MPI library. If the image has several, it uses Open
// MPI. The run's own environment wins over the defaults. Only PM uses jobKey.
func launch(mpi []string, spec *v1.RunSpec, ranks uint32, jobKey string) (command, env []string) {
	defaults, asked, n := openMPI, spec.Env, strconv.Itoa(int(ranks))
	if slices.Contains(mpi, "mpich") && !slices.Contains(mpi, "openmpi") {
		defaults = mpich
		command = []string{"mpiexec.hydra", "-n", n} // passes on its whole environment
		if spec.TagOutput {
			command = append(command, "-prepend-rank")
		}
	} else {
		hasPRRTE := slices.Contains(mpi, "prrte")
		if hasPRRTE {
			defaults = merged(openMPI, prrte)
		}
		if spec.Transport == v1.Transport_TRANSPORT_PM {
			defaults = merged(defaults, openMPIOverPM)
			if hasPRRTE {
				defaults["OMPI_MCA_osc"] = openMPI["OMPI_MCA_osc"] // 5.0 has no pt2pt
			}
			asked = merged(pm, map[string]string{"PM_JOB_KEY": jobKey}, spec.Env)
		}
		command = []string{"mpirun", "-n", n}
		if spec.TagOutput {
			command = append(command, "--tag-output")
		}
		for _, name := range slices.Sorted(maps.Keys(asked)) {
			command = append(command, "-x", name)
		}
	}
	all := merged(defaults, asked)
	for _, name := range slices.Sorted(maps.Keys(all)) {
		env = append(env, name+"="+all[name])
	}
	command = append(command, spec.LauncherArgs...)
	return append(command, spec.Command...), env
}
