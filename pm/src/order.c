/*
 * order.c - the control channel: what Watari, or whoever else looks after a process of the same user, tells it to do. An
 * order is a hello of its own kind on the context's socket, and the answer, a welcome, comes when it has been carried
 * out. What concerns an endpoint is done by whoever has it just then: its owner, or the keeper, which has seized it.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ivshmem.h"
#include "link.h"
#include "udp.h"
#include "verbs.h"

struct order {
	TAILQ_ENTRY(order) entry;
	struct socket *socket; /* who waits for the answer, or NULL */
	enum order_kind kind;
	enum rail rail;
	uint64_t todo;         /* endpoints that it has not been carried out on, a bit for each */
	uint64_t all;          /* those it is about */
	struct pm_address gone;
};

_Static_assert(SHARED_ENDPOINTS <= 64, "a bit for each endpoint");

/* The process's side. */

static void answer(struct pm_context *context, struct order *order, int status)
{
	struct welcome welcome = {.magic = WELCOME_MAGIC, .status = status};
	if (order->socket) {
		socket_send(order->socket->fd, &welcome, sizeof(welcome), NULL, 0);
		keeper_forget(context, order->socket);
	}
	TAILQ_REMOVE(&context->orders, order, entry);
	free(order);
}

/* Takes the memory that has come with an order, or that was there when the process began. */
static int join_memory(struct pm_context *context, const struct hello *hello, int *memory)
{
	int error = *memory < 0 ? context->area ? 0 : ivshmem_from_environment(context)
				: ivshmem_open(context, *memory, hello->part, hello->parts);
	if (!error)
		*memory = -1;
	return error ? error : context->area ? 0 : -ENODEV;
}

/* Why an order cannot be carried out, or 0. */
static int refusal(struct pm_context *context, const struct hello *hello, int *memory)
{
	unsigned endpoint = address_endpoint(&hello->to);
	switch (hello->order) {
	case ORDER_LEAVE:
	case ORDER_JOIN:
		/* By udp all others meet who leave their rings. */
		if (hello->rail >= RAILS || hello->rail == RAIL_UDP)
			return -EINVAL;
		if (!rail_allowed(context, RAIL_UDP))
			return -EOPNOTSUPP;
		return hello->order == ORDER_JOIN && hello->rail == RAIL_IVSHMEM ? join_memory(context, hello, memory) : 0;
	case ORDER_SAVE:
	case ORDER_RESTORE:
		return !address_valid(&hello->to) || !context->endpoints[endpoint] ||
		       memcmp(&context->endpoints[endpoint]->address, &hello->to, sizeof(hello->to)) ? -ENOENT : 0;
	case ORDER_GONE:
		return address_valid(&hello->from) ? 0 : -EINVAL;
	default:
		return -EINVAL;
	}
}

/* What is done at once. */
static void begin(struct pm_context *context, struct order *order)
{
	if (order->kind == ORDER_LEAVE)
		atomic_fetch_and(&context->rails, ~(1u << order->rail));
	else if (order->kind == ORDER_JOIN)
		atomic_fetch_or(&context->rails, 1u << order->rail);
	for (int i = 0; i < SHARED_ENDPOINTS; i++)
		if (order->all >> i & 1)
			rail_notice(context->endpoints[i]);
}

/* Takes an order, with a descriptor or -1; under the lock. */
void order_take(struct pm_context *context, struct socket *socket, const struct hello *hello, int memory)
{
	struct order *order = calloc(1, sizeof(*order));
	if (!order) {
		if (memory >= 0)
			close(memory);
		keeper_forget(context, socket);
		return;
	}
	*order = (struct order){.socket = socket, .kind = hello->order, .rail = hello->rail, .gone = hello->from};
	TAILQ_INSERT_TAIL(&context->orders, order, entry); /* one that is to be taken back comes first */
	int error = refusal(context, hello, &memory);
	if (memory >= 0)
		close(memory);
	if (error) {
		answer(context, order, error);
		return;
	}
	for (uint64_t i = 0; i < SHARED_ENDPOINTS; i++)
		if (context->endpoints[i] && (order->kind < ORDER_SAVE || order->kind > ORDER_RESTORE || i == address_endpoint(&hello->to)))
			order->all |= 1ull << i;
	order->todo = order->all;
	socket->kind = SOCKET_ORDER;
	socket->order = order;
	begin(context, order);
}

