/* completion.c - the stub's completion channels and queues. */
#include "stub.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <time.h>

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *ibv)
{
	struct stub_channel *channel = calloc(1, sizeof *channel);
	if (!channel)
		return NULL;
	channel->ibv.context = ibv;
	channel->ibv.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	if (channel->ibv.fd < 0) {
		free(channel);
		return NULL;
	}
	object_add(&channel->object);
	object_use(&stub_context(ibv)->object, 1);
	return &channel->ibv;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *ibv)
{
	struct stub_channel *channel = (struct stub_channel *)ibv;
	int error = object_remove(&channel->object, "completion channel");
	if (error)
		return error;
	object_use(&stub_context(ibv->context)->object, -1);
	close(ibv->fd);
	free(channel);
	return 0;
}

/* The channel counts events; those of which queue they are is in the queues. */
int ibv_get_cq_event(struct ibv_comp_channel *ibv, struct ibv_cq **cq, void **cq_context)
{
	struct stub_context *context = stub_context(ibv->context);
	struct stub_cq *found = NULL;
	while (!found) {
		uint64_t one;
		if (read(ibv->fd, &one, sizeof one) < 0)
			return -1;
		pthread_mutex_lock(&context->lock);
		LIST_FOREACH(found, &((struct stub_channel *)ibv)->cqs, link)
			if (found->events)
				break;
		if (found) {
			found->events--;
			found->unacked++;
		}
		pthread_mutex_unlock(&context->lock);
	}
	*cq = &found->ibv;
	*cq_context = found->ibv.cq_context;
	return 0;
}

void ibv_ack_cq_events(struct ibv_cq *ibv, unsigned int count)
{
	struct stub_context *context = stub_context(ibv->context);
	struct stub_cq *cq = (struct stub_cq *)ibv;
	pthread_mutex_lock(&context->lock);
	if (count > cq->unacked)
		die("%u events are acknowledged of %u", count, cq->unacked);
	cq->unacked -= count;
	pthread_mutex_unlock(&context->lock);
}

struct ibv_cq *ibv_create_cq(struct ibv_context *ibv, int cqe, void *cq_context, struct ibv_comp_channel *channel,
			     int vector)
{
	if (cqe < 1 || cqe > MAX_CQE || vector < 0 || vector >= ibv->num_comp_vectors) {
		errno = EINVAL;
		return NULL;
	}
	struct stub_cq *cq = calloc(1, sizeof *cq);
	if (!cq || !(cq->completions = calloc(cqe, sizeof *cq->completions))) {
		free(cq);
		errno = ENOMEM;
		return NULL;
	}
	cq->ibv.context = ibv;
	cq->ibv.channel = channel;
	cq->ibv.cq_context = cq_context;
	cq->ibv.cqe = cqe;
	object_add(&cq->object);
	object_use(&stub_context(ibv)->object, 1);
	if (channel) {
		object_use(&((struct stub_channel *)channel)->object, 1);
		pthread_mutex_lock(&stub_context(ibv)->lock);
		LIST_INSERT_HEAD(&((struct stub_channel *)channel)->cqs, cq, link);
		pthread_mutex_unlock(&stub_context(ibv)->lock);
	}
	return &cq->ibv;
}

/* Takes the queue's events out of its channel, and waits until those that were got are acknowledged. */
static void forget_events(struct stub_context *context, struct stub_cq *cq)
{
	struct stub_channel *channel = (struct stub_channel *)cq->ibv.channel;
	struct pollfd poller = {.fd = channel->ibv.fd, .events = POLLIN};
	uint64_t one;
	pthread_mutex_lock(&context->lock);
	LIST_REMOVE(cq, link);
	for (; cq->events; cq->events--) /* another thread may have read one, and finds nothing */
		if (poll(&poller, 1, 0) != 1 || read(poller.fd, &one, sizeof one) < 0)
			break;
	for (int tries = 0; cq->unacked; tries++) {
		if (tries == 10000)
			die("a completion queue is destroyed whose events are never acknowledged");
		pthread_mutex_unlock(&context->lock);
		nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
		pthread_mutex_lock(&context->lock);
	}
	pthread_mutex_unlock(&context->lock);
	object_use(&channel->object, -1);
}

