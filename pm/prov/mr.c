/* mr.c - memory regions: those that others may access are registered with PM, the rest need nothing. */
#include <stdlib.h>

#include "prov.h"

static int mr_close(struct fid *fid)
{
	struct prov_mr *mr = container_of(fid, struct prov_mr, fid.fid);

	if (mr->region)
		pm_deregister(mr->region);
	__atomic_sub_fetch(&mr->domain->users, 1, __ATOMIC_RELEASE);
	free(mr);
	return 0;
}

/* Endpoints see all regions of their domain: binding one, and enabling it, are nothing to do. */
static int mr_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)flags;
	return other->fclass == FI_CLASS_EP ? 0 : -FI_ENOSYS;
}

static int mr_control(struct fid *fid, int command, void *argument)
{
	(void)fid, (void)argument;
	return command == FI_ENABLE ? 0 : -FI_ENOSYS;
}

static struct fi_ops mr_fid_ops = PROV_FID_OPS(mr_close, mr_bind, mr_control);

static int mr_open(struct fid *fid, const struct iovec *part, uint64_t access, struct fid_mr **result, void *context)
{
	struct prov_domain *domain = container_of(fid, struct prov_domain, fid.fid);
	struct prov_mr *mr;
	unsigned remote = 0;
	int status;

	if (fid->fclass != FI_CLASS_DOMAIN)
		return -FI_EINVAL;
	mr = calloc(1, sizeof(*mr));
	if (!mr)
		return -FI_ENOMEM;
	if (access & FI_REMOTE_READ)
		remote |= PM_REMOTE_READ;
	if (access & FI_REMOTE_WRITE)
		remote |= PM_REMOTE_WRITE;
	if (remote) {
		status = pm_register(domain->context, part->iov_base, part->iov_len, remote, &mr->region);
		if (status) {
			free(mr);
			return status;
		}
		mr->fid.key = pm_region_key(mr->region);
	}
	mr->domain = domain;
	__atomic_add_fetch(&domain->users, 1, __ATOMIC_RELAXED);
	mr->fid.fid.fclass = FI_CLASS_MR;
	mr->fid.fid.context = context;
	mr->fid.fid.ops = &mr_fid_ops;
	mr->fid.mem_desc = mr;
	*result = &mr->fid;
	return 0;
}

static int mr_reg(struct fid *fid, const void *buffer, size_t length, uint64_t access, uint64_t offset, uint64_t key,
		  uint64_t flags, struct fid_mr **result, void *context)
{
	struct iovec part = { .iov_base = (void *)buffer, .iov_len = length };

	(void)offset, (void)key; /* the provider chooses keys, and addresses are virtual */
	return flags ? -FI_EBADFLAGS : mr_open(fid, &part, access, result, context);
}

static int mr_regv(struct fid *fid, const struct iovec *parts, size_t count, uint64_t access, uint64_t offset,
		   uint64_t key, uint64_t flags, struct fid_mr **result, void *context)
{
	(void)offset, (void)key;
	if (flags)
		return -FI_EBADFLAGS;
	return count == 1 ? mr_open(fid, parts, access, result, context) : -FI_EINVAL;
}

static int mr_regattr(struct fid *fid, const struct fi_mr_attr *attr, uint64_t flags, struct fid_mr **result)
{
	if (flags)
		return -FI_EBADFLAGS;
	if (attr->iov_count != 1)
		return -FI_EINVAL;
	return mr_open(fid, attr->mr_iov, attr->access, result, attr->context);
}

struct fi_ops_mr prov_mr_ops = {
	.size = sizeof(struct fi_ops_mr),
	.reg = mr_reg,
	.regv = mr_regv,
	.regattr = mr_regattr,
};
