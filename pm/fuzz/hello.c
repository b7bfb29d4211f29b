/*
 * hello.c - fuzzing: what a stranger can say on a context's socket, and what a listener can answer. The input's first
 * byte says which of the two the rest is, and how many and which descriptors come with it.
 */
#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct pm_context *context;
static struct pm_endpoint *endpoint;

static void open_once(void)
{
	struct pm_options options = {.size = sizeof(options), .ring_bytes = 65536};
	if (context)
		return;
	if (pm_context_open(&options, &context) || pm_endpoint_open(context, &endpoint))
		abort();
}

/* A hello whose parts are right or taken from the input. */
static void stranger(uint8_t how, const uint8_t *data, size_t size)
{
	struct hello hello = {.magic = HELLO_MAGIC, .kind = HELLO_CONNECT, .to = endpoint->address, .from = endpoint->address};
	int sockets[2];
	assert(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets));
	if (how & 8) {
		for (size_t i = 0; i < size && i < sizeof(hello); i++)
			((uint8_t *)&hello)[i] ^= data[i];
		data = (uint8_t *)&hello;
		size = sizeof(hello);
	}
	int given[3] = {sockets[0], sockets[0], sockets[1]};
	socket_send(sockets[1], data, size, given, how % 4);
	pthread_mutex_lock(&context->lock);
	struct socket *socket = calloc(1, sizeof(*socket));
	*socket = (struct socket){.fd = sockets[0], .kind = SOCKET_STRANGER};
	LIST_INSERT_HEAD(&context->sockets, socket, entry);
	welcome_stranger(context, socket);
	if (!socket->closed && socket->kind == SOCKET_STRANGER)
		keeper_forget(context, socket);
	pthread_mutex_unlock(&context->lock);
	close(sockets[1]);
	/* What was welcomed is hung up on. */
	struct pm_message message;
	struct pm_event event;
	while (pm_receive(endpoint, &message))
		pm_release(endpoint, &message);
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		atomic_store(&endpoint->inbound[i]->gone, 1);
	atomic_store(&endpoint->attention, true);
	pm_receive(endpoint, &message);
	while (pm_next_event(endpoint, &event))
		;
}

static int descriptor(uint8_t how)
{
	void *memory;
	switch (how % 4) {
	case 0:
		return eventfd(0, 0);
	case 1:
		return memfd_create("fuzz", MFD_CLOEXEC);
	case 2: {
		int fd = memory_make("fuzz", sizeof(struct shared_page), false, &memory);
		struct shared_page *page = memory;
		page->magic = SHARED_MAGIC;
		page->version = SHARED_VERSION;
		memcpy(page->id, context->id, sizeof(page->id));
		munmap(memory, sizeof(struct shared_page));
		return fd;
	}
	default: {
		int fd = memory_make("fuzz", ring_size(65536), false, &memory);
		munmap(memory, ring_size(65536));
		return fd;
	}
	}
}

static void listener(uint8_t how, const uint8_t *data, size_t size)
{
	struct welcome welcome = {.magic = WELCOME_MAGIC, .ring_bytes = 65536};
	struct pm_peer peer = {.endpoint = endpoint, .address = endpoint->address};
	struct outbound outbound = {.peer = &peer, .doorbell = -1};
	int sockets[2], fds[4], count = how % 5;
	assert(!socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets));
	for (int i = 0; i < count; i++)
		fds[i] = descriptor(i < (int)size ? data[i] : 0);
	if (how & 8) {
		for (size_t i = 4; i < size && i - 4 < sizeof(welcome); i++)
			((uint8_t *)&welcome)[i - 4] ^= data[i];
		data = (uint8_t *)&welcome;
		size = sizeof(welcome);
	}
	socket_send(sockets[1], data, size, fds, count);
	for (int i = 0; i < count; i++)
		close(fds[i]);
	struct socket socket = {.fd = sockets[0], .kind = SOCKET_OUT};
	outbound.socket = &socket;
	outbound.pid = getpid();
	welcome_take(context, &outbound);
	if (outbound.ring.memory)
		munmap(outbound.ring.memory, outbound.ring_size);
	if (outbound.page)
		munmap(outbound.page, sizeof(struct shared_page));
	if (outbound.doorbell >= 0)
		close(outbound.doorbell);
	close(sockets[0]);
	close(sockets[1]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	open_once();
	if (!size)
		return 0;
	if (data[0] & 16)
		stranger(data[0], data + 1, size - 1);
	else
		listener(data[0], data + 1, size - 1);
	return 0;
}
