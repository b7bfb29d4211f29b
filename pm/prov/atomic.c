/*
 * atomic.c - atomic operations: who starts one sends it to the owner of the memory, who does it when it comes by
 * (atomic_take.c), and answers. As they go with the messages, those of one endpoint to another are done in the order in
 * which they began.
 */
#include <string.h>

#include "prov.h"

#define SENDS_LIMIT 64  /* sends in a row after which answers are looked for */
#define HEADER_BYTES 64 /* what an operation without operands counts */

/* What the caller wants. */
struct atomic {
	enum wire_form form;
	enum fi_datatype datatype;
	enum fi_op op;
	const struct fi_ioc *operands, *compares;
	const struct fi_rma_ioc *targets;
	struct fi_ioc *results;
	size_t operand_count, compare_count, target_count, result_count; /* of the lists */
	size_t size;                                                     /* bytes of an element */
	uint64_t bytes;                                                  /* of the target */
	void *context;
};

/* Bytes of a list's elements; more than can be sent where it is longer. */
static uint64_t bytes_of(const struct fi_ioc *list, size_t count, size_t size)
{
	uint64_t bytes = 0;

	for (size_t i = 0; i < count; i++)
		bytes += list[i].count > PROV_ATOMIC_BYTES ? PROV_ATOMIC_BYTES + 1 : list[i].count * size;
	return bytes;
}

static int check(struct atomic *atomic)
{
	bool compares = atomic->form == WIRE_COMPARE, fetches = atomic->form != WIRE_BASE;

	atomic->size = prov_atomic_size(atomic->form, atomic->datatype, atomic->op);
	if (!atomic->size)
		return -FI_EOPNOTSUPP;
	if (!atomic->target_count || atomic->target_count > PROV_IOV_LIMIT || atomic->operand_count > PROV_IOV_LIMIT ||
	    atomic->compare_count > PROV_IOV_LIMIT || atomic->result_count > PROV_IOV_LIMIT)
		return -FI_EINVAL;
	for (size_t i = 0; i < atomic->target_count; i++)
		atomic->bytes += bytes_of(&(struct fi_ioc){ .count = atomic->targets[i].count }, 1, atomic->size);
	if (!atomic->bytes)
		return -FI_EINVAL;
	if (atomic->bytes * (1 + compares) > PROV_ATOMIC_BYTES)
		return -FI_EMSGSIZE;
	if ((prov_atomic_has_operands(atomic->op) &&
	     bytes_of(atomic->operands, atomic->operand_count, atomic->size) != atomic->bytes) ||
	    (compares && bytes_of(atomic->compares, atomic->compare_count, atomic->size) != atomic->bytes) ||
	    (fetches && bytes_of(atomic->results, atomic->result_count, atomic->size) != atomic->bytes))
		return -FI_EINVAL;
	return 0;
}

static char *put(char *to, const struct fi_ioc *list, size_t count, size_t size)
{
	for (size_t i = 0; i < count; i++)
		to = mempcpy(to, list[i].addr, list[i].count * size);
	return to;
}

/* Sends the operation that waits for the answer. */
static int send_request(const struct prov_operation *operation, const struct atomic *atomic)
{
	struct wire_atomic header = {
		.request = prov_operation_id(operation),
		.form = atomic->form,
		.datatype = atomic->datatype,
		.op = atomic->op,
		.parts = atomic->target_count,
	};
	size_t lists = (prov_atomic_has_operands(atomic->op) ? 1 : 0) + (atomic->form == WIRE_COMPARE ? 1 : 0);
	size_t length = sizeof(header) + atomic->target_count * sizeof(struct wire_part) + lists * atomic->bytes;
	void *room;
	char *to;
	int status = pm_reserve(operation->peer->pm, length, &room);

	if (status)
		return status;
	to = mempcpy(room, &header, sizeof(header));
	for (size_t i = 0; i < atomic->target_count; i++) {
		struct wire_part part = {
			.address = atomic->targets[i].addr,
			.key = atomic->targets[i].key,
			.length = atomic->targets[i].count * atomic->size,
		};

		to = mempcpy(to, &part, sizeof(part));
	}
	if (prov_atomic_has_operands(atomic->op))
		to = put(to, atomic->operands, atomic->operand_count, atomic->size);
	if (atomic->form == WIRE_COMPARE)
		put(to, atomic->compares, atomic->compare_count, atomic->size);
	pm_commit(operation->peer->pm, WIRE_ATOMIC);
	return 0;
}

