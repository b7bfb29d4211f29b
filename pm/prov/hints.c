/* hints.c - whether the provider can do what a caller of fi_getinfo asks for. */
#include <string.h>

#include "prov.h"

/* FI_REMOTE_CQ_DATA is a flag, not a capability in the strict sense, but callers put it there. */
#define ALL (PROV_ALL | FI_REMOTE_CQ_DATA)
#define OP_FLAGS                                                                                                      \
	(FI_COMPLETION | FI_INJECT | FI_INJECT_COMPLETE | FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE |               \
	 FI_MATCH_COMPLETE | FI_MULTI_RECV | FI_REMOTE_CQ_DATA | FI_MORE)

static bool sizes_fit(size_t size, size_t iov_limit)
{
	return size <= PROV_QUEUE_LIMIT && iov_limit <= PROV_IOV_LIMIT;
}

/* Who asks for nothing gets all. */
static bool gets_atomics(const struct fi_info *hints)
{
	return hints->caps ? (hints->caps & FI_ATOMIC) != 0 : prov_tunables.atomics != 0;
}

static const char *check_contexts(const struct fi_info *hints)
{
	const struct fi_tx_attr *tx = hints->tx_attr;
	const struct fi_rx_attr *rx = hints->rx_attr;
	uint64_t order = FI_ORDER_SAS | (gets_atomics(hints) ? PROV_ATOMIC_ORDER : 0);

	if (tx) {
		if (tx->caps & ~ALL)
			return "capabilities of sending";
		if (tx->op_flags & ~OP_FLAGS)
			return "flags of sending";
		if (tx->msg_order & ~order)
			return "order of messages";
		if (!sizes_fit(tx->size, tx->iov_limit) || tx->rma_iov_limit > PROV_IOV_LIMIT ||
		    tx->inject_size > prov_tunables.inject)
			return "sizes of sending";
	}
	if (rx) {
		if (rx->caps & ~ALL)
			return "capabilities of receiving";
		if (rx->op_flags & ~OP_FLAGS)
			return "flags of receiving";
		if (rx->msg_order & ~order)
			return "order of messages";
		if (!sizes_fit(rx->size, rx->iov_limit))
			return "sizes of receiving";
	}
	return NULL;
}

static const char *check_endpoint(const struct fi_info *hints)
{
	const struct fi_ep_attr *attr = hints->ep_attr;
	size_t ordered = gets_atomics(hints) ? PROV_ATOMIC_BYTES : 0;

	if (!attr)
		return NULL;
	/* Others would only come to stack libfabric's own layers on top. */
	if (attr->type != FI_EP_UNSPEC && attr->type != FI_EP_RDM)
		return "endpoint type";
	if (attr->protocol != FI_PROTO_UNSPEC && attr->protocol != (FI_PROV_SPECIFIC | 1))
		return "protocol";
	if (attr->max_msg_size > PROV_MESSAGE_LIMIT)
		return "message size";
	if (attr->max_order_raw_size > ordered || attr->max_order_war_size > ordered || attr->max_order_waw_size > ordered)
		return "order of remote memory access";
	/* FI_SHARED_CONTEXT is among what this refuses. */
	if (attr->tx_ctx_cnt > 1 || attr->rx_ctx_cnt > 1)
		return "several contexts of an endpoint";
	if (attr->auth_key_size)
		return "authorization key";
	return NULL;
}

static const char *check_mr_mode(uint32_t version, const struct fi_info *hints, int mode)
{
	if (!(hints->caps & (FI_RMA | FI_ATOMIC)) || mode == 1 /* FI_MR_BASIC */)
		return NULL;
	if (FI_VERSION_LT(version, FI_VERSION(1, 5)) && mode == 0)
		return NULL;
	return (mode & PROV_MR_MODE) == PROV_MR_MODE ? NULL : "mode of memory registration";
}

static const char *check_domain(uint32_t version, const struct fi_info *hints)
{
	const struct fi_domain_attr *attr = hints->domain_attr;

	if (!attr)
		return NULL;
	if (attr->name && strcmp(attr->name, PROV_NAME))
		return "domain name";
	if (attr->threading > FI_THREAD_ENDPOINT)
		return "threading";
	/* Nothing but data needs progress: what is called control has ended when its call returns, so any model is kept. 3 is
	 * FI_PROGRESS_CONTROL_UNIFIED of later versions: all is done while a queue is read, control included. */
	if (attr->data_progress == FI_PROGRESS_AUTO || attr->data_progress > 3 || attr->control_progress > 3)
		return "progress";
	if (attr->resource_mgmt > FI_RM_ENABLED)
		return "resource management";
	if (attr->av_type > FI_AV_TABLE)
		return "address vector type";
	if (attr->mr_key_size > sizeof(uint64_t) || attr->cq_data_size > sizeof(uint64_t) || attr->mr_iov_limit > 1)
		return "sizes of the domain";
	if (attr->caps & ~(FI_LOCAL_COMM | FI_REMOTE_COMM))
		return "capabilities of the domain";
	if (attr->auth_key_size)
		return "authorization key";
	return check_mr_mode(version, hints, attr->mr_mode);
}

int prov_check_hints(uint32_t version, const struct fi_info *hints)
{
	const char *wrong = NULL;

	if (!hints)
		return 0;
	if (hints->caps & ~ALL)
		wrong = "capabilities";
	else if (hints->addr_format != FI_FORMAT_UNSPEC && hints->addr_format != PROV_ADDRESS_FORMAT)
		wrong = "address format";
	else if (hints->src_addr)
		wrong = "own address";
	else if (hints->dest_addr && hints->dest_addrlen != sizeof(struct pm_address))
		wrong = "address";
	else if (hints->fabric_attr && hints->fabric_attr->name && strcmp(hints->fabric_attr->name, PROV_NAME))
		wrong = "fabric name";
	if (!wrong)
		wrong = check_endpoint(hints);
	if (!wrong)
		wrong = check_domain(version, hints);
	if (!wrong)
		wrong = check_contexts(hints);
	if (!wrong)
		return 0;
	FI_INFO(&prov_provider, FI_LOG_CORE, "not what was asked for: %s\n", wrong);
	return -FI_ENODATA;
}
