/* cntr.c - counters of operations that have ended. Reading one moves the endpoints bound to it along. */
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "prov.h"

#define PROGRESS_BUDGET 64 /* messages taken in one reading, at most */

/* Called with the lock held. */
static void progress(struct prov_cntr *cntr)
{
	for (uint32_t i = 0; i < cntr->endpoint_count; i++)
		prov_progress(cntr->endpoints[i], PROGRESS_BUDGET);
}

/* One of the two figures, after a look at what has come; locked. */
static uint64_t look(struct fid_cntr *fid, bool errors)
{
	struct prov_cntr *cntr = container_of(fid, struct prov_cntr, fid);
	uint64_t value;

	prov_lock(cntr->domain);
	progress(cntr);
	value = errors ? cntr->errors : cntr->value;
	prov_unlock(cntr->domain);
	return value;
}

static uint64_t cntr_read(struct fid_cntr *fid)
{
	return look(fid, false);
}

static uint64_t cntr_readerr(struct fid_cntr *fid)
{
	return look(fid, true);
}

/* Adds to, or sets, a figure; locked. */
static int change(struct fid_cntr *fid, bool errors, bool add, uint64_t value)
{
	struct prov_cntr *cntr = container_of(fid, struct prov_cntr, fid);
	uint64_t *figure = errors ? &cntr->errors : &cntr->value;

	prov_lock(cntr->domain);
	*figure = add ? *figure + value : value;
	prov_unlock(cntr->domain);
	return 0;
}

static int cntr_add(struct fid_cntr *fid, uint64_t value)
{
	return change(fid, false, true, value);
}

static int cntr_set(struct fid_cntr *fid, uint64_t value)
{
	return change(fid, false, false, value);
}

static int cntr_adderr(struct fid_cntr *fid, uint64_t value)
{
	return change(fid, true, true, value);
}

static int cntr_seterr(struct fid_cntr *fid, uint64_t value)
{
	return change(fid, true, false, value);
}

static int64_t now_ms(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000LL + now.tv_nsec / 1000000;
}

static int cntr_wait(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
	struct prov_cntr *cntr = container_of(fid, struct prov_cntr, fid);
	int64_t end = timeout >= 0 ? now_ms() + timeout : -1;
	uint64_t errors = cntr->errors;

	while (cntr_read(fid) < threshold) {
		if (cntr->errors != errors)
			return -FI_EAVAIL;
		if (end >= 0 && now_ms() >= end)
			return -FI_ETIMEDOUT;
		sched_yield();
	}
	return 0;
}

static int cntr_close(struct fid *fid)
{
	struct prov_cntr *cntr = container_of(fid, struct prov_cntr, fid.fid);

	if (cntr->users)
		return -FI_EBUSY;
	__atomic_sub_fetch(&cntr->domain->users, 1, __ATOMIC_RELEASE);
	free(cntr->endpoints);
	free(cntr);
	return 0;
}

static struct fi_ops cntr_fid_ops = PROV_FID_OPS(cntr_close, prov_no_bind, prov_no_control);

static struct fi_ops_cntr cntr_ops = {
	.size = sizeof(struct fi_ops_cntr),
	.read = cntr_read,
	.readerr = cntr_readerr,
	.add = cntr_add,
	.set = cntr_set,
	.wait = cntr_wait,
	.adderr = cntr_adderr,
	.seterr = cntr_seterr,
};

int prov_cntr_open(struct fid_domain *domain, struct fi_cntr_attr *attr, struct fid_cntr **result, void *context)
{
	struct prov_cntr *cntr;

	if (attr->events != FI_CNTR_EVENTS_COMP || attr->flags)
		return -FI_ENOSYS;
	if (attr->wait_obj != FI_WAIT_NONE && attr->wait_obj != FI_WAIT_UNSPEC && attr->wait_obj != FI_WAIT_YIELD)
		return -FI_ENOSYS;
	cntr = calloc(1, sizeof(*cntr));
	if (!cntr)
		return -FI_ENOMEM;
	cntr->domain = container_of(domain, struct prov_domain, fid);
	__atomic_add_fetch(&cntr->domain->users, 1, __ATOMIC_RELAXED);
	cntr->fid.fid.fclass = FI_CLASS_CNTR;
	cntr->fid.fid.context = context;
	cntr->fid.fid.ops = &cntr_fid_ops;
	cntr->fid.ops = &cntr_ops;
	*result = &cntr->fid;
	return 0;
}