static int start(struct prov_peer *peer, const struct atomic *atomic, uint32_t flags)
{
	struct prov_operation *operation;
	int status;

	if (peer->gone)
		return -FI_EHOSTDOWN;
	if (peer->atomic_bytes >= PROV_ATOMIC_WINDOW)
		return -FI_EAGAIN;
	operation = prov_operation_new(peer, PROV_ATOMIC);
	if (!operation)
		return -FI_ENOMEM;
	status = send_request(operation, atomic);
	if (status) {
		prov_operation_end(operation);
		return status;
	}
	for (size_t i = 0; i < atomic->result_count; i++)
		operation->segments[i] = (struct prov_segment){ .local = atomic->results[i].addr,
								.length = atomic->results[i].count * atomic->size };
	operation->count = atomic->result_count;
	operation->ended_ok.context = atomic->context;
	operation->ended_ok.flags = flags;
	operation->ended_ok.length = atomic->bytes;
	peer->atomic_bytes += HEADER_BYTES + atomic->bytes;
	return 0;
}

static ssize_t begin(struct fid_ep *fid, fi_addr_t target, struct atomic *atomic, uint32_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	struct prov_peer *peer;
	int status = check(atomic);

	if (status)
		return status;
	prov_lock(ep->domain);
	status = prov_peer_at(ep, target, &peer);
	if (!status) {
		if (ep->sends++ >= SENDS_LIMIT)
			prov_progress(ep, PROV_SEND_BUDGET);
		status = start(peer, atomic, flags);
		if (status == -FI_EAGAIN) {
			prov_progress(ep, PROV_SEND_BUDGET);
			status = start(peer, atomic, flags);
		}
	}
	prov_unlock(ep->domain);
	return status;
}

void prov_atomic_ended(struct prov_operation *operation, int status)
{
	struct prov_peer *peer = operation->peer;
	struct prov_ep *ep = peer->endpoint;
	struct prov_ended ended = operation->ended_ok;
	bool fetched = operation->count;

	peer->atomic_bytes -= HEADER_BYTES + ended.length;
	prov_operation_end(operation);
	ended.status = status;
	prov_report_sent(ep, fetched ? ep->read_cntr : ep->write_cntr, &ended, FI_ATOMIC | (fetched ? FI_READ : FI_WRITE));
}

void prov_atomic_result(struct prov_peer *peer, const struct pm_message *message)
{
	const char *from = message->data;
	struct prov_operation *operation;
	struct wire_fin header;

	if (message->length < sizeof(header))
		return prov_drop(peer->endpoint, "too short");
	memcpy(&header, from, sizeof(header));
	operation = prov_operation_find(peer, header.request);
	if (!operation || operation->type != PROV_ATOMIC || !operation->count ||
	    message->length - sizeof(header) != operation->ended_ok.length)
		return prov_drop(peer->endpoint, "result of no operation");
	from += sizeof(header);
	for (uint32_t i = 0; i < operation->count; i++) {
		memcpy(operation->segments[i].local, from, operation->segments[i].length);
		from += operation->segments[i].length;
	}
	prov_atomic_ended(operation, 0);
}

/* ---- libfabric's calls */

#define REFUSED_FLAGS (FI_REMOTE_CQ_DATA | FI_FENCE | FI_TAGGED)

