/* info.c - fi_getinfo: what the provider offers to a caller. */
#include <stdlib.h>
#include <string.h>

#include "prov.h"

/* Bytes more than these headers know of: later versions of libfabric, which free the structures and may read them,
 * added members at their ends. Nor may fi_dupinfo make them: which version of it would be called depends on what
 * this file was linked to. */
#define SLACK 256

#define TAG_FORMAT 0xaaaaaaaaaaaaaaaaull /* every bit a field of its own */

static void free_info(struct fi_info *info)
{
	if (!info)
		return;
	if (info->domain_attr)
		free(info->domain_attr->name);
	if (info->fabric_attr)
		free(info->fabric_attr->name);
	free(info->fabric_attr);
	free(info->domain_attr);
	free(info->ep_attr);
	free(info->rx_attr);
	free(info->tx_attr);
	free(info->dest_addr);
	free(info);
}

static struct fi_info *allocate_info(void)
{
	struct fi_info *info = calloc(1, sizeof(*info) + SLACK);

	if (!info)
		return NULL;
	info->tx_attr = calloc(1, sizeof(*info->tx_attr) + SLACK);
	info->rx_attr = calloc(1, sizeof(*info->rx_attr) + SLACK);
	info->ep_attr = calloc(1, sizeof(*info->ep_attr) + SLACK);
	info->domain_attr = calloc(1, sizeof(*info->domain_attr) + SLACK);
	info->fabric_attr = calloc(1, sizeof(*info->fabric_attr) + SLACK);
	if (info->domain_attr)
		info->domain_attr->name = strdup(PROV_NAME);
	if (info->fabric_attr)
		info->fabric_attr->name = strdup(PROV_NAME);
	if (info->tx_attr && info->rx_attr && info->ep_attr && info->domain_attr && info->domain_attr->name &&
	    info->fabric_attr && info->fabric_attr->name)
		return info;
	free_info(info);
	return NULL;
}

/* The capabilities that a caller gets: of the primary ones those asked for, all of the secondary ones. */
static uint64_t granted(const struct fi_info *hints)
{
	uint64_t caps;

	if (!hints || !hints->caps)
		return PROV_ALL;
	caps = hints->caps & PROV_PRIMARY;
	if (caps & (FI_MSG | FI_TAGGED))
		caps |= hints->caps & PROV_MESSAGES ? hints->caps & PROV_MESSAGES : PROV_MESSAGES;
	if (caps & (FI_RMA | FI_ATOMIC))
		caps |= hints->caps & PROV_ACCESSES ? hints->caps & PROV_ACCESSES : PROV_ACCESSES;
	return caps | (PROV_SECONDARY & ~FI_MULTI_RECV) | (caps & FI_MSG ? FI_MULTI_RECV : 0);
}

static void fill_contexts(struct fi_info *info, const struct fi_info *hints)
{
	struct fi_tx_attr *tx = info->tx_attr;
	struct fi_rx_attr *rx = info->rx_attr;

	tx->caps = info->caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_SEND | FI_READ | FI_WRITE);
	tx->msg_order = FI_ORDER_SAS | (info->caps & FI_ATOMIC ? PROV_ATOMIC_ORDER : 0);
	tx->inject_size = prov_tunables.inject;
	tx->size = PROV_QUEUE_SIZE;
	tx->iov_limit = PROV_IOV_LIMIT;
	tx->rma_iov_limit = info->caps & (FI_RMA | FI_ATOMIC) ? PROV_IOV_LIMIT : 0;
	rx->caps = info->caps & (FI_MSG | FI_TAGGED | FI_RMA | FI_ATOMIC | FI_RECV | FI_REMOTE_READ | FI_REMOTE_WRITE |
				 FI_MULTI_RECV | FI_SOURCE | FI_DIRECTED_RECV);
	rx->msg_order = tx->msg_order;
	rx->size = PROV_QUEUE_SIZE;
	rx->iov_limit = PROV_IOV_LIMIT;
	if (hints && hints->tx_attr) {
		tx->op_flags = hints->tx_attr->op_flags;
		if (hints->tx_attr->size > tx->size)
			tx->size = hints->tx_attr->size;
	}
	if (hints && hints->rx_attr) {
		rx->op_flags = hints->rx_attr->op_flags;
		if (hints->rx_attr->size > rx->size)
			rx->size = hints->rx_attr->size;
	}
}

