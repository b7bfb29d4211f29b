/* domain.c - the domain object: one PM context, and what is opened in it. */
#include <stdlib.h>

#include "prov.h"

static int domain_close(struct fid *fid)
{
	struct prov_domain *domain = container_of(fid, struct prov_domain, fid.fid);

	if (__atomic_load_n(&domain->users, __ATOMIC_ACQUIRE))
		return -FI_EBUSY;
	pm_context_close(domain->context);
	pthread_mutex_destroy(&domain->mutex);
	__atomic_sub_fetch(&domain->fabric->users, 1, __ATOMIC_RELEASE);
	free(domain);
	return 0;
}

static int no_scalable_ep(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, void *context)
{
	(void)domain, (void)info, (void)ep, (void)context;
	return -FI_ENOSYS;
}

static int no_poll_open(struct fid_domain *domain, struct fi_poll_attr *attr, struct fid_poll **set)
{
	(void)domain, (void)attr, (void)set;
	return -FI_ENOSYS;
}

static int no_stx_ctx(struct fid_domain *domain, struct fi_tx_attr *attr, struct fid_stx **stx, void *context)
{
	(void)domain, (void)attr, (void)stx, (void)context;
	return -FI_ENOSYS;
}

static int no_srx_ctx(struct fid_domain *domain, struct fi_rx_attr *attr, struct fid_ep **ep, void *context)
{
	(void)domain, (void)attr, (void)ep, (void)context;
	return -FI_ENOSYS;
}

static int no_query_collective(struct fid_domain *domain, enum fi_collective_op op, struct fi_collective_attr *attr,
			       uint64_t flags)
{
	(void)domain, (void)op, (void)attr, (void)flags;
	return -FI_EOPNOTSUPP;
}

static int endpoint2(struct fid_domain *domain, struct fi_info *info, struct fid_ep **ep, uint64_t flags, void *context)
{
	return flags ? -FI_ENOSYS : prov_ep_open(domain, info, ep, context);
}

/* An event queue may be bound, since callers do so; nothing is ever reported there. */
static int domain_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)flags;
	return other->fclass == FI_CLASS_EQ ? 0 : -FI_EINVAL;
}

static struct fi_ops domain_fid_ops = PROV_FID_OPS(domain_close, domain_bind, prov_no_control);

static struct fi_ops_domain domain_ops = {
	.size = sizeof(struct fi_ops_domain),
	.av_open = prov_av_open,
	.cq_open = prov_cq_open,
	.endpoint = prov_ep_open,
	.scalable_ep = no_scalable_ep,
	.cntr_open = prov_cntr_open,
	.poll_open = no_poll_open,
	.stx_ctx = no_stx_ctx,
	.srx_ctx = no_srx_ctx,
	.query_atomic = prov_query_atomic,
	.query_collective = no_query_collective,
	.endpoint2 = endpoint2,
};

int prov_domain_open(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **result, void *context)
{
	struct prov_domain *domain = calloc(1, sizeof(*domain));
	struct pm_options options = { .size = sizeof(options) };
	int status;

	if (!domain)
		return -FI_ENOMEM;
	status = pm_context_open(&options, &domain->context);
	if (status) {
		FI_WARN(&prov_provider, FI_LOG_DOMAIN, "PM cannot be opened: %s\n", fi_strerror(-status));
		free(domain);
		return status;
	}
	domain->locked = !info->domain_attr || info->domain_attr->threading != FI_THREAD_DOMAIN;
	pthread_mutex_init(&domain->mutex, NULL);
	domain->fabric = container_of(fabric, struct prov_fabric, fid);
	__atomic_add_fetch(&domain->fabric->users, 1, __ATOMIC_RELAXED);
	domain->fid.fid.fclass = FI_CLASS_DOMAIN;
	domain->fid.fid.context = context;
	domain->fid.fid.ops = &domain_fid_ops;
	domain->fid.ops = &domain_ops;
	domain->fid.mr = &prov_mr_ops;
	*result = &domain->fid;
	return 0;
}
