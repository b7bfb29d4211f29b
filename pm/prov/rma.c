/* rma.c - remote memory access: fi_read, fi_write and their variants. */
#include <stdlib.h>

#include "prov.h"

#define RETRY_LIMIT 1024 /* operations that wait for room, after which callers have to try again themselves */

static int check(const struct fi_msg_rma *message, uint64_t flags, uint64_t *length)
{
	uint64_t local = 0, remote = 0;

	if (message->iov_count > PROV_IOV_LIMIT || message->rma_iov_count > PROV_IOV_LIMIT)
		return -FI_EINVAL;
	for (size_t i = 0; i < message->iov_count; i++)
		local += message->msg_iov[i].iov_len;
	for (size_t i = 0; i < message->rma_iov_count; i++)
		remote += message->rma_iov[i].len;
	if (local != remote)
		return -FI_EINVAL;
	if (local > PROV_MESSAGE_LIMIT || (flags & FI_INJECT && local > prov_tunables.inject))
		return -FI_EMSGSIZE;
	*length = local;
	return 0;
}

/* An injected write leaves the caller's buffer at once. */
static int copy_injected(struct prov_operation *operation, const struct fi_msg_rma *message, uint64_t length,
			 struct iovec *copy)
{
	char *to = malloc(length ? length : 1);

	if (!to)
		return -FI_ENOMEM;
	operation->copy = to;
	*copy = (struct iovec){ .iov_base = to, .iov_len = length };
	for (size_t i = 0; i < message->iov_count; i++) {
		prov_copy(to, message->msg_iov[i].iov_base, message->msg_iov[i].iov_len);
		to += message->msg_iov[i].iov_len;
	}
	return 0;
}

static int begin(struct prov_ep *ep, enum prov_operation_type type, const struct fi_msg_rma *message, uint64_t flags,
		 uint32_t own)
{
	struct wire_part remote[PROV_IOV_LIMIT];
	struct prov_operation *operation;
	struct prov_peer *peer;
	struct iovec copy;
	uint64_t length;
	int status = check(message, flags, &length);

	if (!status)
		status = prov_peer_at(ep, message->addr, &peer);
	if (status)
		return status;
	if (ep->retry_count >= RETRY_LIMIT) {
		prov_progress(ep, PROV_SEND_BUDGET);
		if (ep->retry_count >= RETRY_LIMIT)
			return -FI_EAGAIN;
	}
	operation = prov_operation_new(peer, type);
	if (!operation)
		return -FI_ENOMEM;
	for (size_t i = 0; i < message->rma_iov_count; i++)
		remote[i] = (struct wire_part){ .address = message->rma_iov[i].addr,
						.key = message->rma_iov[i].key,
						.length = message->rma_iov[i].len };
	if (flags & FI_INJECT) {
		status = copy_injected(operation, message, length, &copy);
		if (status) {
			prov_operation_end(operation);
			return status;
		}
		prov_operation_lay(operation, &copy, 1, remote, message->rma_iov_count);
	} else {
		prov_operation_lay(operation, message->msg_iov, message->iov_count, remote, message->rma_iov_count);
	}
	operation->ended_ok.context = message->context;
	operation->ended_ok.data = message->data;
	operation->ended_ok.flags = own;
	prov_operation_run(operation);
	return 0;
}

void prov_rma_ended(struct prov_operation *operation)
{
	struct prov_peer *peer = operation->peer;
	struct prov_ep *ep = peer->endpoint;
	struct prov_ended ended = operation->ended_ok;
	bool read = operation->type == PROV_RMA_READ;

	ended.status = operation->status;
	if (!ended.status && ended.flags & PROV_DATA) {
		struct wire_rma_data data = { .data = ended.data, .length = ended.length };

		prov_peer_control(peer, WIRE_RMA_DATA, &data, sizeof(data));
	}
	prov_operation_end(operation);
	prov_report_sent(ep, read ? ep->read_cntr : ep->write_cntr, &ended, FI_RMA | (read ? FI_READ : FI_WRITE));
}