int ibv_destroy_cq(struct ibv_cq *ibv)
{
	struct stub_cq *cq = (struct stub_cq *)ibv;
	int error = object_remove(&cq->object, "completion queue");
	if (error)
		return error;
	if (ibv->channel)
		forget_events(stub_context(ibv->context), cq);
	object_use(&stub_context(ibv->context)->object, -1);
	free(cq->completions);
	free(cq);
	return 0;
}

int req_notify_cq(struct ibv_cq *ibv, int solicited_only)
{
	struct stub_context *context = stub_context(ibv->context);
	struct stub_cq *cq = (struct stub_cq *)ibv;
	pthread_mutex_lock(&context->lock);
	if (!solicited_only)
		cq->armed = ARMED;
	else if (cq->armed == UNARMED)
		cq->armed = SOLICITED;
	pthread_mutex_unlock(&context->lock);
	return 0;
}

int poll_cq(struct ibv_cq *ibv, int count, struct ibv_wc *wc)
{
	struct stub_context *context = stub_context(ibv->context);
	struct stub_cq *cq = (struct stub_cq *)ibv;
	int taken = 0;
	/* One that polls an empty queue all the time must not keep the lock from the thread that fills it. */
	if (__atomic_load_n(&cq->head, __ATOMIC_RELAXED) == __atomic_load_n(&cq->tail, __ATOMIC_RELAXED))
		return 0;
	pthread_mutex_lock(&context->lock);
	for (; taken < count && cq->head < cq->tail; taken++) {
		struct completion *completion = &cq->completions[cq->head % (unsigned)ibv->cqe];
		__atomic_store_n(&cq->head, cq->head + 1, __ATOMIC_RELAXED);
		wc[taken] = completion->wc;
		if (completion->qp)
			completion->qp->head = completion->head;
	}
	pthread_mutex_unlock(&context->lock);
	return taken;
}

/* Adds a completion, under the context's lock. */
void push_completion(struct ibv_cq *ibv, const struct completion *completion, bool solicited)
{
	struct stub_cq *cq = (struct stub_cq *)ibv;
	if (cq->tail - cq->head == (unsigned)ibv->cqe)
		die("a completion queue of %d overflows", ibv->cqe);
	struct completion *added = &cq->completions[cq->tail % (unsigned)ibv->cqe];
	__atomic_store_n(&cq->tail, cq->tail + 1, __ATOMIC_RELAXED);
	*added = *completion;
	if (added->wc.status != IBV_WC_SUCCESS) {
		struct ibv_wc garbage;
		memset(&garbage, 0xa5, sizeof garbage);
		garbage.wr_id = added->wc.wr_id;
		garbage.status = added->wc.status;
		garbage.qp_num = added->wc.qp_num;
		added->wc = garbage;
		solicited = true;
	}
	if (cq->armed == UNARMED || (cq->armed == SOLICITED && !solicited) || !ibv->channel)
		return;
	cq->armed = UNARMED;
	cq->events++;
	if (write(ibv->channel->fd, &(uint64_t){1}, sizeof(uint64_t)) < 0)
		die("no event can be put into a channel: %s", strerror(errno));
}

/* A queue pair goes, or starts anew: what it left in a queue frees nothing. */
void orphan_completions(struct ibv_cq *ibv, struct stub_qp *qp)
{
	struct stub_cq *cq = (struct stub_cq *)ibv;
	for (uint64_t at = cq->head; at < cq->tail; at++) {
		struct completion *completion = &cq->completions[at % (unsigned)ibv->cqe];
		if (completion->qp == qp)
			completion->qp = NULL;
	}
}

const char *ibv_wc_status_str(enum ibv_wc_status status)
{
	static const char *names[] = {
		[IBV_WC_SUCCESS] = "success",
		[IBV_WC_LOC_LEN_ERR] = "local length error",
		[IBV_WC_LOC_PROT_ERR] = "local protection error",
		[IBV_WC_WR_FLUSH_ERR] = "request flushed",
		[IBV_WC_REM_INV_REQ_ERR] = "remote invalid request",
		[IBV_WC_REM_ACCESS_ERR] = "remote access error",
		[IBV_WC_REM_OP_ERR] = "remote operation error",
		[IBV_WC_RETRY_EXC_ERR] = "retries exceeded",
		[IBV_WC_RNR_RETRY_EXC_ERR] = "receiver-not-ready retries exceeded",
	};
	bool known = (unsigned)status < sizeof names / sizeof *names && names[status];
	return known ? names[status] : "unknown";
}
