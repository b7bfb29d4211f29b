/* wire.c - the thread of a context of the stub, and the connections between contexts. */
#include "wire.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>

uint64_t now_ms(void)
{
	struct timespec now;
	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000ull + now.tv_nsec / 1000000;
}

/* Names are unique in a network namespace, as addresses are. */
static socklen_t name_slot(struct sockaddr_un *name, int slot)
{
	*name = (struct sockaddr_un){.sun_family = AF_UNIX};
	int length = snprintf(name->sun_path + 1, sizeof name->sun_path - 1, "stub-verbs-%d", slot);
	return offsetof(struct sockaddr_un, sun_path) + 1 + length;
}

static int watch(struct stub_context *context, int fd, uint32_t events, void *what)
{
	struct epoll_event event = {.events = events, .data.ptr = what};
	return epoll_ctl(context->epoll, EPOLL_CTL_ADD, fd, &event);
}

/* Begins at a number that the process had chosen for it, so that a slot is not used again at once. */
static int bind_slot(struct stub_context *context)
{
	static unsigned opened;
	unsigned first = (unsigned)getpid() + __atomic_fetch_add(&opened, 1, __ATOMIC_RELAXED) * 509;
	for (unsigned tries = 0; tries < SLOTS - 1; tries++) {
		struct sockaddr_un name;
		context->slot = 1 + (first + tries) % (SLOTS - 1);
		socklen_t length = name_slot(&name, context->slot);
		if (bind(context->listener, (struct sockaddr *)&name, length) == 0)
			return listen(context->listener, 4096);
		if (errno != EADDRINUSE)
			return -1;
	}
	return -1;
}

int open_slot(struct stub_context *context)
{
	context->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	context->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	context->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (context->listener < 0 || context->wake < 0 || context->epoll < 0 || bind_slot(context) < 0 ||
	    watch(context, context->wake, EPOLLIN, &context->wake) < 0 ||
	    watch(context, context->listener, EPOLLIN, &context->listener) < 0) {
		close_wire(context);
		return -1;
	}
	return 0;
}

void wake(struct stub_context *context)
{
	uint64_t one = 1;
	if (context->wake >= 0 && write(context->wake, &one, sizeof one) < 0 && errno != EAGAIN)
		die("the thread can't be woken: %s", strerror(errno));
}

static void free_connection(struct connection *connection)
{
	struct stub_qp *qp = connection->qp;
	if (qp && qp->inbound == connection)
		qp->inbound = NULL;
	if (qp && qp->outbound == connection) {
		qp->outbound = NULL;
		qp->lost = connection->accepted;
		qp->redial_ms = now_ms() + TICK_MS;
	}
	LIST_REMOVE(connection, link);
	close(connection->fd);
	free(connection);
}

