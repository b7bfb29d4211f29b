/* operation.c - remote memory access: what has been asked for and has not ended. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "link.h"
#include "udp.h"
#include "verbs.h"

/* An id is an index into the endpoint's table, and above it a generation that changes with each use. */
#define ID_BITS 32

static int grow(struct pm_endpoint *endpoint)
{
	uint32_t room = endpoint->table_room ? 2 * endpoint->table_room : 64;
	struct operation **table = realloc(endpoint->table, room * sizeof(*table));
	if (!table)
		return -ENOMEM;
	endpoint->table = table;
	uint32_t *free_list = realloc(endpoint->table_free, room * sizeof(*free_list));
	if (!free_list)
		return -ENOMEM;
	endpoint->table_free = free_list;
	for (uint32_t i = endpoint->table_room; i < room; i++) {
		table[i] = calloc(1, sizeof(**table));
		if (!table[i])
			return -ENOMEM; /* what was grown stays, and is found again by the next try */
		table[i]->id = i;
		free_list[endpoint->table_free_count++] = i;
		endpoint->table_room = i + 1;
	}
	return 0;
}

static struct operation *make(struct pm_endpoint *endpoint)
{
	if (!endpoint->table_free_count && grow(endpoint) && !endpoint->table_free_count)
		return NULL;
	struct operation *operation = endpoint->table[endpoint->table_free[--endpoint->table_free_count]];
	uint64_t id = operation->id;
	memset(operation, 0, sizeof(*operation));
	operation->id = id + (1ull << ID_BITS);
	return operation;
}

/* Takes back an operation whose end has been told. */
void operation_free(struct pm_endpoint *endpoint, struct operation *operation)
{
	operation->node.event.peer = NULL;
	endpoint->table_free[endpoint->table_free_count++] = (uint32_t)operation->id;
}

void operation_free_all(struct pm_endpoint *endpoint)
{
	for (uint32_t i = 0; i < endpoint->table_room; i++)
		free(endpoint->table[i]);
	free(endpoint->table);
	free(endpoint->table_free);
}

/* The operation that a peer names, if it is one of its own that waits for an answer. */
struct operation *operation_find(struct pm_peer *peer, uint64_t id)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	uint32_t index = (uint32_t)id;
	if (index >= endpoint->table_room)
		return NULL;
	struct operation *operation = endpoint->table[index];
	return operation->id == id && operation->node.event.peer == peer && operation->sent && !operation->ended ? operation : NULL;
}

void operation_end(struct operation *operation, int status)
{
	struct pm_peer *peer = operation->node.event.peer;
	struct pm_endpoint *endpoint = peer->endpoint;
	bool write = operation->node.event.type == PM_WRITE_DONE;
	struct pm_rail_statistics *rail = &endpoint->statistics->rails[peer->out ? peer->out->rail : RAIL_UDP];
	TAILQ_REMOVE(&endpoint->operations, operation, entry);
	if (operation->udp)
		udp_forget(operation);
	verbs_forget(operation, status);
	operation->ended = true;
	operation->node.event.status = status;
	if (operation->sent)
		peer->copies--;
	else if (operation->begun)
		peer->bulk_writes--;
	if (!status) {
		count(write ? &endpoint->statistics->writes : &endpoint->statistics->reads, 1);
		count(write ? &endpoint->statistics->write_bytes : &endpoint->statistics->read_bytes, operation->length);
		count(&rail->accesses, 1);
		count(&rail->access_bytes, operation->length);
	}
	STAILQ_INSERT_TAIL(&endpoint->events, &operation->node, entry);
}

/* A read is to be asked for again. */
void operation_again(struct operation *operation)
{
	struct pm_peer *peer = operation->node.event.peer;
	if (operation->udp)
		udp_forget(operation);
	verbs_forget(operation, false);
	operation->sent = false;
	operation->done = operation->placed = 0;
	peer->copies--;
	peer->endpoint->busy = true;
}

void operation_peer_gone(struct pm_peer *peer, int status)
{
	struct operation *operation, *next;
	help_peer_gone(peer);
	for (operation = TAILQ_FIRST(&peer->endpoint->operations); operation; operation = next) {
		next = TAILQ_NEXT(operation, entry);
		if (operation->node.event.peer == peer)
			operation_end(operation, status);
	}
}

/* Moves an operation on; 1: it has ended well, 0: not yet, else its error. */
static int step(struct operation *operation)
{
	struct pm_peer *peer = operation->node.event.peer;
	struct outbound *out = peer->out;
	if (operation->bulk_state == BULK_WRITTEN)
		return 1;
	if (unlikely(!out || atomic_load_explicit(&out->gone, memory_order_relaxed))) {
		int error = link_want(peer);
		if (error)
			return error == -EAGAIN ? 0 : error;
		out = peer->out;
	}
	/* A read that the peer shares goes on to its end as such. */
	if (out && ((out->direct && !operation->copied) || out->help.operation == operation)) {
		int done = direct_step(out, operation);
		if (done != -EPERM)
			return done;
		out->direct = false; /* it was possible once, and is forbidden now */
	}
	if (out && out->verbs && !operation->copied && operation->length > VERBS_BULK_LEAST && operation->node.event.type == PM_WRITE_DONE) {
		int done = verbs_write(operation);
		if (done != -EPERM)
			return done;
	}
	if (!operation->copied && operation->node.event.type == PM_READ_DONE)
		operation->done = 0; /* copies come from the beginning */
	operation->copied = true;
	return copied_step(operation);
}

void operation_progress(struct pm_endpoint *endpoint)
{
	struct operation *operation, *next;
	copied_progress(endpoint);
	if (endpoint->helping)
		help_progress(endpoint);
	for (operation = TAILQ_FIRST(&endpoint->operations); operation; operation = next) {
		next = TAILQ_NEXT(operation, entry);
		int done = operation->sent ? 0 : step(operation);
		if (operation->ended)
			break; /* its peer was found to be gone, and with it perhaps the next one's */
		if (done)
			operation_end(operation, done < 0 ? done : 0);
	}
	endpoint->busy = !TAILQ_EMPTY(&endpoint->operations) || !TAILQ_EMPTY(&endpoint->services) || endpoint->helping;
}

static int start(struct pm_peer *peer, struct pm_event event, void *local, size_t length, uint64_t address, uint64_t key)
{
	struct pm_endpoint *endpoint = peer->endpoint;
	if (peer->status)
		return peer->status;
	if (!endpoint_enter(endpoint))
		return -EAGAIN;
	struct operation *operation = make(endpoint);
	if (!operation) {
		endpoint_leave(endpoint);
		return -ENOMEM;
	}
	operation->node.event = event;
	operation->local = local;
	operation->length = length;
	operation->address = address;
	operation->key = key;
	TAILQ_INSERT_TAIL(&endpoint->operations, operation, entry);
	endpoint->busy = true;
	int done = step(operation);
	if (done && !operation->ended)
		operation_end(operation, done < 0 ? done : 0);
	endpoint_leave(endpoint);
	return 0;
}

EXPORT int pm_write(struct pm_peer *peer, const void *local, size_t length, uint64_t address, uint64_t key, void *cookie)
{
	struct pm_event event = {.type = PM_WRITE_DONE, .peer = peer, .cookie = cookie};
	return start(peer, event, (void *)local, length, address, key);
}

EXPORT int pm_read(struct pm_peer *peer, void *local, size_t length, uint64_t address, uint64_t key, void *cookie)
{
	struct pm_event event = {.type = PM_READ_DONE, .peer = peer, .cookie = cookie};
	return start(peer, event, local, length, address, key);
}