static ssize_t with_flags(struct fid_ep *fid, enum wire_form form, const struct fi_msg_atomic *message,
			  const struct fi_ioc *compares, size_t compare_count, struct fi_ioc *results, size_t result_count,
			  uint64_t flags)
{
	struct prov_ep *ep = container_of(fid, struct prov_ep, fid);
	struct atomic atomic = {
		.form = form, .datatype = message->datatype, .op = message->op,
		.operands = message->msg_iov, .operand_count = message->iov_count,
		.compares = compares, .compare_count = compare_count,
		.results = results, .result_count = result_count,
		.targets = message->rma_iov, .target_count = message->rma_iov_count,
		.context = message->context,
	};

	if (flags & REFUSED_FLAGS)
		return -FI_EBADFLAGS;
	return begin(fid, message->addr, &atomic, prov_wants_completion(ep->tx_cq, ep->tx_selective, flags) ? PROV_COMPLETE : 0);
}

/* What calls without flags of their own come to. */
static ssize_t simple(struct fid_ep *fid, struct atomic *atomic, fi_addr_t target, uint64_t address, uint64_t key,
		      uint32_t flags)
{
	struct fi_rma_ioc there = { .addr = address, .key = key };

	if (atomic->operand_count > PROV_IOV_LIMIT || atomic->result_count > PROV_IOV_LIMIT)
		return -FI_EINVAL;
	/* What is only read may come without operands. */
	if (atomic->op == FI_ATOMIC_READ) {
		for (size_t i = 0; i < atomic->result_count; i++)
			there.count += atomic->results[i].count;
	} else {
		for (size_t i = 0; i < atomic->operand_count; i++)
			there.count += atomic->operands[i].count;
	}
	atomic->targets = &there;
	atomic->target_count = 1;
	return begin(fid, target, atomic, flags);
}

static uint32_t default_flags(struct fid_ep *fid)
{
	return container_of(fid, struct prov_ep, fid)->send_flags & PROV_COMPLETE;
}

#define TARGET fi_addr_t target, uint64_t address, uint64_t key, enum fi_datatype datatype, enum fi_op op

static ssize_t write_list(struct fid_ep *ep, const struct fi_ioc *operands, void **descriptors, size_t count, TARGET,
		      void *context)
{
	struct atomic atomic = { .form = WIRE_BASE, .datatype = datatype, .op = op, .operands = operands,
				 .operand_count = count, .context = context };

	(void)descriptors;
	return simple(ep, &atomic, target, address, key, default_flags(ep));
}

static ssize_t write_one(struct fid_ep *ep, const void *buffer, size_t count, void *descriptor, TARGET, void *context)
{
	struct fi_ioc operand = { .addr = (void *)buffer, .count = count };

	(void)descriptor;
	return write_list(ep, &operand, NULL, 1, target, address, key, datatype, op, context);
}

static ssize_t writemsg(struct fid_ep *ep, const struct fi_msg_atomic *message, uint64_t flags)
{
	return with_flags(ep, WIRE_BASE, message, NULL, 0, NULL, 0, flags);
}

static ssize_t inject(struct fid_ep *ep, const void *buffer, size_t count, TARGET)
{
	struct fi_ioc operand = { .addr = (void *)buffer, .count = count };
	struct atomic atomic = { .form = WIRE_BASE, .datatype = datatype, .op = op, .operands = &operand, .operand_count = 1 };

	return simple(ep, &atomic, target, address, key, 0);
}

static ssize_t fetch_list(struct fid_ep *ep, const struct fi_ioc *operands, void **descriptors, size_t count,
		      struct fi_ioc *results, void **result_descriptors, size_t result_count, TARGET, void *context)
{
	struct atomic atomic = { .form = WIRE_FETCH, .datatype = datatype, .op = op, .operands = operands,
				 .operand_count = count, .results = results, .result_count = result_count,
				 .context = context };

	(void)descriptors, (void)result_descriptors;
	return simple(ep, &atomic, target, address, key, default_flags(ep));
}

static ssize_t fetch_one(struct fid_ep *ep, const void *buffer, size_t count, void *descriptor, void *result,
			 void *result_descriptor, TARGET, void *context)
{
	struct fi_ioc operand = { .addr = (void *)buffer, .count = count };
	struct fi_ioc to = { .addr = result, .count = count };

	(void)descriptor, (void)result_descriptor;
	return fetch_list(ep, &operand, NULL, 1, &to, NULL, 1, target, address, key, datatype, op, context);
}

