package vm

// progress.go - a migration's progress and final figures, from libvirt's job statistics.

import (
	"context"
	"fmt"
	"sync"
	"time"

	"libvirt.org/go/libvirt"

	v1 "watari/api/watariv1"
)

// finalRoom is the number of ended migrations whose figures are kept.
const finalRoom = 64

// finalProgress keeps the figures of ended migrations. libvirt sends them once, by an event, just before the source's
// domain disappears.
type finalProgress struct {
	lock  sync.Mutex
	byUID map[string]*v1.MigrationProgress
	order []string
}

func newFinalProgress() *finalProgress {
	return &finalProgress{byUID: map[string]*v1.MigrationProgress{}}
}

func (f *finalProgress) put(uid string, info *libvirt.DomainJobInfo) {
	if info.OperationSet && info.Operation != libvirt.DOMAIN_JOB_OPERATION_MIGRATION_OUT {
		return
	}
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.byUID[uid] == nil {
		f.order = append(f.order, uid)
	}
	f.byUID[uid] = progressOf(info)
	if len(f.order) > finalRoom {
		delete(f.byUID, f.order[0])
		f.order = f.order[1:]
	}
}

func (f *finalProgress) get(uid string) *v1.MigrationProgress {
	f.lock.Lock()
	defer f.lock.Unlock()
	return f.byUID[uid]
}

// await waits briefly for the figures. They come on another connection than the migration's reply, so they may come
// later.
func (f *finalProgress) await(uid string) {
	for deadline := time.Now().Add(time.Second); f.get(uid) == nil && time.Now().Before(deadline); {
		time.Sleep(5 * time.Millisecond)
	}
}

func (f *finalProgress) forget(uid string) {
	f.lock.Lock()
	defer f.lock.Unlock()
	if f.byUID[uid] == nil {
		return
	}
	delete(f.byUID, uid)
	for i, known := range f.order {
		if known == uid {
			f.order = append(f.order[:i], f.order[i+1:]...)
			return
		}
	}
}

// progressOf converts libvirt's figures to the API's.
func progressOf(info *libvirt.DomainJobInfo) *v1.MigrationProgress {
	return &v1.MigrationProgress{
		TotalBytes:       info.MemTotal,
		ProcessedBytes:   info.MemProcessed,
		RemainingBytes:   info.MemRemaining,
		Iteration:        info.MemIteration,
		TransferredBytes: info.DataProcessed,
		DowntimeMs:       uint32(info.Downtime),
		ElapsedMs:        info.TimeElapsed,
	}
}

// Progress returns the progress of the domain's outgoing migration. After the migration's end it returns the final
// figures, if they are still kept. It fails with ErrNotFound if there is neither a domain nor kept figures.
func (l *Libvirt) Progress(ctx context.Context, uid string) (*v1.MigrationProgress, error) {
	var found *v1.MigrationProgress
	err := l.withDomain(ctx, uid, func(domain *libvirt.Domain) error {
		info, err := domain.GetJobStats(0)
		if err == nil && info.Type != libvirt.DOMAIN_JOB_NONE && info.OperationSet &&
			info.Operation == libvirt.DOMAIN_JOB_OPERATION_MIGRATION_OUT {
			found = progressOf(info)
		}
		return err
	})
	if found != nil {
		return found, nil
	}
	if final := l.finals.get(uid); final != nil {
		return final, nil
	}
	if err == nil {
		err = fmt.Errorf("no migration is under way")
	}
	return nil, fmt.Errorf("progress of domain %s: %w", uid, err)
}
