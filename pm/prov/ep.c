/* ep.c - the endpoint object: opening, binding, enabling, closing. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "prov.h"

#define FLUSH_MS 1000 /* what closing waits for room to say what others still wait for */

/* What calls without flags mean. */
static void set_defaults(struct prov_ep *ep)
{
	ep->send_flags = ep->receive_flags = 0;
	if (prov_wants_completion(ep->tx_cq, ep->tx_selective, ep->tx_op_flags))
		ep->send_flags |= PROV_COMPLETE;
	/* Nobody need be told of a delivery that nobody hears of. */
	if (ep->send_flags & PROV_COMPLETE || ep->send_cntr)
		ep->send_flags |= prov_confirmation(ep->tx_op_flags);
	if (ep->tx_op_flags & FI_INJECT)
		ep->send_flags |= PROV_INJECT;
	if (prov_wants_completion(ep->rx_cq, ep->rx_selective, ep->rx_op_flags))
		ep->receive_flags |= PROV_COMPLETE;
	if (ep->rx_op_flags & FI_MULTI_RECV)
		ep->receive_flags |= PROV_MULTI;
}

static int bind_cq(struct prov_ep *ep, struct prov_cq *cq, uint64_t flags)
{
	int status;

	if (flags & ~(FI_TRANSMIT | FI_RECV | FI_SELECTIVE_COMPLETION))
		return -FI_EBADFLAGS;
	if ((flags & FI_TRANSMIT && ep->tx_cq) || (flags & FI_RECV && ep->rx_cq) || !(flags & (FI_TRANSMIT | FI_RECV)))
		return -FI_EINVAL;
	status = prov_collector_bind(&cq->collector, ep);
	if (status)
		return status;
	if (flags & FI_TRANSMIT) {
		ep->tx_cq = cq;
		ep->tx_selective = flags & FI_SELECTIVE_COMPLETION;
		cq->collector.users++;
	}
	if (flags & FI_RECV) {
		ep->rx_cq = cq;
		ep->rx_selective = flags & FI_SELECTIVE_COMPLETION;
		cq->collector.users++;
	}
	return 0;
}

static int bind_cntr(struct prov_ep *ep, struct prov_cntr *cntr, uint64_t flags)
{
	struct {
		uint64_t flag;
		struct prov_cntr **place;
	} places[] = {
		{ FI_SEND, &ep->send_cntr },
		{ FI_RECV, &ep->receive_cntr },
		{ FI_READ, &ep->read_cntr },
		{ FI_WRITE, &ep->write_cntr },
	};
	int status;

	/* Nobody is told here of what others read or write. */
	if (flags & ~(FI_SEND | FI_RECV | FI_READ | FI_WRITE))
		return -FI_ENOSYS;
	status = prov_collector_bind(&cntr->collector, ep);
	if (status)
		return status;
	for (size_t i = 0; i < sizeof(places) / sizeof(places[0]); i++) {
		if (!(flags & places[i].flag) || *places[i].place)
			continue;
		*places[i].place = cntr;
		cntr->collector.users++;
	}
	return 0;
}

static int ep_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid.fid);
	int status = 0;

	prov_lock(ep->domain);
	switch (other->fclass) {
	case FI_CLASS_AV:
		if (ep->av) {
			status = -FI_EINVAL;
			break;
		}
		ep->av = container_of(other, struct prov_av, fid.fid);
		LIST_INSERT_HEAD(&ep->av->endpoints, ep, av_link);
		break;
	case FI_CLASS_CQ:
		status = bind_cq(ep, container_of(other, struct prov_cq, fid.fid), flags);
		break;
	case FI_CLASS_CNTR:
		status = bind_cntr(ep, container_of(other, struct prov_cntr, fid.fid), flags);
		break;
	case FI_CLASS_EQ: /* nothing is ever reported there */
		break;
	default:
		status = -FI_EINVAL;
	}
	prov_unlock(ep->domain);
	return status;
}

static int enable(struct prov_ep *ep)
{
	if (!ep->av)
		return -FI_ENOAV;
	if (!ep->tx_cq && !ep->rx_cq && !ep->send_cntr && !ep->receive_cntr && !ep->read_cntr && !ep->write_cntr)
		return -FI_ENOCQ;
	set_defaults(ep);
	ep->enabled = true;
	return 0;
}

static int change_flags(struct prov_ep *ep, int command, uint64_t *flags)
{
	uint64_t *place = *flags & FI_RECV ? &ep->rx_op_flags : &ep->tx_op_flags;

	if (!(*flags & FI_RECV) == !(*flags & FI_TRANSMIT))
		return -FI_EINVAL;
	if (command == FI_GETOPSFLAG)
		*flags = *place;
	else
		*place = *flags & ~(FI_RECV | FI_TRANSMIT);
	set_defaults(ep);
	return 0;
}

