/* av.c - address vectors: addresses get numbers, for both types of vector. */
#include <stdlib.h>
#include <string.h>

#include "prov.h"

static struct prov_av_entry *entry_at(const struct prov_av *av, fi_addr_t address)
{
	struct prov_av_entry *entry;

	if (address >= av->count)
		return NULL;
	entry = prov_pool_at(&av->entries, address);
	return entry->used ? entry : NULL;
}

const struct pm_address *prov_av_address(const struct prov_av *av, fi_addr_t address)
{
	const struct prov_av_entry *entry = entry_at(av, address);

	return entry ? &entry->address : NULL;
}

fi_addr_t prov_av_find(const struct prov_av *av, const struct pm_address *address)
{
	struct prov_av_entry *entry;

	HASH_FIND(by_address, av->by_address, address, sizeof(*address), entry);
	return entry ? entry->index : FI_ADDR_NOTAVAIL;
}

/* Numbers are given out from 0 upwards, as a table's have to be; those of removed entries again. */
static struct prov_av_entry *new_entry(struct prov_av *av)
{
	struct prov_av_entry *entry = prov_pool_take(&av->entries);

	if (entry && entry->index >= av->count)
		av->count = entry->index + 1;
	return entry;
}

static int insert_one(struct prov_av *av, const struct pm_address *address, fi_addr_t *result)
{
	struct prov_av_entry *entry = new_entry(av);
	struct prov_ep *ep;

	if (!entry)
		return -FI_ENOMEM;
	memcpy(&entry->address, address, sizeof(*address));
	entry->used = true;
	*result = entry->index;
	if (prov_av_find(av, address) == FI_ADDR_NOTAVAIL) {
		HASH_ADD(by_address, av->by_address, address, sizeof(*address), entry);
		LIST_FOREACH(ep, &av->endpoints, av_link)
			prov_peer_inserted(ep, address, entry->index);
	}
	return 0;
}

static int av_insert(struct fid_av *fid, const void *addresses, size_t count, fi_addr_t *results, uint64_t flags,
		     void *context)
{
	struct prov_av *av = container_of(fid, struct prov_av, fid);
	const struct pm_address *address = addresses;
	int inserted = 0;

	prov_lock(av->domain);
	for (size_t i = 0; i < count; i++) {
		fi_addr_t result = FI_ADDR_NOTAVAIL;
		int status = insert_one(av, &address[i], &result);

		if (!status)
			inserted++;
		if (results)
			results[i] = result;
		if (flags & FI_SYNC_ERR)
			((int *)context)[i] = -status;
	}
	prov_unlock(av->domain);
	return inserted;
}

static int av_insertsvc(struct fid_av *fid, const char *node, const char *service, fi_addr_t *result, uint64_t flags,
			void *context)
{
	struct pm_address address;

	(void)service;
	if (!node || pm_address_parse(node, &address))
		return -FI_EINVAL;
	return av_insert(fid, &address, 1, result, flags, context);
}

static int no_insertsym(struct fid_av *fid, const char *node, size_t nodes, const char *service, size_t services,
			fi_addr_t *results, uint64_t flags, void *context)
{
	(void)fid, (void)node, (void)nodes, (void)service, (void)services, (void)results, (void)flags, (void)context;
	return -FI_ENOSYS;
}

static void remove_one(struct prov_av *av, struct prov_av_entry *entry)
{
	struct prov_ep *ep;

	if (prov_av_find(av, &entry->address) == entry->index)
		HASH_DELETE(by_address, av->by_address, entry);
	LIST_FOREACH(ep, &av->endpoints, av_link)
		prov_peer_removed(ep, entry->index);
	entry->used = false;
	prov_pool_give(&av->entries, entry);
}

static int av_remove(struct fid_av *fid, fi_addr_t *addresses, size_t count, uint64_t flags)
{
	struct prov_av *av = container_of(fid, struct prov_av, fid);
	int status = flags ? -FI_EINVAL : 0;

	prov_lock(av->domain);
	for (size_t i = 0; i < count && !status; i++) {
		struct prov_av_entry *entry = entry_at(av, addresses[i]);

		if (entry)
			remove_one(av, entry);
		else
			status = -FI_EINVAL;
	}
	prov_unlock(av->domain);
	return status;
}

static int av_lookup(struct fid_av *fid, fi_addr_t address, void *buffer, size_t *length)
{
	struct prov_av *av = container_of(fid, struct prov_av, fid);
	const struct pm_address *found;

	prov_lock(av->domain);
	found = prov_av_address(av, address);
	if (found)
		memcpy(buffer, found, *length < sizeof(*found) ? *length : sizeof(*found));
	prov_unlock(av->domain);
	if (!found)
		return -FI_EINVAL;
	*length = sizeof(*found);
	return 0;
}

static const char *av_straddr(struct fid_av *fid, const void *address, char *text, size_t *length)
{
	char whole[PM_ADDRESS_TEXT];

	(void)fid;
	pm_address_format(address, whole);
	if (*length) {
		strncpy(text, whole, *length - 1);
		text[*length - 1] = 0;
	}
	*length = sizeof(whole);
	return text;
}

static int no_av_set(struct fid_av *fid, struct fi_av_set_attr *attr, struct fid_av_set **set, void *context)
{
	(void)fid, (void)attr, (void)set, (void)context;
	return -FI_ENOSYS;
}

static int av_close(struct fid *fid)
{
	struct prov_av *av = container_of(fid, struct prov_av, fid.fid);

	if (!LIST_EMPTY(&av->endpoints))
		return -FI_EBUSY;
	HASH_CLEAR(by_address, av->by_address);
	prov_pool_close(&av->entries);
	__atomic_sub_fetch(&av->domain->users, 1, __ATOMIC_RELEASE);
	free(av);
	return 0;
}

static int av_bind(struct fid *fid, struct fid *other, uint64_t flags)
{
	(void)fid, (void)flags;
	return other->fclass == FI_CLASS_EQ ? 0 : -FI_EINVAL;
}

static struct fi_ops av_fid_ops = PROV_FID_OPS(av_close, av_bind, prov_no_control);

static struct fi_ops_av av_ops = {
	.size = sizeof(struct fi_ops_av),
	.insert = av_insert,
	.insertsvc = av_insertsvc,
	.insertsym = no_insertsym,
	.remove = av_remove,
	.lookup = av_lookup,
	.straddr = av_straddr,
	.av_set = no_av_set,
};

int prov_av_open(struct fid_domain *domain, struct fi_av_attr *attr, struct fid_av **result, void *context)
{
	struct prov_av *av;

	if (attr->name || attr->rx_ctx_bits || attr->flags & ~(uint64_t)FI_SYMMETRIC)
		return -FI_ENOSYS;
	av = calloc(1, sizeof(*av));
	if (!av)
		return -FI_ENOMEM;
	if (attr->type == FI_AV_UNSPEC)
		attr->type = FI_AV_TABLE;
	prov_pool_open(&av->entries, sizeof(struct prov_av_entry), offsetof(struct prov_av_entry, index));
	LIST_INIT(&av->endpoints);
	av->domain = container_of(domain, struct prov_domain, fid);
	__atomic_add_fetch(&av->domain->users, 1, __ATOMIC_RELAXED);
	av->fid.fid.fclass = FI_CLASS_AV;
	av->fid.fid.context = context;
	av->fid.fid.ops = &av_fid_ops;
	av->fid.ops = &av_ops;
	*result = &av->fid;
	return 0;
}
