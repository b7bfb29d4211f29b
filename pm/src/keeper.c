/*
 * keeper.c - the context's own thread: it accepts and makes connections, and notices their ends, also while the
 * program computes. It sleeps all the rest of the time.
 */
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "link.h"
#include "udp.h"
#include "verbs.h"

/* Where a listener has too many to answer, it is tried again after so many milliseconds. */
#define RETRY_MS 2
/* While packets are on their way, each endpoint is looked after so often, ms. */
#define TICK_MS 2
/* And so often while rails are being left or joined. */
#define SWITCH_MS 1
/* And so often while the verbs rail has sent what is not known to have arrived. A device takes longer to give up. */
#define CONFIRM_MS 50

/* Watches a descriptor, which is closed when it is forgotten; under the lock. */
struct socket *keeper_watch(struct pm_context *context, int fd, enum socket_kind kind)
{
	struct socket *socket = calloc(1, sizeof(*socket));
	struct epoll_event event = {.events = EPOLLIN | EPOLLRDHUP | (kind == SOCKET_PACKETS ? EPOLLONESHOT : 0), .data.ptr = socket};
	if (!socket)
		return NULL;
	socket->fd = fd;
	socket->kind = kind;
	if (epoll_ctl(context->epoll, EPOLL_CTL_ADD, fd, &event)) {
		free(socket);
		return NULL;
	}
	LIST_INSERT_HEAD(&context->sockets, socket, entry);
	return socket;
}

/* Watches a socket of packets for the next one. */
void keeper_watch_again(struct pm_context *context, struct socket *socket)
{
	struct epoll_event event = {.events = EPOLLIN | EPOLLONESHOT, .data.ptr = socket};
	epoll_ctl(context->epoll, EPOLL_CTL_MOD, socket->fd, &event);
}

/* Closes a socket; under the lock. The keeper may hold it among its events, so it frees it. */
void keeper_forget(struct pm_context *context, struct socket *socket)
{
	if (!socket || socket->closed)
		return;
	epoll_ctl(context->epoll, EPOLL_CTL_DEL, socket->fd, NULL);
	close(socket->fd);
	socket->closed = true;
	LIST_REMOVE(socket, entry);
	LIST_INSERT_HEAD(&context->closed_sockets, socket, entry);
}

/* Tells the owner that there is something to look at. */
void endpoint_notice(struct pm_endpoint *endpoint)
{
	atomic_store(&endpoint->attention, true);
	bell_ring(endpoint->doorbell);
}

static void keeper_wake(struct pm_context *context)
{
	bell_ring(context->wake->fd);
}

/* Asks the keeper to connect an outbound. */
void keeper_connect(struct pm_context *context, struct outbound *outbound)
{
	pthread_mutex_lock(&context->lock);
	STAILQ_INSERT_TAIL(&context->connecting, outbound, connecting);
	pthread_mutex_unlock(&context->lock);
	keeper_wake(context);
}

/* Has the keeper look after endpoints whose owners may not come by until all they have sent has arrived. */
void keeper_tick(struct pm_context *context)
{
	if (likely(atomic_load_explicit(&context->ticking, memory_order_relaxed)))
		return;
	atomic_store(&context->ticking, true);
	keeper_wake(context);
}

/* Has it act for the owners whose rails are being left or joined, or remind them. */
void keeper_pace(struct pm_context *context)
{
	if (!atomic_exchange(&context->pacing, true))
		keeper_wake(context);
}

/* Has it look whether what the verbs rail has sent arrives. The owner may not look again, and only who looks learns that a
 * queue pair has failed. */
void keeper_confirm(struct pm_context *context)
{
	if (!atomic_exchange(&context->confirming, true))
		keeper_wake(context);
}

/* What comes now is for who computes and does not look. */
static void watch_packets(struct pm_context *context)
{
	for (int i = 0; i < SHARED_ENDPOINTS; i++)
		if (context->endpoints[i] && context->endpoints[i]->udp)
			keeper_watch_again(context, context->endpoints[i]->udp->packets);
}

/* Acts for the owners that are not inside where rails are being left or joined; whether that goes on. */
static bool look_after(struct pm_context *context)
{
	bool more = false;
	atomic_store(&context->pacing, false);
	for (int i = 0; i < SHARED_ENDPOINTS; i++) {
		pthread_mutex_lock(&context->lock);
		struct pm_endpoint *endpoint = context->endpoints[i];
		bool wanted = endpoint && atomic_load(&endpoint->switching), seized = wanted && endpoint_seize(endpoint);
		if (wanted && !seized)
			atomic_store(&endpoint->attention, true);
		pthread_mutex_unlock(&context->lock);
		more |= wanted;
		if (!seized)
			continue;
		link_news(endpoint);
		endpoint_notice(endpoint);
		endpoint_give_back(endpoint);
	}
	return more;
}

/* Whether an endpoint may have sent by the verbs rail what has not arrived. The owner sets the flag again if it sends
 * meanwhile, or is inside now. */
