/* fabric.c - the fabric object: where a program's domains and event queues come from. */
#include <stdlib.h>
#include <string.h>

#include "prov.h"

static int fabric_close(struct fid *fid)
{
	struct prov_fabric *fabric = container_of(fid, struct prov_fabric, fid.fid);

	if (__atomic_load_n(&fabric->users, __ATOMIC_ACQUIRE))
		return -FI_EBUSY;
	free(fabric);
	return 0;
}

static int no_passive_ep(struct fid_fabric *fabric, struct fi_info *info, struct fid_pep **ep, void *context)
{
	(void)fabric, (void)info, (void)ep, (void)context;
	return -FI_ENOSYS;
}

static int no_wait_open(struct fid_fabric *fabric, struct fi_wait_attr *attr, struct fid_wait **wait)
{
	(void)fabric, (void)attr, (void)wait;
	return -FI_ENOSYS;
}

static int domain2(struct fid_fabric *fabric, struct fi_info *info, struct fid_domain **domain, uint64_t flags,
		   void *context)
{
	return flags ? -FI_ENOSYS : prov_domain_open(fabric, info, domain, context);
}

static struct fi_ops fabric_fid_ops = PROV_FID_OPS(fabric_close, prov_no_bind, prov_no_control);

static struct fi_ops_fabric fabric_ops = {
	.size = sizeof(struct fi_ops_fabric),
	.domain = prov_domain_open,
	.passive_ep = no_passive_ep,
	.eq_open = prov_eq_open,
	.wait_open = no_wait_open,
	.trywait = prov_trywait,
	.domain2 = domain2,
};

int prov_fabric_open(struct fi_fabric_attr *attr, struct fid_fabric **result, void *context)
{
	struct prov_fabric *fabric;

	if (attr->name && strcmp(attr->name, PROV_NAME))
		return -FI_ENODATA;
	fabric = calloc(1, sizeof(*fabric));
	if (!fabric)
		return -FI_ENOMEM;
	fabric->fid.fid.fclass = FI_CLASS_FABRIC;
	fabric->fid.fid.context = context;
	fabric->fid.fid.ops = &fabric_fid_ops;
	fabric->fid.ops = &fabric_ops;
	fabric->fid.api_version = attr->api_version;
	*result = &fabric->fid;
	return 0;
}
