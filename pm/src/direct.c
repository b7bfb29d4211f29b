/*
 * direct.c - remote memory access without a copy and without the peer's help: cross-memory attach
 * (process_vm_readv(2)). The kernel sees to it that the process is one of the same user; that it is the peer, and not
 * one that got its number later, is seen by its id, which lies where the peer's page says.
 */
#include <errno.h>
#include <limits.h>
#include <string.h>
#include <sys/uio.h>

#include "internal.h"

/* Moved by one step, bytes: then messages get their turn. */
#define CHUNK (4u << 20)

static int id_is_right(struct outbound *outbound, const uint8_t found[CONTEXT_ID_SIZE])
{
	return !memcmp(found, address_id(&outbound->peer->address), CONTEXT_ID_SIZE);
}

static int failed(void)
{
	switch (errno) {
	case ESRCH:
		return -EHOSTDOWN;
	case ENOSYS:
		return -EPERM;
	default:
		return -errno;
	}
}

/* Reads the id, and after it, in the same call, length bytes from there to here. */
int direct_read(struct outbound *outbound, void *here, uint64_t there, size_t length, size_t *moved)
{
	uint8_t id[CONTEXT_ID_SIZE];
	struct iovec to[2] = {{id, sizeof(id)}, {here, length}};
	struct iovec from[2] = {
		{(void *)(uintptr_t)outbound->page->id_address, sizeof(id)}, {(void *)(uintptr_t)there, length},
	};
	int parts = length ? 2 : 1;
	ssize_t got = process_vm_readv(outbound->pid, to, parts, from, parts, 0);
	if (got < 0)
		return failed();
	if (got < (ssize_t)sizeof(id) || !id_is_right(outbound, id))
		return -EHOSTDOWN;
	*moved = got - sizeof(id);
	return *moved || !length ? 0 : -EFAULT;
}

/* Writes length bytes from here to there; whose memory that is has been seen before. */
int direct_write(struct outbound *outbound, const void *here, uint64_t there, size_t length, size_t *moved)
{
	struct iovec from = {(void *)here, length};
	struct iovec to = {(void *)(uintptr_t)there, length};
	ssize_t put = process_vm_writev(outbound->pid, &from, 1, &to, 1, 0);
	if (put < 0)
		return failed();
	*moved = put;
	return put ? 0 : -EFAULT;
}

static int write_some(struct outbound *outbound, struct operation *operation, size_t length, size_t *moved)
{
	if (!operation->checked) {
		int error = direct_read(outbound, NULL, 0, 0, moved);
		if (error)
			return error;
		operation->checked = true;
	}
	return direct_write(outbound, operation->local + operation->done, operation->address + operation->done, length, moved);
}

/* Moves a part; 1: all is moved, 0: not yet, -EPERM: this is forbidden here, else the operation's error. */
int direct_step(struct outbound *outbound, struct operation *operation)
{
	bool write = operation->node.event.type == PM_WRITE_DONE;
	if (unlikely(operation->length >= HELP_LEAST) && !write && (outbound->help.operation == operation || help_ask(outbound, operation)))
		return help_step(outbound, operation);
	size_t left = operation->length - operation->done, moved = 0;
	size_t length = left < CHUNK ? left : CHUNK;
	uint64_t there = operation->address + operation->done;
	int error = region_check(outbound->page, operation->key, there, length, write ? PM_REMOTE_WRITE : PM_REMOTE_READ);
	if (error || !length)
		return error ? error : 1;
	error = write ? write_some(outbound, operation, length, &moved)
		      : direct_read(outbound, operation->local + operation->done, there, length, &moved);
	if (error)
		return error;
	operation->done += moved;
	count(&outbound->statistics->direct_bytes, moved);
	return operation->done == operation->length;
}
