/*
 * collector.c - what completion queues and counters have in common: the endpoints that are bound to them, and sleeping
 * until something has come to those.
 *
 * A collector that somebody sleeps on is armed, and so are its endpoints: others then ring where they send something
 * (pm_wait_begin), and who moves an endpoint along, on whatever behalf, rings the collectors that something is put into.
 * An endpoint may have several, and be moved along by a thread while another one sleeps. So rings are forgotten only by
 * who is about to sleep and then finds that nothing is there; if there is, all others that sleep are rung, because who
 * found it may do something else than to take it. All of this is under the domain's lock, except the sleep itself.
 */
#include <limits.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include "prov.h"

#define BUSY_SLICE_MS 1 /* of a sleep while something is to be tried again */

static uint64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

uint64_t prov_deadline(int timeout_ms)
{
	return timeout_ms < 0 ? UINT64_MAX : now_ns() + timeout_ms * 1000000ull;
}

/* What is left of the time, ms, rounded up; -1: no end. */
static int left_ms(uint64_t deadline)
{
	uint64_t now, left;

	if (deadline == UINT64_MAX)
		return -1;
	now = now_ns();
	left = deadline > now ? (deadline - now + 999999) / 1000000 : 0;
	return left > INT_MAX ? INT_MAX : left;
}

int prov_collector_init(struct prov_collector *collector, struct fid_domain *domain, enum fi_wait_obj object)
{
	if (object != FI_WAIT_NONE && object != FI_WAIT_UNSPEC && object != FI_WAIT_FD && object != FI_WAIT_YIELD)
		return -FI_ENOSYS;
	collector->domain = container_of(domain, struct prov_domain, fid);
	collector->object = object;
	collector->fd = collector->bell = -1;
	__atomic_add_fetch(&collector->domain->users, 1, __ATOMIC_RELAXED);
	return 0;
}

void prov_collector_close(struct prov_collector *collector)
{
	if (collector->fd >= 0)
		close(collector->fd);
	if (collector->bell >= 0)
		close(collector->bell);
	free(collector->endpoints);
	__atomic_sub_fetch(&collector->domain->users, 1, __ATOMIC_RELEASE);
}

static int watch(const struct prov_collector *collector, int fd)
{
	struct epoll_event event = { .events = EPOLLIN };

	return epoll_ctl(collector->fd, EPOLL_CTL_ADD, fd, &event) && errno != EEXIST ? -errno : 0;
}

/* Watches an endpoint's descriptors by a collector and by all that have it: that there is a new one is told but once. */
static int watch_endpoint(struct prov_collector *own, const struct prov_ep *ep)
{
	int descriptors[PM_WAIT_DESCRIPTORS], count = pm_wait_descriptors(ep->pm, descriptors), status = count < 0 ? count : 0;
	struct prov_collector *collectors[PROV_COLLECTORS + 1] = { [PROV_COLLECTORS] = own };

	prov_collectors_of(ep, collectors);
	for (int i = 0; i <= PROV_COLLECTORS; i++) {
		for (int j = 0; j < count && !status && collectors[i] && collectors[i]->fd >= 0; j++)
			status = watch(collectors[i], descriptors[j]);
	}
	return status;
}

static void forget_endpoint(const struct prov_collector *collector, const struct prov_ep *ep)
{
	int descriptors[PM_WAIT_DESCRIPTORS], count = pm_wait_descriptors(ep->pm, descriptors);

	for (int i = 0; i < count; i++)
		epoll_ctl(collector->fd, EPOLL_CTL_DEL, descriptors[i], NULL);
}