static bool confirm(struct pm_context *context, int number)
{
	pthread_mutex_lock(&context->lock);
	struct pm_endpoint *endpoint = context->endpoints[number];
	bool wanted = endpoint && atomic_exchange(&endpoint->unconfirmed, false), seized = wanted && endpoint_seize(endpoint);
	if (wanted && !seized)
		atomic_store(&endpoint->unconfirmed, true);
	pthread_mutex_unlock(&context->lock);
	if (!seized)
		return wanted;
	bool arrived = verbs_confirm(endpoint);
	if (!arrived)
		atomic_store(&endpoint->unconfirmed, true);
	endpoint_give_back(endpoint);
	return !arrived;
}

/* Looks, where it is time for that, whether what the verbs rail has sent has arrived; milliseconds until the next time, -1:
 * all has. */
static int confirm_all(struct pm_context *context)
{
	uint64_t now_ns = clock_ns();
	if (!atomic_load(&context->confirming))
		return -1;
	if (!context->confirm_at_ns)
		context->confirm_at_ns = now_ns + CONFIRM_MS * 1000000ull;
	if (now_ns < context->confirm_at_ns)
		return (context->confirm_at_ns - now_ns) / 1000000 + 1;
	bool more = false;
	atomic_store(&context->confirming, false);
	for (int i = 0; i < SHARED_ENDPOINTS; i++)
		more |= confirm(context, i);
	context->confirm_at_ns = more ? now_ns + CONFIRM_MS * 1000000ull : 0;
	if (more)
		atomic_store(&context->confirming, true);
	return more ? CONFIRM_MS : -1;
}

/* Milliseconds until the next time; -1: nothing is on its way. */
static int tick_all(struct pm_context *context)
{
	bool busy = false;
	if (!atomic_load(&context->ticking))
		return -1;
	atomic_store(&context->ticking, false);
	for (int i = 0; i < SHARED_ENDPOINTS; i++)
		if (context->endpoints[i] && context->endpoints[i]->udp)
			busy |= udp_tick(context->endpoints[i]);
	if (busy)
		atomic_store(&context->ticking, true);
	else
		watch_packets(context);
	return busy ? TICK_MS : -1;
}

static void outbound_failed(struct outbound *outbound, int error)
{
	atomic_store(&outbound->gone, error);
	endpoint_notice(outbound->peer->endpoint);
}

static int say_hello(struct pm_context *context, struct outbound *outbound)
{
	struct pm_endpoint *endpoint = outbound->peer->endpoint;
	struct hello hello = {
		.magic = HELLO_MAGIC, .kind = HELLO_CONNECT, .flags = context->fenced ? 0 : HELLO_UNFENCED,
		.from = endpoint->address, .to = outbound->peer->address, .generation = outbound->generation, .rail = outbound->rail,
	};
	hello.flags |= outbound->after_udp ? HELLO_AFTER_UDP : 0;
	__builtin_memcpy(hello.job_key, context->job_key, PM_JOB_KEY_SIZE);
	int fd = socket_connect(address_id(&hello.to));
	if (fd < 0)
		return fd == -ECONNREFUSED ? -EHOSTUNREACH : fd;
	int error = socket_peer(fd, &outbound->pid);
	if (!error)
		error = socket_send(fd, &hello, sizeof(hello), NULL, 0);
	if (!error) {
		outbound->socket = keeper_watch(context, fd, SOCKET_OUT);
		if (outbound->socket) {
			outbound->socket->outbound = outbound;
			return 0;
		}
		error = -ENOMEM;
	}
	close(fd);
	return error == -EPIPE ? -EHOSTUNREACH : error;
}

/* Connects those that wait for it; how long to wait until the next try, ms. */
static int connect_all(struct pm_context *context)
{
	struct outbound *outbound;
	while ((outbound = STAILQ_FIRST(&context->connecting))) {
		int error = say_hello(context, outbound);
		if (error == -EAGAIN)
			return RETRY_MS;
		STAILQ_REMOVE_HEAD(&context->connecting, connecting);
		if (error)
			outbound_failed(outbound, error);
	}
	return -1;
}