void close_wire(struct stub_context *context)
{
	while (!LIST_EMPTY(&context->connections))
		free_connection(LIST_FIRST(&context->connections));
	int *fds[] = {&context->listener, &context->wake, &context->epoll};
	for (size_t i = 0; i < sizeof fds / sizeof *fds; i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

/* Asks to be told of what can be dealt with, and of no more. */
void watch_connection(struct stub_context *context, struct connection *connection)
{
	uint32_t events = (connection->stuck ? 0 : EPOLLIN) | (connection->full ? EPOLLOUT : 0);
	struct epoll_event event = {.events = events, .data.ptr = connection};
	if (events != connection->watched && epoll_ctl(context->epoll, EPOLL_CTL_MOD, connection->fd, &event) < 0)
		die("a connection can't be watched: %s", strerror(errno));
	connection->watched = events;
}

static struct connection *add_connection(struct stub_context *context, int fd)
{
	struct connection *connection = calloc(1, sizeof *connection);
	if (!connection || watch(context, fd, EPOLLIN, connection) < 0)
		die("no connection: %s", strerror(errno));
	connection->fd = fd;
	connection->watched = EPOLLIN;
	LIST_INSERT_HEAD(&context->connections, connection, link);
	return connection;
}

/* A connection to the queue pair that this one is to send to; NULL while there is none. A queue that is full (EAGAIN) is
 * that of a process that is there. */
struct connection *dial(struct stub_context *context, struct stub_qp *qp)
{
	struct sockaddr_un name;
	socklen_t length = name_slot(&name, qp->attr.dest_qp_num / QPS);
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (fd < 0 || connect(fd, (struct sockaddr *)&name, length) < 0) {
		if (errno == EAGAIN)
			qp->deadline_ms = 0;
		if (fd >= 0)
			close(fd);
		return NULL;
	}
	struct connection *connection = add_connection(context, fd);
	connection->outbound = true;
	connection->qp = qp;
	struct packet hello = {.type = HELLO, .source = qp->ibv.qp_num, .destination = qp->attr.dest_qp_num,
		.psn = qp->attr.sq_psn, .gid = qp->attr.ah_attr.grh.dgid};
	send_packet(context, connection, &hello, NULL, 0);
	return connection;
}

/* Ends a connection: its other side sees that at once, and the thread of this one frees it. */
void hang_up(struct connection *connection)
{
	struct stub_qp *qp = connection->qp;
	if (qp && qp->inbound == connection)
		qp->inbound = NULL;
	if (qp && qp->outbound == connection)
		qp->outbound = NULL;
	connection->qp = NULL;
	shutdown(connection->fd, SHUT_RDWR);
}

void disconnect(struct stub_qp *qp)
{
	if (qp->inbound)
		hang_up(qp->inbound);
	if (qp->outbound)
		hang_up(qp->outbound);
}

/* The next packet of a connection, or the one that is held from before. */
bool take_packet(struct connection *connection)
{
	if (connection->held)
		return true;
	ssize_t size;
	do /* the other side's closing with something unread is told once, before what it has sent */
		size = recv(connection->fd, &connection->in, sizeof connection->in, MSG_DONTWAIT);
	while (size < 0 && (errno == EINTR || errno == ECONNRESET));
	if (size < (ssize_t)sizeof connection->in.packet) {
		connection->closed = size >= 0 || errno != EAGAIN;
		return false;
	}
	connection->size = size - offsetof(typeof(connection->in), data);
	connection->held = true;
	connection->rested = false;
	return true;
}

/* False: it can't be sent now (full is set), or not at all. */
bool send_packet(struct stub_context *context, struct connection *connection, struct packet *packet, struct iovec *parts,
		 int count)
{
	struct iovec all[1 + MAX_SGE] = {{packet, sizeof *packet}};
	if (count)
		memcpy(all + 1, parts, count * sizeof *parts);
	struct msghdr message = {.msg_iov = all, .msg_iovlen = 1 + count};
	if (sendmsg(connection->fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0)
		return true;
	int error = errno;
	connection->full = error == EAGAIN;
	watch_connection(context, connection);
	errno = error;
	return false;
}

/* The random delay, without the lock. */
void rest(struct stub_context *context)
{
	if (!context->delay_us)
		return;
	uint64_t us = random_number(context) % (context->delay_us + 1);
	struct timespec time = {.tv_sec = us / 1000000, .tv_nsec = us % 1000000 * 1000};
	pthread_mutex_unlock(&context->lock);
	nanosleep(&time, NULL);
	pthread_mutex_lock(&context->lock);
}

static void handle(struct stub_context *context, struct epoll_event *event)
{
	struct connection *connection = event->data.ptr;
	uint64_t count;
	if (event->data.ptr == &context->wake) {
		while (read(context->wake, &count, sizeof count) > 0)
			;
		return;
	}
	if (event->data.ptr == &context->listener) {
		int fd = accept4(context->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
		if (fd >= 0)
			add_connection(context, fd);
		return;
	}
	connection->ready = true;
	if (event->events & EPOLLOUT)
		connection->full = false;
	if (event->events & (EPOLLHUP | EPOLLERR) && connection->stuck)
		connection->closed = true;
}

/* Does what can be done; true: something is to be tried again soon. */
static bool work(struct stub_context *context)
{
	struct connection *connection, *next;
	struct stub_qp *qp;
	bool soon = false;
	for (connection = LIST_FIRST(&context->connections); connection; connection = next) {
		if (connection->ready && connection->outbound)
			take_answers(context, connection);
		else if (connection->ready || connection->stuck)
			soon |= respond(context, connection);
		connection->ready = false;
		watch_connection(context, connection);
		next = LIST_NEXT(connection, link);
		if (connection->closed)
			free_connection(connection);
	}
	LIST_FOREACH(qp, &context->all_qps, link)
		soon |= transmit(context, qp);
	return soon;
}

void *device_thread(void *argument)
{
	struct stub_context *context = argument;
	bool soon = false;
	for (;;) {
		struct epoll_event events[64];
		int count = epoll_wait(context->epoll, events, 64, soon ? TICK_MS : -1);
		pthread_mutex_lock(&context->lock);
		if (context->stopping)
			break;
		for (int i = 0; i < count; i++)
			handle(context, &events[i]);
		soon = work(context);
		pthread_mutex_unlock(&context->lock);
	}
	pthread_mutex_unlock(&context->lock);
	return NULL;
}