int prov_collector_open(struct prov_collector *collector)
{
	int status, bell;

	if (collector->fd >= 0)
		return 0;
	collector->fd = epoll_create1(EPOLL_CLOEXEC);
	if (collector->fd < 0)
		return -errno;
	bell = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	status = bell < 0 ? -errno : watch(collector, bell);
	for (uint32_t i = 0; i < collector->endpoint_count && !status; i++)
		status = watch_endpoint(collector, collector->endpoints[i]);
	if (!status) {
		__atomic_store_n(&collector->bell, bell, __ATOMIC_SEQ_CST);
		return 0;
	}
	if (bell >= 0)
		close(bell);
	close(collector->fd);
	collector->fd = -1;
	return status;
}

int prov_collector_bind(struct prov_collector *collector, struct prov_ep *ep)
{
	struct prov_ep **longer;
	int status;

	for (uint32_t i = 0; i < collector->endpoint_count; i++) {
		if (collector->endpoints[i] == ep)
			return 0;
	}
	longer = realloc(collector->endpoints, (collector->endpoint_count + 1) * sizeof(*longer));
	if (!longer)
		return -FI_ENOMEM;
	collector->endpoints = longer;
	status = collector->fd >= 0 ? watch_endpoint(collector, ep) : 0;
	if (status)
		return status;
	longer[collector->endpoint_count++] = ep;
	prov_collector_ring(collector); /* who sleeps has to arm this one, too */
	return 0;
}

void prov_collector_unbind(struct prov_collector *collector, struct prov_ep *ep)
{
	if (!collector)
		return;
	collector->users--;
	for (uint32_t i = 0; i < collector->endpoint_count; i++) {
		if (collector->endpoints[i] != ep)
			continue;
		if (collector->fd >= 0)
			forget_endpoint(collector, ep);
		collector->endpoints[i] = collector->endpoints[--collector->endpoint_count];
		return;
	}
}

void prov_collectors_of(const struct prov_ep *ep, struct prov_collector *collectors[PROV_COLLECTORS])
{
	struct prov_cntr *cntrs[] = { ep->send_cntr, ep->receive_cntr, ep->read_cntr, ep->write_cntr };
	size_t count = 0;

	collectors[count++] = ep->tx_cq ? &ep->tx_cq->collector : NULL;
	collectors[count++] = ep->rx_cq ? &ep->rx_cq->collector : NULL;
	for (size_t i = 0; i < sizeof(cntrs) / sizeof(cntrs[0]); i++)
		collectors[count++] = cntrs[i] ? &cntrs[i]->collector : NULL;
}

static void write_bell(int bell)
{
	uint64_t one = 1;

	if (bell >= 0)
		(void)!write(bell, &one, sizeof(one));
}

void prov_collector_ring(struct prov_collector *collector)
{
	if (!collector->armed || collector->rung)
		return;
	collector->rung = true;
	write_bell(collector->bell);
}

/* Whether anybody may sleep for an endpoint. */
static bool is_wanted(const struct prov_ep *ep)
{
	struct prov_collector *collectors[PROV_COLLECTORS];
	bool wanted = false;

	prov_collectors_of(ep, collectors);
	for (int i = 0; i < PROV_COLLECTORS; i++)
		wanted |= collectors[i] && collectors[i]->armed;
	return wanted;
}

/* Rings all others that may sleep for it, be it on the same collector. */
static void ring_others(const struct prov_ep *ep, const struct prov_collector *own)
{
	struct prov_collector *collectors[PROV_COLLECTORS];

	prov_collectors_of(ep, collectors);
	for (int i = 0; i < PROV_COLLECTORS; i++) {
		if (collectors[i] && (collectors[i] != own || own->domain->locked))
			prov_collector_ring(collectors[i]);
	}
}

/* As pm_wait_begin, where what is new to sleep on has been taken note of. */
static int begin_sleep(struct prov_collector *collector, struct prov_ep *ep)
{
	bool retry = !TAILQ_EMPTY(&ep->blocked) || !TAILQ_EMPTY(&ep->retries);
	int look;

	prov_peers_await(ep);
	while ((look = pm_wait_begin(ep->pm, retry ? BUSY_SLICE_MS : -1)) == 2) {
		int status = watch_endpoint(collector, ep);

		if (status)
			return status;
	}
	return look;
}

