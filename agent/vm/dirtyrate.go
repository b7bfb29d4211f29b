package vm

// dirtyrate.go - measures how fast guests write to their memory. A guest's move sends again what the guest writes meanwhile.

import (
	"context"
	"fmt"
	"strings"
	"time"

	"libvirt.org/go/libvirt"
)

const (
	// dirtyPeriod is how long QEMU measures, in seconds. It is the shortest period that QEMU permits.
	dirtyPeriod = 1
	// dirtyWait is when QEMU has the result. It also has to read the pages twice.
	dirtyWait = 1500 * time.Millisecond
)

// DirtyRates measures for a second how fast each running guest writes to its memory. It returns the bytes of the pages that
// change in a second, by uid. QEMU reads 512 pages of each GiB twice and compares them; guests do not notice that. The result
// lacks guests of which nothing is known: those that move or are being saved are left alone.
func (l *Libvirt) DirtyRates(ctx context.Context) (map[string]float64, error) {
	started := map[string]bool{}
	err := l.call(ctx, quickTime, func(conn *libvirt.Connect) error {
		return withRunning(conn, func(domains []*libvirt.Domain) error {
			for _, domain := range domains {
				// While a job is under way, libvirt would let the call wait for its end.
				info, err := domain.GetJobStats(0)
				if err != nil || info.Type != libvirt.DOMAIN_JOB_NONE {
					continue
				}
				if domain.StartDirtyRateCalc(dirtyPeriod, libvirt.DOMAIN_DIRTYRATE_MODE_PAGE_SAMPLING) != nil {
					continue
				}
				if uid, err := domain.GetUUIDString(); err == nil {
					started[uid] = true
				}
			}
			return nil
		})
	})
	if err != nil {
		return nil, fmt.Errorf("measure how fast guests write to memory: %w", err)
	}
	rates := map[string]float64{}
	if len(started) == 0 {
		return rates, nil
	}
	if !sleep(ctx, dirtyWait) {
		return nil, ctx.Err()
	}
	err = l.call(ctx, quickTime, func(conn *libvirt.Connect) error {
		return withRunning(conn, func(domains []*libvirt.Domain) error { return readDirtyRates(conn, domains, started, rates) })
	})
	if err != nil {
		return nil, fmt.Errorf("read how fast guests write to memory: %w", err)
	}
	return rates, nil
}

// withRunning calls fn with Watari's running domains, if there are any.
func withRunning(conn *libvirt.Connect, fn func([]*libvirt.Domain) error) error {
	all, err := conn.ListAllDomains(libvirt.CONNECT_LIST_DOMAINS_RUNNING)
	if err != nil {
		return err
	}
	var ours []*libvirt.Domain
	for i := range all {
		defer func() { _ = all[i].Free() }()
		if name, err := all[i].GetName(); err == nil && strings.HasPrefix(name, NamePrefix) {
			ours = append(ours, &all[i])
		}
	}
	if len(ours) == 0 {
		return nil
	}
	return fn(ours)
}

// readDirtyRates adds the results for the domains in started to rates.
func readDirtyRates(conn *libvirt.Connect, domains []*libvirt.Domain, started map[string]bool, rates map[string]float64) error {
	list, err := conn.GetAllDomainStats(domains, libvirt.DOMAIN_STATS_DIRTYRATE, libvirt.CONNECT_GET_ALL_DOMAINS_STATS_NOWAIT)
	if err != nil {
		return err
	}
	for _, stats := range list {
		defer func() { _ = stats.Domain.Free() }()
		uid, err := stats.Domain.GetUUIDString()
		rate := stats.DirtyRate
		if err != nil || !started[uid] || rate == nil || libvirt.DomainDirtyRateStatus(rate.CalcStatus) != libvirt.DOMAIN_DIRTYRATE_MEASURED ||
			!rate.MegabytesPerSecondSet || rate.MegabytesPerSecond < 0 {
			continue
		}
		rates[uid] = float64(rate.MegabytesPerSecond) * (1 << 20) // QEMU's megabytes are MiB
	}
	return nil
}