static void fill_domain(struct fi_info *info, const struct fi_info *hints)
{
	struct fi_domain_attr *attr = info->domain_attr;
	const struct fi_domain_attr *wanted = hints ? hints->domain_attr : NULL;

	/* Somebody who says nothing may use as many threads as he likes. */
	attr->threading = wanted && wanted->threading ? wanted->threading : FI_THREAD_SAFE;
	attr->control_progress = wanted && wanted->control_progress ? wanted->control_progress : FI_PROGRESS_MANUAL;
	attr->data_progress = wanted && wanted->data_progress ? wanted->data_progress : FI_PROGRESS_MANUAL;
	attr->resource_mgmt = FI_RM_ENABLED;
	attr->av_type = wanted && wanted->av_type ? wanted->av_type : FI_AV_TABLE;
	if (info->caps & (FI_RMA | FI_ATOMIC))
		attr->mr_mode = wanted && wanted->mr_mode == 1 /* FI_MR_BASIC */ ? 1 : PROV_MR_MODE;
	attr->mr_key_size = sizeof(uint64_t);
	attr->cq_data_size = sizeof(uint64_t);
	attr->cq_cnt = PROV_QUEUE_LIMIT;
	attr->ep_cnt = PROV_QUEUE_LIMIT;
	attr->tx_ctx_cnt = PROV_QUEUE_LIMIT;
	attr->rx_ctx_cnt = PROV_QUEUE_LIMIT;
	attr->max_ep_tx_ctx = 1;
	attr->max_ep_rx_ctx = 1;
	attr->cntr_cnt = PROV_QUEUE_LIMIT;
	attr->mr_iov_limit = 1;
	attr->mr_cnt = PROV_QUEUE_LIMIT;
	attr->caps = FI_LOCAL_COMM | FI_REMOTE_COMM;
}

static int fill_destination(struct fi_info *info, const char *node, uint64_t flags, const struct fi_info *hints)
{
	struct pm_address address;

	if (node && !(flags & FI_SOURCE)) {
		/* Only text made by pm_address_format means something here; a host's name does not. */
		if (pm_address_parse(node, &address))
			return -FI_ENODATA;
	} else if (hints && hints->dest_addr) {
		memcpy(&address, hints->dest_addr, sizeof(address));
	} else {
		return 0;
	}
	info->dest_addr = malloc(sizeof(address));
	if (!info->dest_addr)
		return -FI_ENOMEM;
	memcpy(info->dest_addr, &address, sizeof(address));
	info->dest_addrlen = sizeof(address);
	return 0;
}

int prov_getinfo(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
		 struct fi_info **result)
{
	struct fi_info *info;
	int status = prov_check_hints(version, hints);

	(void)service;
	if (status)
		return status;
	info = allocate_info();
	if (!info)
		return -FI_ENOMEM;
	status = fill_destination(info, node, flags, hints);
	if (status) {
		free_info(info);
		return status;
	}
	info->caps = granted(hints);
	info->addr_format = PROV_ADDRESS_FORMAT;
	info->ep_attr->type = FI_EP_RDM;
	info->ep_attr->protocol = FI_PROV_SPECIFIC | 1;
	info->ep_attr->protocol_version = 1;
	info->ep_attr->max_msg_size = PROV_MESSAGE_LIMIT;
	info->ep_attr->mem_tag_format = hints && hints->ep_attr && hints->ep_attr->mem_tag_format ?
						hints->ep_attr->mem_tag_format : TAG_FORMAT;
	if (info->caps & FI_ATOMIC) {
		info->ep_attr->max_order_raw_size = PROV_ATOMIC_BYTES;
		info->ep_attr->max_order_war_size = PROV_ATOMIC_BYTES;
		info->ep_attr->max_order_waw_size = PROV_ATOMIC_BYTES;
	}
	info->ep_attr->tx_ctx_cnt = 1;
	info->ep_attr->rx_ctx_cnt = 1;
	fill_contexts(info, hints);
	fill_domain(info, hints);
	/* The names of provider and version are filled in by libfabric. */
	*result = info;
	return 0;
}