static void accept_stranger(struct pm_context *context)
{
	pid_t pid;
	bool root;
	struct socket *socket;
	int fd = accept4(context->listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	if (fd < 0)
		return;
	if (socket_stranger(fd, &pid, &root) || !(socket = keeper_watch(context, fd, SOCKET_STRANGER))) {
		close(fd);
	} else {
		socket->pid = pid;
		socket->root = root;
	}
}

/* The other process is gone, or does not want this one. */
static void connection_ended(struct pm_context *context, struct socket *socket)
{
	if (socket->kind == SOCKET_OUT) {
		struct outbound *outbound = socket->outbound;
		outbound->socket = NULL;
		outbound_failed(outbound, atomic_load(&outbound->ready) ? -EHOSTDOWN : -EHOSTUNREACH);
	} else if (socket->kind == SOCKET_IN) {
		struct inbound *inbound = socket->inbound;
		inbound->socket = NULL;
		atomic_store(&inbound->gone, 1);
		endpoint_notice(inbound->endpoint);
	}
	keeper_forget(context, socket);
}

static void handle(struct pm_context *context, struct socket *socket, uint32_t events)
{
	uint64_t rung;
	if (socket->closed)
		return;
	switch (socket->kind) {
	case SOCKET_WAKE:
		(void)!read(socket->fd, &rung, sizeof(rung));
		return;
	case SOCKET_LISTENER:
		accept_stranger(context);
		return;
	case SOCKET_PACKETS:
		atomic_store(&context->ticking, true);
		return;
	case SOCKET_ORDER:
		order_forget(context, socket);
		return;
	case SOCKET_STRANGER:
		if (events & EPOLLIN)
			welcome_stranger(context, socket);
		else
			keeper_forget(context, socket);
		return;
	case SOCKET_OUT:
		if (events & EPOLLIN && !atomic_load(&socket->outbound->ready)) {
			int error = welcome_take(context, socket->outbound);
			if (error) {
				struct outbound *outbound = socket->outbound;
				outbound->socket = NULL;
				keeper_forget(context, socket);
				outbound_failed(outbound, error);
			}
			return;
		}
		break;
	case SOCKET_IN:
		break;
	}
	/* Nothing is said on an open connection: whoever speaks, or hangs up, is done with. */
	connection_ended(context, socket);
}

/* Handles what has come; how long to wait for more, ms. False: it is to end. */
static bool keep_once(struct pm_context *context, struct epoll_event *events, int n, int *wait_ms)
{
	pthread_mutex_lock(&context->lock);
	bool stop = context->stopping;
	for (int i = 0; i < n && !stop; i++)
		handle(context, events[i].data.ptr, events[i].events);
	*wait_ms = connect_all(context);
	if (atomic_load(&context->ticking))
		*wait_ms = tick_all(context) < 0 ? *wait_ms : TICK_MS;
	while (!LIST_EMPTY(&context->closed_sockets)) {
		struct socket *socket = LIST_FIRST(&context->closed_sockets);
		LIST_REMOVE(socket, entry);
		free(socket);
	}
	pthread_mutex_unlock(&context->lock);
	int confirm_ms = stop ? -1 : confirm_all(context);
	bool switching = !stop && look_after(context);
	if (confirm_ms >= 0 && (*wait_ms < 0 || *wait_ms > confirm_ms))
		*wait_ms = confirm_ms;
	pthread_mutex_lock(&context->lock);
	if (order_progress(context) || switching)
		*wait_ms = SWITCH_MS;
	pthread_mutex_unlock(&context->lock);
	return !stop;
}

static void *keep(void *argument)
{
	struct epoll_event events[64];
	int wait_ms = -1, n;
	do
		n = epoll_wait(((struct pm_context *)argument)->epoll, events, 64, wait_ms);
	while (keep_once(argument, events, n, &wait_ms));
	return NULL;
}

static void free_sockets(struct pm_context *context)
{
	while (!LIST_EMPTY(&context->sockets))
		keeper_forget(context, LIST_FIRST(&context->sockets));
	while (!LIST_EMPTY(&context->closed_sockets)) {
		struct socket *socket = LIST_FIRST(&context->closed_sockets);
		LIST_REMOVE(socket, entry);
		free(socket);
	}
	close(context->epoll);
}

static int watch_own(struct pm_context *context)
{
	int listener = socket_listen(context->id), wake = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (listener >= 0)
		context->listener = keeper_watch(context, listener, SOCKET_LISTENER);
	if (wake >= 0)
		context->wake = keeper_watch(context, wake, SOCKET_WAKE);
	if (context->listener && context->wake)
		return 0;
	int error = listener < 0 ? listener : wake < 0 ? -errno : -ENOMEM;
	if (listener >= 0 && !context->listener)
		close(listener);
	if (wake >= 0 && !context->wake)
		close(wake);
	return error;
}

int keeper_start(struct pm_context *context)
{
	sigset_t all, before;
	context->epoll = epoll_create1(EPOLL_CLOEXEC);
	if (context->epoll < 0)
		return -errno;
	int error = watch_own(context);
	if (!error) {
		/* The program's signals are the program's threads'. */
		sigfillset(&all);
		pthread_sigmask(SIG_SETMASK, &all, &before);
		error = -pthread_create(&context->keeper, NULL, keep, context);
		pthread_sigmask(SIG_SETMASK, &before, NULL);
	}
	if (error)
		free_sockets(context);
	else
		pthread_setname_np(context->keeper, "pm-keeper");
	return error;
}

void keeper_stop(struct pm_context *context)
{
	pthread_mutex_lock(&context->lock);
	context->stopping = true;
	pthread_mutex_unlock(&context->lock);
	keeper_wake(context);
	pthread_join(context->keeper, NULL);
	order_forget_all(context);
	free_sockets(context);
}
