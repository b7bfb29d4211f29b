/* eq.c - event queues. The provider has no events of its own; what the caller writes can be read again. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "prov.h"

struct eq_event {
	STAILQ_ENTRY(eq_event) link;
	uint32_t type;
	size_t length;
	char bytes[];
};

struct prov_eq {
	struct fid_eq fid;
	struct prov_fabric *fabric;
	pthread_mutex_t mutex;
	pthread_cond_t written;
	enum fi_wait_obj object;
	int bell; /* an eventfd that is readable as long as there are events, or -1 */
	STAILQ_HEAD(, eq_event) events;
};

static int eq_close(struct fid *fid)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, fid.fid);
	struct eq_event *event;

	while ((event = STAILQ_FIRST(&eq->events))) {
		STAILQ_REMOVE_HEAD(&eq->events, link);
		free(event);
	}
	if (eq->bell >= 0)
		close(eq->bell);
	__atomic_sub_fetch(&eq->fabric->users, 1, __ATOMIC_RELEASE);
	pthread_cond_destroy(&eq->written);
	pthread_mutex_destroy(&eq->mutex);
	free(eq);
	return 0;
}

/* Called with the mutex held, after a change. */
static void set_bell(struct prov_eq *eq)
{
	uint64_t value = 1;

	if (eq->bell < 0)
		return;
	if (STAILQ_EMPTY(&eq->events))
		(void)!read(eq->bell, &value, sizeof(value));
	else
		(void)!write(eq->bell, &value, sizeof(value));
}

/* Called with the mutex held. */
static ssize_t take(struct prov_eq *eq, uint32_t *type, void *buffer, size_t length, uint64_t flags)
{
	struct eq_event *event = STAILQ_FIRST(&eq->events);

	if (!event)
		return -FI_EAGAIN;
	if (length < event->length)
		return -FI_ETOOSMALL;
	*type = event->type;
	length = event->length;
	memcpy(buffer, event->bytes, length);
	if (!(flags & FI_PEEK)) {
		STAILQ_REMOVE_HEAD(&eq->events, link);
		free(event);
		set_bell(eq);
	}
	return length;
}

static ssize_t eq_read(struct fid_eq *fid, uint32_t *type, void *buffer, size_t length, uint64_t flags)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, fid);
	ssize_t got;

	pthread_mutex_lock(&eq->mutex);
	got = take(eq, type, buffer, length, flags);
	pthread_mutex_unlock(&eq->mutex);
	return got;
}

static ssize_t eq_readerr(struct fid_eq *fid, struct fi_eq_err_entry *entry, uint64_t flags)
{
	(void)fid, (void)entry, (void)flags;
	return -FI_EAGAIN;
}

static ssize_t eq_write(struct fid_eq *fid, uint32_t type, const void *buffer, size_t length, uint64_t flags)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, fid);
	struct eq_event *event = malloc(sizeof(*event) + length);

	(void)flags;
	if (!event)
		return -FI_ENOMEM;
	event->type = type;
	event->length = length;
	memcpy(event->bytes, buffer, length);
	pthread_mutex_lock(&eq->mutex);
	STAILQ_INSERT_TAIL(&eq->events, event, link);
	set_bell(eq);
	pthread_cond_broadcast(&eq->written);
	pthread_mutex_unlock(&eq->mutex);
	return length;
}

static ssize_t eq_sread(struct fid_eq *fid, uint32_t *type, void *buffer, size_t length, int timeout, uint64_t flags)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, fid);
	struct timespec end;
	ssize_t got;
	int status = 0;

	clock_gettime(CLOCK_MONOTONIC, &end);
	if (timeout > 0) {
		end.tv_sec += timeout / 1000;
		end.tv_nsec += timeout % 1000 * 1000000L;
		if (end.tv_nsec >= 1000000000L) {
			end.tv_sec++;
			end.tv_nsec -= 1000000000L;
		}
	}
	pthread_mutex_lock(&eq->mutex);
	while ((got = take(eq, type, buffer, length, flags)) == -FI_EAGAIN && !status) {
		if (timeout < 0)
			pthread_cond_wait(&eq->written, &eq->mutex);
		else
			status = pthread_cond_timedwait(&eq->written, &eq->mutex, &end);
	}
	pthread_mutex_unlock(&eq->mutex);
	return got;
}

const char *prov_strerror(int number, char *text, size_t length)
{
	const char *message = fi_strerror(number < 0 ? -number : number);

	if (!text || !length)
		return message;
	snprintf(text, length, "%s", message);
	return text;
}

static const char *eq_strerror(struct fid_eq *fid, int number, const void *data, char *text, size_t length)
{
	(void)fid, (void)data;
	return prov_strerror(number, text, length);
}

static int eq_control(struct fid *fid, int command, void *argument)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, fid.fid);

	if (command == FI_GETWAITOBJ)
		*(enum fi_wait_obj *)argument = eq->object;
	else if (command == FI_GETWAIT && eq->object == FI_WAIT_FD)
		*(int *)argument = eq->bell;
	else
		return -FI_ENOSYS;
	return 0;
}

int prov_eq_trywait(struct fid *fid)
{
	struct prov_eq *eq = container_of(fid, struct prov_eq, fid.fid);
	bool empty;

	if (eq->object != FI_WAIT_FD)
		return -FI_EINVAL;
	pthread_mutex_lock(&eq->mutex);
	empty = STAILQ_EMPTY(&eq->events);
	pthread_mutex_unlock(&eq->mutex);
	return empty ? 0 : -FI_EAGAIN;
}

static struct fi_ops eq_fid_ops = PROV_FID_OPS(eq_close, prov_no_bind, eq_control);

static struct fi_ops_eq eq_ops = {
	.size = sizeof(struct fi_ops_eq),
	.read = eq_read,
	.readerr = eq_readerr,
	.write = eq_write,
	.sread = eq_sread,
	.strerror = eq_strerror,
};

/* Its clock is one that nobody sets. */
static void init_written(struct prov_eq *eq)
{
	pthread_condattr_t attributes;

	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&eq->written, &attributes);
	pthread_condattr_destroy(&attributes);
}

int prov_eq_open(struct fid_fabric *fabric, struct fi_eq_attr *attr, struct fid_eq **result, void *context)
{
	enum fi_wait_obj object = attr ? attr->wait_obj : FI_WAIT_NONE;
	struct prov_eq *eq;

	if (object != FI_WAIT_NONE && object != FI_WAIT_UNSPEC && object != FI_WAIT_FD)
		return -FI_ENOSYS;
	eq = calloc(1, sizeof(*eq));
	if (!eq)
		return -FI_ENOMEM;
	eq->object = object;
	eq->bell = object == FI_WAIT_FD ? eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC) : -1;
	if (object == FI_WAIT_FD && eq->bell < 0) {
		free(eq);
		return -errno;
	}
	pthread_mutex_init(&eq->mutex, NULL);
	init_written(eq);
	STAILQ_INIT(&eq->events);
	eq->fabric = container_of(fabric, struct prov_fabric, fid);
	__atomic_add_fetch(&eq->fabric->users, 1, __ATOMIC_RELAXED);
	eq->fid.fid.fclass = FI_CLASS_EQ;
	eq->fid.fid.context = context;
	eq->fid.fid.ops = &eq_fid_ops;
	eq->fid.ops = &eq_ops;
	*result = &eq->fid;
	return 0;
}
