/* welcome.c - how a connection is made: what the listening side gives, and what the other takes (shared.h). */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#include "internal.h"

enum { PAGE, RING, DOORBELL, DESCRIPTORS };

/* Takes as long for a wrong key as for a right one. */
static bool same_key(const uint8_t *one, const uint8_t *other)
{
	uint8_t differ = 0;
	for (int i = 0; i < PM_JOB_KEY_SIZE; i++)
		differ |= one[i] ^ other[i];
	return !differ;
}

static struct pm_endpoint *wanted_endpoint(struct pm_context *context, const struct hello *hello)
{
	if (!address_valid(&hello->to) || !address_valid(&hello->from))
		return NULL;
	struct pm_endpoint *endpoint = context->endpoints[address_endpoint(&hello->to)];
	return endpoint && !memcmp(&endpoint->address, &hello->to, sizeof(hello->to)) ? endpoint : NULL;
}

/* Makes the ring and hands it to the endpoint; the ring's descriptor, to be sent to the stranger. */
static int make_inbound(struct pm_context *context, struct socket *socket, const struct hello *hello,
			struct inbound **made)
{
	void *memory;
	struct inbound *inbound = calloc(1, sizeof(*inbound));
	if (!inbound)
		return -ENOMEM;
	inbound->ring_size = ring_size(context->ring_bytes);
	int fd = memory_make("pm-ring", inbound->ring_size, false, &memory);
	if (fd < 0) {
		free(inbound);
		return fd;
	}
	ring_reader_open(&inbound->ring, memory, context->ring_bytes);
	inbound->from = hello->from;
	inbound->unfenced = hello->flags & HELLO_UNFENCED;
	inbound->waits = hello->flags & HELLO_AFTER_UDP;
	inbound->generation = hello->generation;
	inbound->rail = RAIL_SHM;
	inbound->pid = socket->pid;
	inbound->socket = socket;
	*made = inbound;
	return fd;
}

/* Before the other learns of the ring: what it then says about it by udp must find it here. */
static void hand_over(struct pm_endpoint *endpoint, struct inbound *inbound)
{
	inbound->endpoint = endpoint;
	inbound->socket->kind = SOCKET_IN;
	inbound->socket->inbound = inbound;
	inbound->next = atomic_load(&endpoint->arrivals);
	while (!atomic_compare_exchange_weak(&endpoint->arrivals, &inbound->next, inbound))
		;
}

static void connect_stranger(struct pm_context *context, struct socket *socket, const struct hello *hello)
{
	struct welcome welcome = {.magic = WELCOME_MAGIC, .ring_bytes = context->ring_bytes};
	struct inbound *inbound = NULL;
	struct pm_endpoint *endpoint = wanted_endpoint(context, hello);
	int ring = -1;
	if (!same_key(hello->job_key, context->job_key))
		welcome.status = -EACCES;
	else if (!endpoint)
		welcome.status = -EHOSTUNREACH;
	else if (!rail_allowed(context, RAIL_SHM))
		welcome.status = -EOPNOTSUPP;
	else if ((ring = make_inbound(context, socket, hello, &inbound)) < 0)
		welcome.status = ring;
	int fds[DESCRIPTORS] = {[PAGE] = context->page_fd, [RING] = ring, [DOORBELL] = endpoint ? endpoint->doorbell : -1};
	if (inbound)
		hand_over(endpoint, inbound);
	int error = socket_send(socket->fd, &welcome, sizeof(welcome), fds, welcome.status ? 0 : DESCRIPTORS);
	if (ring >= 0)
		close(ring);
	if (error && inbound) {
		inbound->socket = NULL;
		atomic_store(&inbound->gone, 1);
	}
	if (error || !inbound)
		keeper_forget(context, socket);
	if (inbound)
		endpoint_notice(endpoint);
}

/* Answers a hello; under the lock. */
void welcome_stranger(struct pm_context *context, struct socket *socket)
{
	struct hello hello;
	struct welcome welcome = {.magic = WELCOME_MAGIC};
	int memory = -1, got = socket_receive(socket->fd, &hello, sizeof(hello), &memory, 1);
	if (got < 0 || hello.magic != HELLO_MAGIC || (got && hello.kind != HELLO_ORDER)) {
		if (got > 0)
			close(memory);
		keeper_forget(context, socket);
	} else if (hello.kind == HELLO_CONNECT && !socket->root) {
		connect_stranger(context, socket, &hello);
	} else if (hello.kind == HELLO_ORDER) {
		order_take(context, socket, &hello, memory);
	} else {
		if (hello.kind == HELLO_SURVEY)
			socket_send(socket->fd, &welcome, sizeof(welcome), &context->page_fd, 1);
		keeper_forget(context, socket);
	}
}

/* Whether the process's memory can be read by system call, and is that of the context meant. */
static bool probe_direct(const struct outbound *outbound, const uint8_t *id)
{
	uint8_t found[CONTEXT_ID_SIZE];
	struct iovec here = {.iov_base = found, .iov_len = sizeof(found)};
	struct iovec there = {.iov_base = (void *)(uintptr_t)outbound->page->id_address, .iov_len = sizeof(found)};
	return process_vm_readv(outbound->pid, &here, 1, &there, 1, 0) == sizeof(found) && !memcmp(found, id, sizeof(found));
}

static int map_what_was_given(struct pm_context *context, struct outbound *outbound, uint32_t ring_bytes, const int *fds)
{
	void *memory;
	const struct pm_address *address = &outbound->peer->address;
	if (ring_bytes < 2 * PM_MAX_MESSAGE || ring_bytes & (ring_bytes - 1))
		return -EPROTO;
	int error = memory_map(fds[PAGE], sizeof(struct shared_page), true, &memory);
	if (error)
		return error;
	outbound->page = memory;
	if (outbound->page->magic != SHARED_MAGIC || outbound->page->version != SHARED_VERSION ||
	    memcmp(outbound->page->id, address_id(address), CONTEXT_ID_SIZE))
		return -EPROTO;
	outbound->asleep = &outbound->page->endpoints[address_endpoint(address)].asleep;
	size_t size = ring_size(ring_bytes);
	error = memory_map(fds[RING], size, false, &memory);
	if (error)
		return error;
	outbound->ring_size = size;
	ring_writer_open(&outbound->ring, memory, ring_bytes);
	/* Whatever it is that a broken process gives: a write to it must not wait. */
	if (fcntl(fds[DOORBELL], F_SETFL, O_NONBLOCK))
		return -errno;
	outbound->direct = context->direct && probe_direct(outbound, address_id(address));
	return 0;
}

/* Takes the answer to a hello; under the lock. */
int welcome_take(struct pm_context *context, struct outbound *outbound)
{
	struct welcome welcome;
	int fds[DESCRIPTORS];
	int got = socket_receive(outbound->socket->fd, &welcome, sizeof(welcome), fds, DESCRIPTORS);
	if (got < 0)
		return got == -EPIPE ? -EHOSTUNREACH : got;
	int error = welcome.status;
	if (welcome.magic != WELCOME_MAGIC || error > 0 || (!error && got != DESCRIPTORS))
		error = -EPROTO;
	if (!error)
		error = map_what_was_given(context, outbound, welcome.ring_bytes, fds);
	for (int i = 0; i < got; i++)
		if (error || i != DOORBELL)
			close(fds[i]);
	if (error)
		return error;
	outbound->doorbell = fds[DOORBELL];
	atomic_store(&outbound->ready, true);
	endpoint_notice(outbound->peer->endpoint);
	return 0;
}