static int ep_control(struct fid *fid, int command, void *argument)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid.fid);
	int status;

	prov_lock(ep->domain);
	switch (command) {
	case FI_ENABLE:
		status = enable(ep);
		break;
	case FI_GETOPSFLAG:
	case FI_SETOPSFLAG:
		status = change_flags(ep, command, argument);
		break;
	default:
		status = -FI_ENOSYS;
	}
	prov_unlock(ep->domain);
	return status;
}

/* Others may still wait for a FIN that finds no room. */
static void flush(struct prov_ep *ep)
{
	struct timespec nap = { .tv_nsec = 1000000 };
	uint64_t until = prov_deadline(FLUSH_MS);

	while (!TAILQ_EMPTY(&ep->blocked) && prov_deadline(0) < until) {
		prov_peer_unblock(ep);
		if (!TAILQ_EMPTY(&ep->blocked))
			nanosleep(&nap, NULL);
	}
}

static void log_statistics(struct prov_ep *ep)
{
	struct pm_statistics figures;
	const struct pm_rail_statistics *rails = figures.rails;

	_Static_assert(PM_RAILS == 4, "the log does not name all rails");
	pm_statistics(ep->pm, &figures);
	FI_INFO(&prov_provider, FI_LOG_EP_CTRL,
		"messages sent %llu received %llu, bytes sent %llu received %llu read %llu written %llu direct %llu, "
		"no room %llu, dropped %llu, atomic operations done for others %llu, "
		"rails switched %llu shm %llu ivshmem %llu verbs %llu udp %llu\n",
		(unsigned long long)figures.messages_sent, (unsigned long long)figures.messages_received,
		(unsigned long long)figures.message_bytes_sent, (unsigned long long)figures.message_bytes_received,
		(unsigned long long)figures.read_bytes, (unsigned long long)figures.write_bytes,
		(unsigned long long)figures.direct_bytes, (unsigned long long)figures.no_room,
		(unsigned long long)(figures.dropped + ep->dropped), (unsigned long long)ep->atomics,
		(unsigned long long)figures.switches, (unsigned long long)rails[PM_RAIL_SHM].messages,
		(unsigned long long)rails[PM_RAIL_IVSHMEM].messages, (unsigned long long)rails[PM_RAIL_VERBS].messages,
		(unsigned long long)rails[PM_RAIL_UDP].messages);
}

static int ep_close(struct fid *fid)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid.fid);
	struct prov_collector *collectors[PROV_COLLECTORS];
	struct prov_domain *domain = ep->domain;

	prov_lock(domain);
	flush(ep);
	log_statistics(ep);
	if (ep->av)
		LIST_REMOVE(ep, av_link);
	prov_collectors_of(ep, collectors);
	for (int i = 0; i < PROV_COLLECTORS; i++)
		prov_collector_unbind(collectors[i], ep);
	prov_sides_close(ep);
	prov_peers_free(ep);
	pm_endpoint_close(ep->pm);
	prov_pool_close(&ep->operations);
	free(ep->peers);
	free(ep);
	prov_unlock(domain);
	__atomic_sub_fetch(&domain->users, 1, __ATOMIC_RELEASE);
	return 0;
}

static int ep_getname(fid_t fid, void *buffer, size_t *length)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid.fid);
	struct pm_address address;
	size_t room = *length;
	int status = pm_endpoint_address(ep->pm, &address);

	if (status)
		return status;
	*length = sizeof(address);
	if (buffer)
		memcpy(buffer, &address, room < sizeof(address) ? room : sizeof(address));
	return room < sizeof(address) ? -FI_ETOOSMALL : 0;
}

static int no_setname(fid_t fid, void *buffer, size_t length)
{
	(void)fid, (void)buffer, (void)length;
	return -FI_ENOSYS;
}

static int no_getpeer(struct fid_ep *ep, void *buffer, size_t *length)
{
	(void)ep, (void)buffer, (void)length;
	return -FI_ENOSYS;
}

static int no_connect(struct fid_ep *ep, const void *address, const void *parameter, size_t length)
{
	(void)ep, (void)address, (void)parameter, (void)length;
	return -FI_ENOSYS;
}

static int no_listen(struct fid_pep *pep)
{
	(void)pep;
	return -FI_ENOSYS;
}

static int no_accept(struct fid_ep *ep, const void *parameter, size_t length)
{
	(void)ep, (void)parameter, (void)length;
	return -FI_ENOSYS;
}

static int no_reject(struct fid_pep *pep, fid_t handle, const void *parameter, size_t length)
{
	(void)pep, (void)handle, (void)parameter, (void)length;
	return -FI_ENOSYS;
}

static int no_shutdown(struct fid_ep *ep, uint64_t flags)
{
	(void)ep, (void)flags;
	return -FI_ENOSYS;
}

