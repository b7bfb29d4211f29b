/* cq.c - completion queues. Reading one is also what moves the endpoints bound to it along. */
#include <sched.h>
#include <stdlib.h>
#include <string.h>

#include "prov.h"

#define FIRST_RING 256      /* entries; the ring doubles when it is full, so that nothing is lost */
#define SPIN_LOOKS 128      /* looks of a reading that finds nothing at first, with few peers */
#define SPIN_PEERS 8        /* so many more peers make each look so much longer, and their number smaller */
#define SPIN_CREDIT 16      /* readings in a row that may look on in vain, at most */
#define SPIN_GAIN 4         /* what one that does not adds to that */
#define EMPTY_READINGS 64   /* after so many one looks on whatever came of it before */
#define VAIN_READINGS 256   /* after so many in a row, in which an answer would have come, the processor is offered to others */
#define VAIN_MORE 16        /* and then each time after so many more; a power of two */

/* The bytes of an entry are the first ones of the longest format's. */
static const size_t entry_sizes[] = {
	[FI_CQ_FORMAT_CONTEXT] = sizeof(struct fi_cq_entry),
	[FI_CQ_FORMAT_MSG] = sizeof(struct fi_cq_msg_entry),
	[FI_CQ_FORMAT_DATA] = sizeof(struct fi_cq_data_entry),
	[FI_CQ_FORMAT_TAGGED] = sizeof(struct fi_cq_tagged_entry),
};

void prov_cq_grow(struct prov_cq *cq)
{
	uint32_t size = cq->mask + 1;
	struct prov_completion *ring = malloc(2 * size * sizeof(*ring));

	if (!ring) {
		/* To lose a completion silently would be worse than to end here. */
		FI_WARN(&prov_provider, FI_LOG_CQ, "no memory for completions\n");
		abort();
	}
	for (uint32_t i = 0; i < size; i++)
		ring[i] = cq->ring[(cq->head + i) & cq->mask];
	free(cq->ring);
	cq->ring = ring;
	cq->head = 0;
	cq->tail = size;
	cq->mask = 2 * size - 1;
}

void prov_cq_error(struct prov_cq *cq, const struct fi_cq_err_entry *entry, fi_addr_t source)
{
	struct prov_cq_error *error = malloc(sizeof(*error));

	if (!error) {
		FI_WARN(&prov_provider, FI_LOG_CQ, "no memory for an error\n");
		abort();
	}
	error->entry = *entry;
	error->source = source;
	STAILQ_INSERT_TAIL(&cq->errors, error, link);
	prov_collector_ring(&cq->collector);
}

bool prov_cq_has_news(const struct fid *fid)
{
	const struct prov_cq *cq = container_of(fid, struct prov_cq, fid.fid);

	return cq->head != cq->tail || !STAILQ_EMPTY(&cq->errors);
}

static size_t take(struct prov_cq *cq, void *buffer, size_t count, fi_addr_t *sources)
{
	size_t taken = 0;

	for (; taken < count && cq->head != cq->tail; taken++) {
		const struct prov_completion *completion = &cq->ring[cq->head++ & cq->mask];

		if (cq->entry_size == sizeof(completion->entry))
			((struct fi_cq_tagged_entry *)buffer)[taken] = completion->entry;
		else
			memcpy((char *)buffer + taken * cq->entry_size, &completion->entry, cq->entry_size);
		if (sources)
			sources[taken] = completion->source;
	}
	return taken;
}

static int progress(struct prov_cq *cq)
{
	int taken = 0;

	for (uint32_t i = 0; i < cq->collector.endpoint_count; i++)
		taken += prov_progress(cq->collector.endpoints[i], PROV_READ_BUDGET);
	return taken;
}

/*
 * A reading that finds nothing looks on for a while, as long as that has paid off lately: callers who wait for an
 * answer that is on its way often give up the processor between two readings, which takes longer than the answer.
 * Where it does not pay off, as when the caller computes between readings or has to share its processor, it is tried
 * again only now and then. Nor is it done right after a reading that found something: such callers only make sure
 * that there is no more.
 */
static void look_on(struct prov_cq *cq)
{
	struct prov_ep *ep = cq->collector.endpoints[0];

	if (!cq->spin_credit && ++cq->empty_readings < EMPTY_READINGS)
		return;
	cq->empty_readings = 0;
	for (uint32_t i = 0; i < SPIN_LOOKS / (1 + ep->known_peers / SPIN_PEERS); i++) {
		if (prov_progress(ep, PROV_READ_BUDGET)) {
			if (cq->spin_credit < SPIN_CREDIT)
				cq->spin_credit += SPIN_GAIN;
			return;
		}
	}
	if (cq->spin_credit)
		cq->spin_credit--;
}

/* Called with the lock held. */
static ssize_t read_entries(struct prov_cq *cq, void *buffer, size_t count, fi_addr_t *sources)
{
	size_t taken;

	if (unlikely(cq->collector.armed))
		prov_collector_awake(&cq->collector);
	if (unlikely(cq->head != cq->tail && count))
		return take(cq, buffer, count, sources);
	if (unlikely(!STAILQ_EMPTY(&cq->errors)))
		return -FI_EAVAIL;
	if (likely(!sources && cq->entry_size == sizeof(struct fi_cq_tagged_entry))) {
		struct fi_cq_tagged_entry *entries = buffer;
		bool waiting = cq->collector.endpoint_count == 1 && !cq->collector.domain->locked &&
			       (cq->was_empty || cq->collector.endpoints[0]->sends);

		cq->direct = entries;
		cq->direct_end = entries + count;
		if (!progress(cq) && waiting && cq->direct == entries)
			look_on(cq);
		taken = cq->direct - entries;
		cq->was_empty = !taken;
		cq->direct = cq->direct_end = NULL;
	} else {
		progress(cq);
		taken = take(cq, buffer, count, sources);
	}
	if (taken)
		return taken;
	return unlikely(!STAILQ_EMPTY(&cq->errors)) ? -FI_EAVAIL : -FI_EAGAIN;
}

