/* cntr.c - counters of operations that have ended. Reading one moves the endpoints bound to it along. */
#include <stdlib.h>

#include "prov.h"

/* Called with the lock held. */
static void look(struct prov_cntr *cntr)
{
	struct prov_collector *collector = &cntr->collector;

	if (collector->armed)
		prov_collector_awake(collector);
	for (uint32_t i = 0; i < collector->endpoint_count; i++)
		prov_progress(collector->endpoints[i], PROV_READ_BUDGET);
	cntr->value_seen = cntr->value;
	cntr->errors_seen = cntr->errors;
}

/* One of the two figures, after a look at what has come; locked. */
static uint64_t figure(struct fid_cntr *fid, bool errors)
{
	struct prov_cntr *cntr = container_of(fid, struct prov_cntr, fid);
	uint64_t value;

	prov_lock(cntr->collector.domain);
	look(cntr);
	value = errors ? cntr->errors : cntr->value;
	prov_unlock(cntr->collector.domain);
	return value;
}

static uint64_t cntr_read(struct fid_cntr *fid)
{
	return figure(fid, false);
}

static uint64_t cntr_readerr(struct fid_cntr *fid)
{
	return figure(fid, true);
}

/* Adds to, or sets, a figure; locked. */
static int change(struct fid_cntr *fid, bool errors, bool add, uint64_t value)
{
	struct prov_cntr *cntr = container_of(fid, struct prov_cntr, fid);
	uint64_t *changed = errors ? &cntr->errors : &cntr->value;

	prov_lock(cntr->collector.domain);
	*changed = add ? *changed + value : value;
	prov_collector_ring(&cntr->collector);
	prov_unlock(cntr->collector.domain);
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

/* 0: it is there, -FI_EAVAIL: there are new errors, -FI_EAGAIN: not yet. Called with the lock held. */
static int reached(struct prov_cntr *cntr, uint64_t threshold, uint64_t errors)
{
	look(cntr);
	if (cntr->value >= threshold)
		return 0;
	return cntr->errors != errors ? -FI_EAVAIL : -FI_EAGAIN;
}

static int cntr_wait(struct fid_cntr *fid, uint64_t threshold, int timeout)
{
	struct prov_cntr *cntr = container_of(fid, struct prov_cntr, fid);
	uint64_t deadline = prov_deadline(timeout), errors;
	int status;

	prov_lock(cntr->collector.domain);
	errors = cntr->errors;
	status = prov_collector_open(&cntr->collector);
	if (!status) {
		do
			status = reached(cntr, threshold, errors);
		while (status == -FI_EAGAIN && prov_collector_sleep(&cntr->collector, deadline));
		prov_collector_awake(&cntr->collector);
	}
	prov_unlock(cntr->collector.domain);
	return status == -FI_EAGAIN ? -FI_ETIMEDOUT : status;
}

bool prov_cntr_has_news(const struct fid *fid)
{
	const struct prov_cntr *cntr = container_of(fid, struct prov_cntr, fid.fid);

	return cntr->value != cntr->value_seen || cntr->errors != cntr->errors_seen;
}

static int cntr_close(struct fid *fid)
{
	struct prov_cntr *cntr = container_of(fid, struct prov_cntr, fid.fid);

	if (cntr->collector.users)
		return -FI_EBUSY;
	prov_collector_close(&cntr->collector);
	free(cntr);
	return 0;
}

static int cntr_control(struct fid *fid, int command, void *argument)
{
	return prov_collector_control(&container_of(fid, struct prov_cntr, fid.fid)->collector, command, argument);
}

static struct fi_ops cntr_fid_ops = PROV_FID_OPS(cntr_close, prov_no_bind, cntr_control);

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
	int status;

	if (attr->events != FI_CNTR_EVENTS_COMP || attr->flags)
		return -FI_ENOSYS;
	cntr = calloc(1, sizeof(*cntr));
	if (!cntr)
		return -FI_ENOMEM;
	status = prov_collector_init(&cntr->collector, domain, attr->wait_obj);
	if (status) {
		free(cntr);
		return status;
	}
	cntr->fid.fid.fclass = FI_CLASS_CNTR;
	cntr->fid.fid.context = context;
	cntr->fid.fid.ops = &cntr_fid_ops;
	cntr->fid.ops = &cntr_ops;
	*result = &cntr->fid;
	return 0;
}