/* What calls without flags of their own come to. */
static ssize_t simple(struct fid_ep *fid, enum prov_operation_type type, const struct iovec *parts, size_t count,
		      fi_addr_t target, uint64_t address, uint64_t key, uint64_t data, void *context, uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	struct fi_rma_iov remote = { .addr = address, .key = key };
	struct fi_msg_rma message = {
		.msg_iov = parts,
		.iov_count = count,
		.addr = target,
		.rma_iov = &remote,
		.rma_iov_count = 1,
		.context = context,
		.data = data,
	};
	uint32_t own = (flags & FI_INJECT ? 0 : ep->send_flags & PROV_COMPLETE) |
		       (flags & FI_REMOTE_CQ_DATA ? PROV_DATA : 0);
	ssize_t status;

	if (count > PROV_IOV_LIMIT)
		return -FI_EINVAL;
	for (size_t i = 0; i < count; i++)
		remote.len += parts[i].iov_len;
	prov_lock(ep->domain);
	status = begin(ep, type, &message, flags, own);
	prov_unlock(ep->domain);
	return status;
}

static ssize_t with_flags(struct fid_ep *fid, enum prov_operation_type type, const struct fi_msg_rma *message,
			  uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	uint32_t own = (prov_wants_completion(ep->tx_cq, ep->tx_selective, flags) ? PROV_COMPLETE : 0) |
		       (flags & FI_REMOTE_CQ_DATA ? PROV_DATA : 0);
	ssize_t status;

	prov_lock(ep->domain);
	status = begin(ep, type, message, flags, own);
	prov_unlock(ep->domain);
	return status;
}

static ssize_t rma_read(struct fid_ep *ep, void *buffer, size_t length, void *descriptor, fi_addr_t source,
			uint64_t address, uint64_t key, void *context)
{
	struct iovec part = { .iov_base = buffer, .iov_len = length };

	(void)descriptor;
	return simple(ep, PROV_RMA_READ, &part, 1, source, address, key, 0, context, 0);
}

static ssize_t rma_readv(struct fid_ep *ep, const struct iovec *parts, void **descriptors, size_t count,
			 fi_addr_t source, uint64_t address, uint64_t key, void *context)
{
	(void)descriptors;
	return simple(ep, PROV_RMA_READ, parts, count, source, address, key, 0, context, 0);
}

static ssize_t rma_readmsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
	return with_flags(ep, PROV_RMA_READ, message, flags & ~(FI_INJECT | FI_REMOTE_CQ_DATA));
}

static ssize_t rma_write(struct fid_ep *ep, const void *buffer, size_t length, void *descriptor, fi_addr_t target,
			 uint64_t address, uint64_t key, void *context)
{
	struct iovec part = { .iov_base = (void *)buffer, .iov_len = length };

	(void)descriptor;
	return simple(ep, PROV_RMA_WRITE, &part, 1, target, address, key, 0, context, 0);
}

static ssize_t rma_writev(struct fid_ep *ep, const struct iovec *parts, void **descriptors, size_t count,
			  fi_addr_t target, uint64_t address, uint64_t key, void *context)
{
	(void)descriptors;
	return simple(ep, PROV_RMA_WRITE, parts, count, target, address, key, 0, context, 0);
}

static ssize_t rma_writemsg(struct fid_ep *ep, const struct fi_msg_rma *message, uint64_t flags)
{
	return with_flags(ep, PROV_RMA_WRITE, message, flags);
}

static ssize_t rma_inject(struct fid_ep *ep, const void *buffer, size_t length, fi_addr_t target, uint64_t address,
			  uint64_t key)
{
	struct iovec part = { .iov_base = (void *)buffer, .iov_len = length };

	return simple(ep, PROV_RMA_WRITE, &part, 1, target, address, key, 0, NULL, FI_INJECT);
}

static ssize_t rma_writedata(struct fid_ep *ep, const void *buffer, size_t length, void *descriptor, uint64_t data,
			     fi_addr_t target, uint64_t address, uint64_t key, void *context)
{
	struct iovec part = { .iov_base = (void *)buffer, .iov_len = length };

	(void)descriptor;
	return simple(ep, PROV_RMA_WRITE, &part, 1, target, address, key, data, context, FI_REMOTE_CQ_DATA);
}

static ssize_t rma_injectdata(struct fid_ep *ep, const void *buffer, size_t length, uint64_t data, fi_addr_t target,
			      uint64_t address, uint64_t key)
{
	struct iovec part = { .iov_base = (void *)buffer, .iov_len = length };

	return simple(ep, PROV_RMA_WRITE, &part, 1, target, address, key, data, NULL, FI_INJECT | FI_REMOTE_CQ_DATA);
}

struct fi_ops_rma prov_rma_ops = {
	.size = sizeof(struct fi_ops_rma),
	.read = rma_read,
	.readv = rma_readv,
	.readmsg = rma_readmsg,
	.write = rma_write,
	.writev = rma_writev,
	.writemsg = rma_writemsg,
	.inject = rma_inject,
	.writedata = rma_writedata,
	.injectdata = rma_injectdata,
};