/*
 * Some callers read again and again until something comes, as Open MPI does in a send that blocks, and never give up the
 * processor: whom they wait for may need it.
 */
static inline void give_way(uint32_t vain)
{
	if (unlikely(vain >= VAIN_READINGS && !(vain & (VAIN_MORE - 1))))
		sched_yield();
}

static ssize_t cq_readfrom(struct fid_cq *fid, void *buffer, size_t count, fi_addr_t *sources)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, fid);
	uint32_t vain;
	ssize_t result;

	prov_lock(cq->collector.domain);
	result = read_entries(cq, buffer, count, sources);
	vain = cq->vain_readings = result == -FI_EAGAIN ? cq->vain_readings + 1 : 0;
	prov_unlock(cq->collector.domain);
	give_way(vain);
	return result;
}

static ssize_t cq_read(struct fid_cq *fid, void *buffer, size_t count)
{
	return cq_readfrom(fid, buffer, count, NULL);
}

static ssize_t cq_readerr(struct fid_cq *fid, struct fi_cq_err_entry *entry, uint64_t flags)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, fid);
	struct prov_cq_error *error;

	(void)flags;
	prov_lock(cq->collector.domain);
	error = STAILQ_FIRST(&cq->errors);
	if (error) {
		void *data = entry->err_data;
		size_t room = entry->err_data_size;

		STAILQ_REMOVE_HEAD(&cq->errors, link);
		*entry = error->entry;
		/* There is no more to say; a buffer of the caller's for it stays the caller's. */
		entry->err_data = room ? data : NULL;
		entry->err_data_size = 0;
		free(error);
	}
	prov_unlock(cq->collector.domain);
	return error ? 1 : -FI_EAGAIN;
}

static ssize_t cq_sreadfrom(struct fid_cq *fid, void *buffer, size_t count, fi_addr_t *sources, const void *condition,
			    int timeout)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, fid);
	uint64_t deadline = prov_deadline(timeout);
	ssize_t result;

	(void)condition; /* may be answered by fewer than the threshold */
	prov_lock(cq->collector.domain);
	result = prov_collector_open(&cq->collector);
	if (!result) {
		do
			result = read_entries(cq, buffer, count, sources);
		while (result == -FI_EAGAIN && prov_collector_sleep(&cq->collector, deadline));
		prov_collector_awake(&cq->collector);
	}
	prov_unlock(cq->collector.domain);
	return result;
}

static ssize_t cq_sread(struct fid_cq *fid, void *buffer, size_t count, const void *condition, int timeout)
{
	return cq_sreadfrom(fid, buffer, count, NULL, condition, timeout);
}

static int cq_signal(struct fid_cq *fid)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, fid);

	prov_collector_signal(&cq->collector);
	return 0;
}

static const char *cq_strerror(struct fid_cq *fid, int number, const void *data, char *text, size_t length)
{
	(void)fid, (void)data;
	return prov_strerror(number, text, length);
}

static int cq_close(struct fid *fid)
{
	struct prov_cq *cq = container_of(fid, struct prov_cq, fid.fid);
	struct prov_cq_error *error;

	if (cq->collector.users)
		return -FI_EBUSY;
	while ((error = STAILQ_FIRST(&cq->errors))) {
		STAILQ_REMOVE_HEAD(&cq->errors, link);
		free(error);
	}
	prov_collector_close(&cq->collector);
	free(cq->ring);
	free(cq);
	return 0;
}

static int cq_control(struct fid *fid, int command, void *argument)
{
	return prov_collector_control(&container_of(fid, struct prov_cq, fid.fid)->collector, command, argument);
}

static struct fi_ops cq_fid_ops = PROV_FID_OPS(cq_close, prov_no_bind, cq_control);

static struct fi_ops_cq cq_ops = {
	.size = sizeof(struct fi_ops_cq),
	.read = cq_read,
	.readfrom = cq_readfrom,
	.readerr = cq_readerr,
	.sread = cq_sread,
	.sreadfrom = cq_sreadfrom,
	.signal = cq_signal,
	.strerror = cq_strerror,
};

int prov_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **result, void *context)
{
	struct prov_cq *cq;
	int status;

	if (attr->format > FI_CQ_FORMAT_TAGGED)
		return -FI_EINVAL;
	cq = calloc(1, sizeof(*cq));
	if (!cq)
		return -FI_ENOMEM;
	cq->ring = malloc(FIRST_RING * sizeof(*cq->ring));
	status = cq->ring ? prov_collector_init(&cq->collector, domain, attr->wait_obj) : -FI_ENOMEM;
	if (status) {
		free(cq->ring);
		free(cq);
		return status;
	}
	if (attr->format == FI_CQ_FORMAT_UNSPEC)
		attr->format = FI_CQ_FORMAT_TAGGED;
	cq->mask = FIRST_RING - 1;
	cq->entry_size = entry_sizes[attr->format];
	STAILQ_INIT(&cq->errors);
	cq->fid.fid.fclass = FI_CLASS_CQ;
	cq->fid.fid.context = context;
	cq->fid.fid.ops = &cq_fid_ops;
	cq->fid.ops = &cq_ops;
	*result = &cq->fid;
	return 0;
}
