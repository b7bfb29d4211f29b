/* operation.c - operations that end later than the call which began them, and the reads and writes they consist of. */
#include <stdlib.h>
#include <string.h>

#include "prov.h"

struct prov_operation *prov_operation_new(struct prov_peer *peer, enum prov_operation_type type)
{
	struct prov_operation *operation = prov_pool_take(&peer->endpoint->operations);
	uint32_t index, generation;

	if (!operation)
		return NULL;
	index = operation->index;
	generation = operation->generation;
	memset(operation, 0, sizeof(*operation));
	operation->index = index;
	operation->generation = generation + 1;
	operation->type = type;
	operation->peer = peer;
	TAILQ_INSERT_TAIL(&peer->operations, operation, link);
	return operation;
}

static void set_retrying(struct prov_operation *operation, bool retrying)
{
	struct prov_ep *ep = operation->peer->endpoint;

	if (operation->retrying == retrying)
		return;
	operation->retrying = retrying;
	if (retrying) {
		TAILQ_INSERT_TAIL(&ep->retries, operation, retry);
		ep->retry_count++;
	} else {
		TAILQ_REMOVE(&ep->retries, operation, retry);
		ep->retry_count--;
	}
}

void prov_operation_end(struct prov_operation *operation)
{
	struct prov_ep *ep = operation->peer->endpoint;

	for (uint32_t i = 0; i < operation->region_count; i++)
		pm_deregister(operation->regions[i]);
	ep->regions -= operation->region_count;
	set_retrying(operation, false);
	free(operation->copy);
	TAILQ_REMOVE(&operation->peer->operations, operation, link);
	operation->type = PROV_FREE;
	prov_pool_give(&ep->operations, operation);
}

uint64_t prov_operation_id(const struct prov_operation *operation)
{
	return (uint64_t)operation->generation << 32 | operation->index;
}

struct prov_operation *prov_operation_find(const struct prov_peer *peer, uint64_t id)
{
	struct prov_operation *operation = prov_pool_at(&peer->endpoint->operations, (uint32_t)id);

	if (!operation || operation->type == PROV_FREE || operation->peer != peer || prov_operation_id(operation) != id)
		return NULL;
	return operation;
}

void prov_operation_lay(struct prov_operation *operation, const struct iovec *local, size_t local_count,
			const struct wire_part *remote, size_t remote_count)
{
	size_t here = 0, there = 0, here_used = 0, there_used = 0;

	while (here < local_count && there < remote_count) {
		size_t here_left = local[here].iov_len - here_used;
		size_t there_left = remote[there].length - there_used;
		size_t step = here_left < there_left ? here_left : there_left;

		if (step) {
			operation->segments[operation->count++] = (struct prov_segment){
				.local = (char *)local[here].iov_base + here_used,
				.address = remote[there].address + there_used,
				.key = remote[there].key,
				.length = step,
			};
			operation->ended_ok.length += step;
		}
		here_used += step;
		there_used += step;
		if (step == here_left) {
			here++;
			here_used = 0;
		}
		if (step == there_left) {
			there++;
			there_used = 0;
		}
	}
}

static void all_ended(struct prov_operation *operation)
{
	if (operation->type == PROV_RECEIVE_READ)
		prov_rendezvous_ended(operation);
	else
		prov_rma_ended(operation);
}

static int start(struct prov_operation *operation)
{
	const struct prov_segment *segment = &operation->segments[operation->started];
	struct pm_peer *pm = operation->peer->pm;

	if (operation->peer->gone)
		return -FI_EHOSTDOWN;
	if (operation->type == PROV_RMA_WRITE)
		return pm_write(pm, segment->local, segment->length, segment->address, segment->key, operation);
	return pm_read(pm, segment->local, segment->length, segment->address, segment->key, operation);
}

void prov_operation_run(struct prov_operation *operation)
{
	while (operation->started < operation->count) {
		int status = start(operation);

		if (status == -EAGAIN) {
			set_retrying(operation, true);
			return;
		}
		if (status) {
			if (!operation->status)
				operation->status = status;
			operation->count = operation->started;
			break;
		}
		operation->started++;
		operation->peer->endpoint->transfers++;
	}
	set_retrying(operation, false);
	if (operation->ended == operation->count)
		all_ended(operation);
}

void prov_operation_event(const struct pm_event *event)
{
	struct prov_operation *operation = event->cookie;

	operation->peer->endpoint->transfers--;
	operation->ended++;
	if (event->status && !operation->status) {
		operation->status = event->status;
		operation->count = operation->started;
		set_retrying(operation, false);
	}
	if (operation->started == operation->count && operation->ended == operation->count)
		all_ended(operation);
}

void prov_operations_retry(struct prov_ep *ep)
{
	struct prov_operation *operation, *next;

	for (operation = TAILQ_FIRST(&ep->retries); operation; operation = next) {
		next = TAILQ_NEXT(operation, retry);
		prov_operation_run(operation);
	}
}

void prov_operation_abandon(struct prov_operation *operation, int status)
{
	if (operation->type == PROV_SEND)
		return prov_send_ended(operation, status);
	if (operation->type == PROV_ATOMIC)
		return prov_atomic_ended(operation, status);
	operation->peer->endpoint->transfers -= operation->started - operation->ended;
	if (!operation->status)
		operation->status = status;
	set_retrying(operation, false);
	all_ended(operation);
}

void prov_operations_free(struct prov_peer *peer)
{
	struct prov_operation *operation;

	while ((operation = TAILQ_FIRST(&peer->operations)))
		prov_operation_end(operation);
}
