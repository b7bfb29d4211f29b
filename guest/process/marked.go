package process

// marked.go - the processes that come from a process of a table: its descendants, and those that they have started in other
// guests. Processes inherit a mark in their environment.

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	v1 "watari/api/watariv1"
)

const (
	// Mark is the environment variable with the id of the process of a table from which a process comes. A command that is
	// started from another guest has the mark of the process that has started it there.
	Mark = "WATARI_PROCESS"
	// MaxMarked is the number of processes that Marked returns at most.
	MaxMarked = 1000
	// environmentRead is how much of a process's environment is read, in bytes.
	environmentRead = 128 << 10
)

// rankVariables are the environment variables with the rank of a process in MPI_COMM_WORLD.
var rankVariables = []string{"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"}

// Marked returns the processes of this machine that come from a process of a table with this id, here or in another guest, by
// pid. It takes interval, over which it measures the use of processors. If there are more than most, or MaxMarked, it returns
// those that have used most processor time, and how many it has left out.
func Marked(ctx context.Context, id string, interval time.Duration, most int) (list []*v1.RunProcess, omitted int, err error) {
	began, before := time.Now(), stats()
	select {
	case <-time.After(interval):
	case <-ctx.Done():
		return nil, 0, ctx.Err()
	}
	elapsed, now := time.Since(began).Seconds(), stats()

	pids, ranks := marked(now, id)
	if most = min(most, MaxMarked); len(pids) > most {
		slices.SortFunc(pids, func(a, b int) int { return cmp.Compare(now[b].used, now[a].used) })
		pids, omitted = pids[:most], len(pids)-most
	}
	slices.Sort(pids)
	for _, pid := range pids {
		p := now[pid]
		used := p.used
		if earlier := before[pid]; earlier.born == p.born {
			used -= min(used, earlier.used)
		}
		list = append(list, &v1.RunProcess{
			Pid: uint32(pid), Name: strings.ToValidUTF8(p.name, "?"), Rank: ranks[pid], State: p.state,
			Cpu: float64(used) / ticksPerSecond / elapsed, CpuTimeNs: p.used * uint64(time.Second/ticksPerSecond), MemoryBytes: p.resident,
		})
	}
	return list, omitted, nil
}

// marked returns the processes with a mark, and their ranks if they have one. A process whose environment has no mark, because
// its parent has cleared it or it has ended, has that of its nearest ancestor with a mark.
func marked(all map[int]stat, id string) (pids []int, ranks map[int]*uint32) {
	marks := map[int]string{}
	ranks = map[int]*uint32{}
	for pid := range all {
		environment := readEnvironment(pid)
		marks[pid] = variable(environment, Mark)
		for _, name := range rankVariables {
			if rank, err := strconv.ParseUint(variable(environment, name), 10, 32); err == nil {
				ranks[pid] = new(uint32(rank))
				break
			}
		}
	}
	for pid := range all {
		from := pid
		for range all { // more steps would be a circle, made by pids that were used again meanwhile
			if marks[from] != "" || from == 0 {
				break
			}
			from = all[from].parent
		}
		if marks[from] == id {
			pids = append(pids, pid)
		}
	}
	return pids, ranks
}

// mark returns the mark that the process gets.
func (p *Process) mark() string {
	return cmp.Or(variable(strings.Join(p.request.GetEnv(), "\x00"), Mark), p.request.GetId())
}

// MarkOf returns the mark of a running process as an environment variable; empty: it has none.
func MarkOf(pid int) string {
	mark := variable(readEnvironment(pid), Mark)
	if !validID.MatchString(mark) {
		return ""
	}
	return Mark + "=" + mark
}

// readEnvironment reads the environment with which a process's program was started. It is empty for a process of the kernel, and
// for one that has ended.
func readEnvironment(pid int) string {
	file, err := os.Open(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil {
		return ""
	}
	defer file.Close()
	text, _ := io.ReadAll(io.LimitReader(file, environmentRead))
	return string(text)
}

// variable returns a variable of an environment; empty: it is not set.
func variable(environment, name string) string {
	for word := range strings.SplitSeq(environment, "\x00") {
		if value, is := strings.CutPrefix(word, name+"="); is {
			return value
		}
	}
	return ""
}