/* 0: it rings from now on, -FI_EAGAIN: something has come already, or -errno. */
static int arm(struct prov_collector *collector)
{
	uint64_t rung;

	collector->armed = true;
	collector->rung = false;
	(void)!read(collector->bell, &rung, sizeof(rung));
	for (uint32_t i = 0; i < collector->endpoint_count; i++) {
		struct prov_ep *ep = collector->endpoints[i];
		int look = begin_sleep(collector, ep);

		if (!look)
			continue;
		ring_others(ep, collector);
		return look < 0 ? look : -FI_EAGAIN;
	}
	return 0;
}

void prov_collector_awake(struct prov_collector *collector)
{
	if (collector->sleepers)
		return;
	/* Another thread may sleep on the descriptor still, for all that is known. */
	if (collector->native && collector->domain->locked)
		prov_collector_ring(collector);
	collector->armed = false;
	for (uint32_t i = 0; i < collector->endpoint_count; i++) {
		if (!is_wanted(collector->endpoints[i]))
			pm_wait_end(collector->endpoints[i]->pm);
	}
}

bool prov_collector_sleep(struct prov_collector *collector, uint64_t deadline)
{
	struct epoll_event event;
	int status, left = left_ms(deadline);
	bool signaled;

	if (!left)
		return false;
	collector->sleepers++;
	status = arm(collector);
	signaled = __atomic_exchange_n(&collector->signaled, false, __ATOMIC_SEQ_CST);
	if (!status && !signaled) {
		prov_unlock(collector->domain);
		epoll_wait(collector->fd, &event, 1, left);
		prov_lock(collector->domain);
	}
	collector->sleepers--;
	return !signaled && (!status || status == -FI_EAGAIN);
}

void prov_collector_signal(struct prov_collector *collector)
{
	__atomic_store_n(&collector->signaled, true, __ATOMIC_SEQ_CST);
	write_bell(__atomic_load_n(&collector->bell, __ATOMIC_SEQ_CST));
}

int prov_collector_control(struct prov_collector *collector, int command, void *argument)
{
	int status;

	if (command == FI_GETWAITOBJ) {
		*(enum fi_wait_obj *)argument = collector->object;
		return 0;
	}
	if (command != FI_GETWAIT || collector->object != FI_WAIT_FD)
		return -FI_ENOSYS;
	prov_lock(collector->domain);
	status = prov_collector_open(collector);
	prov_unlock(collector->domain);
	if (!status)
		*(int *)argument = collector->fd;
	return status;
}

static int try_collector(struct prov_collector *collector, bool (*has_news)(const struct fid *), const struct fid *fid)
{
	int status;

	if (collector->object != FI_WAIT_FD)
		return -FI_EINVAL;
	prov_lock(collector->domain);
	status = prov_collector_open(collector);
	if (!status)
		status = has_news(fid) ? -FI_EAGAIN : arm(collector);
	collector->native = true;
	prov_unlock(collector->domain);
	return status;
}

int prov_trywait(struct fid_fabric *fabric, struct fid **fids, int count)
{
	int status = 0;

	(void)fabric;
	for (int i = 0; i < count && !status; i++) {
		struct fid *fid = fids[i];

		switch (fid->fclass) {
		case FI_CLASS_CQ:
			status = try_collector(&container_of(fid, struct prov_cq, fid.fid)->collector, prov_cq_has_news, fid);
			break;
		case FI_CLASS_CNTR:
			status = try_collector(&container_of(fid, struct prov_cntr, fid.fid)->collector, prov_cntr_has_news, fid);
			break;
		case FI_CLASS_EQ:
			status = prov_eq_trywait(fid);
			break;
		default:
			status = -FI_EINVAL;
		}
	}
	return status;
}