/* Who gave an order has hung up; it holds all the same. */
void order_forget(struct pm_context *context, struct socket *socket)
{
	socket->order->socket = NULL;
	keeper_forget(context, socket);
}

static void rejoin(struct pm_endpoint *endpoint, enum rail rail)
{
	struct pm_peer *peer;
	for (peer = endpoint->peers; peer; peer = peer->hh.next) {
		peer->rings_wanted |= peer->over_udp || peer->leaving ? 1u << rail : 0;
		peer->joins_untold |= peer->udp ? 1u << rail : 0;
	}
}

static void let_go_of(struct pm_endpoint *endpoint, const struct pm_address *address)
{
	struct pm_peer *peer;
	HASH_FIND(hh, endpoint->peers, address, sizeof(*address), peer);
	if (!peer)
		return;
	if (peer->outbound)
		atomic_store(&peer->outbound->gone, -EHOSTDOWN);
	for (unsigned i = 0; i < endpoint->inbound_count; i++)
		if (endpoint->inbound[i]->peer == peer)
			atomic_store(&endpoint->inbound[i]->gone, 1);
	if (peer->udp)
		udp_ended(peer);
	else if (!peer->outbound && !peer->rings)
		peer->status = -EHOSTDOWN; /* nobody waits for it, and nobody shall */
	atomic_store(&endpoint->attention, true);
}

/* Carries out what has been ordered of this endpoint; by who has it. */
void order_carry_out(struct pm_endpoint *endpoint)
{
	struct pm_context *context = endpoint->context;
	struct order *order;
	uint64_t bit = 1ull << endpoint->number;
	pthread_mutex_lock(&context->lock);
	TAILQ_FOREACH(order, &context->orders, entry) {
		if (!(order->todo & bit))
			continue;
		order->todo &= ~bit;
		if (order->kind == ORDER_JOIN) {
			rejoin(endpoint, order->rail);
		} else if (order->kind == ORDER_GONE) {
			let_go_of(endpoint, &order->gone);
		} else if (order->kind == ORDER_SAVE) {
			atomic_store(&endpoint->held, true);
			atomic_store(&endpoint->seized, 1);
		} else if (order->kind == ORDER_RESTORE) {
			atomic_store(&endpoint->held, false);
			udp_look_soon(endpoint);
			/* The keeper, which has the seat, gives it back; the owner has just been told both, and does it here. */
			if (!pthread_mutex_trylock(&endpoint->seat))
				endpoint_give_back(endpoint);
		}
	}
	pthread_mutex_unlock(&context->lock);
}

/* Nothing is to be done about an endpoint any more; under the lock. */
void order_endpoint_closed(struct pm_context *context, uint32_t number)
{
	struct order *order;
	TAILQ_FOREACH(order, &context->orders, entry) {
		order->todo &= ~(1ull << number);
		order->all &= ~(1ull << number);
	}
}

/* Whether all that an endpoint had sent by its rings has arrived. By who has it: its owner, if that has carried an order out
 * by itself, has to come out first, and may have been told to take it up again meanwhile. */
static bool quiet(struct pm_endpoint *endpoint)
{
	if (!endpoint_seize(endpoint))
		return false;
	bool quiet = !atomic_load(&endpoint->held) || verbs_quiet(endpoint);
	endpoint_give_back(endpoint);
	return quiet;
}

static bool carried_out(struct pm_context *context, const struct order *order)
{
	for (int i = 0; i < SHARED_ENDPOINTS; i++) {
		struct pm_endpoint *endpoint = context->endpoints[i];
		if (!endpoint || !(order->all >> i & 1))
			continue;
		if (order->todo >> i & 1 || (order->kind == ORDER_LEAVE && atomic_load(&endpoint->in_use) & 1u << order->rail))
			return false;
		if (order->kind == ORDER_SAVE && (!udp_quiet(endpoint) || !quiet(endpoint)))
			return false;
	}
	return true;
}