static int no_join(struct fid_ep *ep, const void *address, uint64_t flags, struct fid_mc **group, void *context)
{
	(void)ep, (void)address, (void)flags, (void)group, (void)context;
	return -FI_ENOSYS;
}

static int ep_getopt(fid_t fid, int level, int name, void *value, size_t *length)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid.fid);

	if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV)
		return -FI_ENOPROTOOPT;
	if (*length < sizeof(size_t))
		return -FI_ETOOSMALL;
	*(size_t *)value = ep->min_multi_receive;
	*length = sizeof(size_t);
	return 0;
}

static int ep_setopt(fid_t fid, int level, int name, const void *value, size_t length)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid.fid);

	if (level != FI_OPT_ENDPOINT || name != FI_OPT_MIN_MULTI_RECV)
		return -FI_ENOPROTOOPT;
	if (length < sizeof(size_t))
		return -FI_EINVAL;
	ep->min_multi_receive = *(const size_t *)value;
	return 0;
}

static int no_tx_ctx(struct fid_ep *ep, int index, struct fi_tx_attr *attr, struct fid_ep **tx, void *context)
{
	(void)ep, (void)index, (void)attr, (void)tx, (void)context;
	return -FI_ENOSYS;
}

static int no_rx_ctx(struct fid_ep *ep, int index, struct fi_rx_attr *attr, struct fid_ep **rx, void *context)
{
	(void)ep, (void)index, (void)attr, (void)rx, (void)context;
	return -FI_ENOSYS;
}

/* Only want of memory refuses a receive. */
static ssize_t rx_size_left(struct fid_ep *ep)
{
	(void)ep;
	return PROV_QUEUE_SIZE;
}

/* Room is a matter of the peer's ring, and no number is true of all peers. */
static ssize_t no_tx_size_left(struct fid_ep *ep)
{
	(void)ep;
	return -FI_ENOSYS;
}

static struct fi_ops ep_fid_ops = PROV_FID_OPS(ep_close, ep_bind, ep_control);

static struct fi_ops_ep ep_ops = {
	.size = sizeof(struct fi_ops_ep),
	.cancel = prov_cancel,
	.getopt = ep_getopt,
	.setopt = ep_setopt,
	.tx_ctx = no_tx_ctx,
	.rx_ctx = no_rx_ctx,
	.rx_size_left = rx_size_left,
	.tx_size_left = no_tx_size_left,
};

static struct fi_ops_cm cm_ops = {
	.size = sizeof(struct fi_ops_cm),
	.setname = no_setname,
	.getname = ep_getname,
	.getpeer = no_getpeer,
	.connect = no_connect,
	.listen = no_listen,
	.accept = no_accept,
	.reject = no_reject,
	.shutdown = no_shutdown,
	.join = no_join,
};

int prov_ep_open(struct fid_domain *domain, struct fi_info *info, struct fid_ep **result, void *context)
{
	struct prov_ep *ep;
	int status;

	if (info->ep_attr && info->ep_attr->type != FI_EP_UNSPEC && info->ep_attr->type != FI_EP_RDM)
		return -FI_EINVAL;
	ep = calloc(1, sizeof(*ep));
	if (!ep)
		return -FI_ENOMEM;
	ep->domain = container_of(domain, struct prov_domain, fid);
	status = pm_endpoint_open(ep->domain->context, &ep->pm);
	if (status) {
		free(ep);
		return status;
	}
	ep->caps = info->caps ? info->caps : PROV_ALL;
	ep->tx_op_flags = info->tx_attr ? info->tx_attr->op_flags : 0;
	ep->rx_op_flags = info->rx_attr ? info->rx_attr->op_flags : 0;
	ep->eager = prov_tunables.eager;
	ep->min_multi_receive = 64;
	TAILQ_INIT(&ep->all_peers);
	TAILQ_INIT(&ep->blocked);
	TAILQ_INIT(&ep->retries);
	prov_sides_open(ep);
	prov_pool_open(&ep->operations, sizeof(struct prov_operation), offsetof(struct prov_operation, index));
	__atomic_add_fetch(&ep->domain->users, 1, __ATOMIC_RELAXED);
	ep->fid.fid.fclass = FI_CLASS_EP;
	ep->fid.fid.context = context;
	ep->fid.fid.ops = &ep_fid_ops;
	ep->fid.ops = &ep_ops;
	ep->fid.cm = &cm_ops;
	ep->fid.msg = &prov_msg_ops;
	ep->fid.tagged = &prov_tagged_ops;
	ep->fid.rma = &prov_rma_ops;
	ep->fid.atomic = &prov_atomic_ops;
	ep->fid.collective = &prov_collective_stubs;
	*result = &ep->fid;
	return 0;
}
