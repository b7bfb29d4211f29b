/* rendezvous.c - sends that wait for a FIN, and the receiver's reading of what was announced. */
#include <stdlib.h>
#include <string.h>

#include "prov.h"

#define ERRNO_LIMIT 4095 /* the most that an errno may be */

/* Sends the header, and what comes after it, of a request whose operation is there. */
static int send_request(struct prov_operation *operation, uint8_t kind, const struct prov_send *send,
			const struct iovec *rest, size_t rest_count, uint32_t part_count)
{
	struct wire_request request = {
		.tag = send->tag,
		.data = send->data,
		.request = prov_operation_id(operation),
		.flags = send->flags & (WIRE_IS_TAGGED | WIRE_HAS_DATA | WIRE_ON_ARRIVAL),
		.parts = part_count,
	};
	struct iovec parts[1 + PROV_IOV_LIMIT] = { { .iov_base = &request, .iov_len = sizeof(request) } };
	int status;

	memcpy(&parts[1], rest, rest_count * sizeof(*rest));
	status = pm_send(operation->peer->pm, kind, parts, 1 + rest_count);
	if (status) {
		prov_operation_end(operation);
		return status;
	}
	operation->ended_ok.length = send->length;
	operation->ended_ok.context = send->context;
	operation->ended_ok.flags = send->flags;
	return 0;
}

/* An injected message that is to be held: the caller's buffer is free at once, so a copy waits in its place. Callers
 * could be told to try again, but some do so without receiving what the others, who do the same, want to get rid of. */
static int copy_injected(struct prov_operation *operation, const struct prov_send *send, struct iovec *copy)
{
	char *to = malloc(send->length ? send->length : 1);

	if (!to)
		return -FI_ENOMEM;
	operation->copy = to;
	*copy = (struct iovec){ .iov_base = to, .iov_len = send->length };
	for (size_t i = 0; i < send->count; i++) {
		prov_copy(to, send->parts[i].iov_base, send->parts[i].iov_len);
		to += send->parts[i].iov_len;
	}
	return 0;
}

/* Registers the parts for the receiver to read; how many there are, or -errno. */
static int announce(struct prov_operation *operation, const struct iovec *parts, size_t count, struct wire_part *wire)
{
	struct pm_context *context = operation->peer->endpoint->domain->context;
	int announced = 0;

	for (size_t i = 0; i < count; i++) {
		struct pm_region **region = &operation->regions[operation->region_count];
		int status;

		if (!parts[i].iov_len)
			continue;
		status = pm_register(context, parts[i].iov_base, parts[i].iov_len, PM_REMOTE_READ, region);
		if (status)
			return status;
		operation->region_count++;
		operation->peer->endpoint->regions++;
		wire[announced++] = (struct wire_part){
			.address = (uintptr_t)parts[i].iov_base,
			.key = pm_region_key(*region),
			.length = parts[i].iov_len,
		};
	}
	return announced;
}

int prov_rendezvous_send(struct prov_peer *peer, const struct prov_send *send)
{
	struct prov_operation *operation = prov_operation_new(peer, PROV_SEND);
	const struct iovec *parts = send->parts;
	struct wire_part wire[WIRE_PARTS];
	struct iovec copy, rest = { .iov_base = wire };
	size_t count = send->count;
	int status = 0;

	if (!operation)
		return -FI_ENOMEM;
	if (send->flags & PROV_INJECT) {
		status = copy_injected(operation, send, &copy);
		parts = &copy;
		count = 1;
	}
	if (!status)
		status = announce(operation, parts, count, wire);
	if (status < 0) {
		prov_operation_end(operation);
		return status == -ENOSPC && peer->endpoint->regions ? -FI_EAGAIN : status; /* one of those will be free again */
	}
	rest.iov_len = status * sizeof(wire[0]);
	return send_request(operation, WIRE_RTS, send, &rest, 1, status);
}

int prov_confirm_send(struct prov_peer *peer, const struct prov_send *send)
{
	struct prov_operation *operation = prov_operation_new(peer, PROV_SEND);

	if (!operation)
		return -FI_ENOMEM;
	return send_request(operation, WIRE_CONFIRM, send, send->parts, send->count, 0);
}

void prov_report_sent(struct prov_ep *ep, struct prov_cntr *cntr, const struct prov_ended *ended, uint64_t flags)
{
	if (unlikely(ended->status)) {
		struct fi_cq_err_entry error = {
			.op_context = ended->context,
			.flags = flags,
			.err = -ended->status,
			.prov_errno = -ended->status,
		};

		FI_INFO(&prov_provider, FI_LOG_EP_DATA, "%s fails: %s\n",
			flags & FI_ATOMIC ? "atomic operation" : !(flags & FI_RMA) ? "send" : flags & FI_READ ? "read" : "write",
			fi_strerror(-ended->status));
		if (ep->tx_cq)
			prov_cq_error(ep->tx_cq, &error, FI_ADDR_NOTAVAIL);
		if (cntr)
			prov_cntr_count(cntr, true);
		return;
	}
	if (ended->flags & PROV_COMPLETE)
		prov_cq_put(ep->tx_cq, ended->context, flags, ended->length, NULL, 0, 0, FI_ADDR_NOTAVAIL);
	if (cntr)
		prov_cntr_count(cntr, false);
}

void prov_send_ended(struct prov_operation *operation, int status)
{
	struct prov_ep *ep = operation->peer->endpoint;
	struct prov_ended ended = operation->ended_ok;

	prov_operation_end(operation);
	ended.status = status;
	prov_report_sent(ep, ep->send_cntr, &ended, prov_send_completion(ended.flags));
}

void prov_fin(struct prov_peer *peer, const struct wire_fin *fin)
{
	struct prov_operation *operation = prov_operation_find(peer, fin->request);

	if (operation && fin->status <= 0 && fin->status >= -ERRNO_LIMIT) {
		if (operation->type == PROV_SEND)
			return prov_send_ended(operation, fin->status);
		/* What fetches something ends well by a RESULT alone. */
		if (operation->type == PROV_ATOMIC && (fin->status || !operation->count))
			return prov_atomic_ended(operation, fin->status);
	}
	prov_drop(peer->endpoint, "answer to no request");
}

void prov_answer(struct prov_peer *peer, uint64_t request, int status)
{
	struct wire_fin fin = { .request = request, .status = status };

	prov_peer_control(peer, WIRE_FIN, &fin, sizeof(fin));
}

void prov_rendezvous_read(const struct prov_arrival *arrival, const struct iovec *parts, size_t count,
			  const struct prov_ended *ended)
{
	struct prov_operation *operation = prov_operation_new(arrival->peer, PROV_RECEIVE_READ);

	if (!operation) {
		struct prov_ended failed = *ended;

		failed.status = -FI_ENOMEM;
		prov_answer(arrival->peer, arrival->request, -FI_ENOMEM);
		prov_read_ended(arrival->peer->endpoint, &failed);
		return;
	}
	operation->ended_ok = *ended;
	operation->request = arrival->request;
	prov_operation_lay(operation, parts, count, arrival->parts, arrival->part_count);
	operation->ended_ok.overflow = arrival->length - operation->ended_ok.length;
	prov_operation_run(operation);
}

void prov_rendezvous_ended(struct prov_operation *operation)
{
	struct prov_peer *peer = operation->peer;
	struct prov_ended ended = operation->ended_ok;

	ended.status = operation->status;
	if (ended.status)
		ended.length = 0;
	prov_answer(peer, operation->request, ended.status);
	prov_operation_end(operation);
	prov_read_ended(peer->endpoint, &ended);
}