/* Whether an endpoint has memory of the rail, be it one that came after an order to leave it. */
static bool is_used(const struct pm_context *context, enum rail rail)
{
	for (int i = 0; i < SHARED_ENDPOINTS; i++)
		if (context->endpoints[i] && atomic_load(&context->endpoints[i]->in_use) & 1u << rail)
			return true;
	return false;
}

static void close_rail(struct pm_context *context, enum rail rail)
{
	if (rail == RAIL_IVSHMEM)
		ivshmem_close(context);
	else if (rail == RAIL_VERBS)
		verbs_close(context);
}

/* Answers the orders that have been carried out; under the lock. Whether there are others. */
bool order_progress(struct pm_context *context)
{
	struct order *order, *next;
	for (order = TAILQ_FIRST(&context->orders); order; order = next) {
		next = TAILQ_NEXT(order, entry);
		if (!carried_out(context, order))
			continue;
		if (order->kind == ORDER_LEAVE && !rail_allowed(context, order->rail) && !is_used(context, order->rail))
			close_rail(context, order->rail);
		answer(context, order, 0);
	}
	return !TAILQ_EMPTY(&context->orders);
}

/* When the context is closed. */
void order_forget_all(struct pm_context *context)
{
	while (!TAILQ_EMPTY(&context->orders))
		answer(context, TAILQ_FIRST(&context->orders), -ESHUTDOWN);
}

/* The side that gives them. */

static int give(const struct pm_address *to, struct hello *hello, int memory, int timeout_ms)
{
	struct welcome welcome;
	pid_t pid;
	if (!address_valid(to))
		return -EINVAL;
	hello->magic = HELLO_MAGIC;
	hello->kind = HELLO_ORDER;
	hello->to = *to;
	int fd = socket_connect(address_id(to));
	if (fd < 0)
		return fd == -ECONNREFUSED ? -EHOSTUNREACH : fd;
	int error = socket_subject(fd, &pid);
	if (!error)
		error = socket_send(fd, hello, sizeof(*hello), &memory, memory >= 0);
	struct pollfd reply = {.fd = fd, .events = POLLIN};
	int came = error ? 0 : poll(&reply, 1, timeout_ms);
	if (!error && came != 1)
		error = came ? -errno : -ETIMEDOUT;
	if (!error)
		error = socket_receive(fd, &welcome, sizeof(welcome), NULL, 0);
	close(fd);
	if (error)
		return error == -EPIPE ? -EHOSTDOWN : error;
	return welcome.magic == WELCOME_MAGIC && welcome.status <= 0 ? welcome.status : -EPROTO;
}

static int order_rail(const struct pm_address *process, enum order_kind kind, const char *name, int timeout_ms)
{
	enum rail rail;
	int error = rail_find(name, strlen(name), &rail);
	return error ? error : give(process, &(struct hello){.order = kind, .rail = rail}, -1, timeout_ms);
}

EXPORT int pm_order_leave(const struct pm_address *process, const char *rail, int timeout_ms)
{
	return order_rail(process, ORDER_LEAVE, rail, timeout_ms);
}

EXPORT int pm_order_join(const struct pm_address *process, const char *rail, int timeout_ms)
{
	return order_rail(process, ORDER_JOIN, rail, timeout_ms);
}

EXPORT int pm_order_join_memory(const struct pm_address *process, const char *memory, int timeout_ms)
{
	struct hello hello = {.order = ORDER_JOIN, .rail = RAIL_IVSHMEM};
	/* A description of its own for each process: locks on it are how places in the memory are taken (ivshmem.c). */
	int fd = ivshmem_find(memory, &hello.part, &hello.parts);
	if (fd < 0)
		return fd;
	int error = give(process, &hello, fd, timeout_ms);
	close(fd);
	return error;
}

EXPORT int pm_order_save(const struct pm_address *endpoint, int timeout_ms)
{
	return give(endpoint, &(struct hello){.order = ORDER_SAVE}, -1, timeout_ms);
}

EXPORT int pm_order_restore(const struct pm_address *endpoint, int timeout_ms)
{
	return give(endpoint, &(struct hello){.order = ORDER_RESTORE}, -1, timeout_ms);
}

EXPORT int pm_order_gone(const struct pm_address *process, const struct pm_address *gone, int timeout_ms)
{
	return give(process, &(struct hello){.order = ORDER_GONE, .from = *gone}, -1, timeout_ms);
}