static ssize_t fetchmsg(struct fid_ep *ep, const struct fi_msg_atomic *message, struct fi_ioc *results,
			void **descriptors, size_t count, uint64_t flags)
{
	(void)descriptors;
	return with_flags(ep, WIRE_FETCH, message, NULL, 0, results, count, flags);
}

static ssize_t compare_list(struct fid_ep *ep, const struct fi_ioc *operands, void **descriptors, size_t count,
			const struct fi_ioc *compares, void **compare_descriptors, size_t compare_count,
			struct fi_ioc *results, void **result_descriptors, size_t result_count, TARGET, void *context)
{
	struct atomic atomic = { .form = WIRE_COMPARE, .datatype = datatype, .op = op, .operands = operands,
				 .operand_count = count, .compares = compares, .compare_count = compare_count,
				 .results = results, .result_count = result_count, .context = context };

	(void)descriptors, (void)compare_descriptors, (void)result_descriptors;
	return simple(ep, &atomic, target, address, key, default_flags(ep));
}

static ssize_t compare_one(struct fid_ep *ep, const void *buffer, size_t count, void *descriptor, const void *compare,
			   void *compare_descriptor, void *result, void *result_descriptor, TARGET, void *context)
{
	struct fi_ioc operand = { .addr = (void *)buffer, .count = count };
	struct fi_ioc with = { .addr = (void *)compare, .count = count };
	struct fi_ioc to = { .addr = result, .count = count };

	(void)descriptor, (void)compare_descriptor, (void)result_descriptor;
	return compare_list(ep, &operand, NULL, 1, &with, NULL, 1, &to, NULL, 1, target, address, key, datatype, op, context);
}

static ssize_t comparemsg(struct fid_ep *ep, const struct fi_msg_atomic *message, const struct fi_ioc *compares,
			  void **compare_descriptors, size_t compare_count, struct fi_ioc *results,
			  void **result_descriptors, size_t result_count, uint64_t flags)
{
	(void)compare_descriptors, (void)result_descriptors;
	return with_flags(ep, WIRE_COMPARE, message, compares, compare_count, results, result_count, flags);
}

/* How many elements an operation may have. */
static int valid(enum wire_form form, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	size_t size = prov_atomic_size(form, datatype, op);

	if (!size)
		return -FI_EOPNOTSUPP;
	*count = PROV_ATOMIC_BYTES / (form == WIRE_COMPARE ? 2 : 1) / size;
	return 0;
}

static int writevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	(void)ep;
	return valid(WIRE_BASE, datatype, op, count);
}

static int fetchvalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	(void)ep;
	return valid(WIRE_FETCH, datatype, op, count);
}

static int comparevalid(struct fid_ep *ep, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	(void)ep;
	return valid(WIRE_COMPARE, datatype, op, count);
}

int prov_query_atomic(struct fid_domain *domain, enum fi_datatype datatype, enum fi_op op, struct fi_atomic_attr *attr,
		      uint64_t flags)
{
	enum wire_form form = flags & FI_COMPARE_ATOMIC ? WIRE_COMPARE : flags & FI_FETCH_ATOMIC ? WIRE_FETCH : WIRE_BASE;
	int status = flags & ~(FI_COMPARE_ATOMIC | FI_FETCH_ATOMIC) || (flags & FI_COMPARE_ATOMIC && flags & FI_FETCH_ATOMIC) ?
			     -FI_EOPNOTSUPP : valid(form, datatype, op, &attr->count);

	(void)domain;
	if (!status)
		attr->size = prov_atomic_size(form, datatype, op);
	return status;
}

struct fi_ops_atomic prov_atomic_ops = {
	.size = sizeof(struct fi_ops_atomic),
	.write = write_one,
	.writev = write_list,
	.writemsg = writemsg,
	.inject = inject,
	.readwrite = fetch_one,
	.readwritev = fetch_list,
	.readwritemsg = fetchmsg,
	.compwrite = compare_one,
	.compwritev = compare_list,
	.compwritemsg = comparemsg,
	.writevalid = writevalid,
	.readwritevalid = fetchvalid,
	.compwritevalid = comparevalid,
};
