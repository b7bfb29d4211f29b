/* requester.c - sends what is posted to the stub's queue pairs, and takes the answers. */
#include "wire.h"


static void fail(struct stub_qp *qp, enum ibv_wc_status status)
{
	complete_request(qp, status);
	break_qp(qp);
}

static struct request *request_at(struct stub_qp *qp, uint64_t at)
{
	return &qp->requests[at % qp->init.cap.max_send_wr];
}

static bool keys_valid(struct stub_context *context, struct stub_qp *qp, const struct request *request)
{
	int access = request->opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
	for (int i = 0; i < request->num_sge && !(request->flags & IBV_SEND_INLINE); i++) {
		const struct ibv_sge *sge = &request->sges[i];
		if (sge->length && !find_mr(context, qp->ibv.pd, sge->lkey, sge->addr, sge->length, access))
			return false;
	}
	return true;
}

/* The parts of the source that are so many bytes from an offset on. */
static int gather(const struct request *request, uint32_t offset, uint32_t length, struct iovec *parts)
{
	int count = 0;
	for (int i = 0; i < request->num_sge && length; i++) {
		const struct ibv_sge *sge = &request->sges[i];
		if (offset >= sge->length) {
			offset -= sge->length;
			continue;
		}
		uint32_t part = sge->length - offset < length ? sge->length - offset : length;
		parts[count++] = (struct iovec){(void *)(uintptr_t)(sge->addr + offset), part};
		length -= part;
		offset = 0;
	}
	return count;
}

static struct packet packet_of(const struct request *request)
{
	static const enum packet_type types[] = {
		[IBV_WR_RDMA_WRITE] = WRITE,
		[IBV_WR_RDMA_WRITE_WITH_IMM] = WRITE,
		[IBV_WR_SEND] = SEND,
		[IBV_WR_SEND_WITH_IMM] = SEND,
		[IBV_WR_RDMA_READ] = READ,
	};
	return (struct packet){
		.type = types[request->opcode], .address = request->remote, .rkey = request->rkey, .imm = request->imm,
		.length = request->length, .solicited = request->flags & IBV_SEND_SOLICITED,
		.has_imm = request->opcode == IBV_WR_RDMA_WRITE_WITH_IMM || request->opcode == IBV_WR_SEND_WITH_IMM};
}

/* Sends the next piece of the next request; false: not now. What fails here fails after all that was posted before. */
static bool send_next(struct stub_context *context, struct stub_qp *qp)
{
	struct request *request = request_at(qp, qp->next);
	struct packet packet = packet_of(request);
	struct iovec parts[MAX_SGE];
	uint32_t piece = packet.type == READ ? 0 : piece_of(request->left);
	int count = 0;
	packet.offset = packet.type == READ ? 0 : request->left - piece;
	enum ibv_wc_status status = request->fate == BREAKS_BEFORE ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS;
	if (!keys_valid(context, qp, request))
		status = IBV_WC_LOC_PROT_ERR;
	if (status == IBV_WC_SUCCESS) {
		count = gather(request, packet.offset, piece, parts);
		if (send_packet(context, qp->outbound, &packet, parts, count)) {
			request->left -= piece;
			if (!packet.offset)
				qp->next++;
			return true;
		}
		if (errno == EFAULT)
			status = IBV_WC_LOC_PROT_ERR;
	}
	if (status != IBV_WC_SUCCESS && qp->done == qp->next)
		fail(qp, status);
	return false;
}

/* Sends what can be sent; true: to be tried again soon. */
bool transmit(struct stub_context *context, struct stub_qp *qp)
{
	if (qp->ibv.state != IBV_QPS_RTS || qp->done == qp->tail)
		return false;
	uint64_t now = now_ms();
	if (!qp->outbound && !qp->lost && now >= qp->redial_ms)
		qp->outbound = dial(context, qp);
	if (qp->outbound && !qp->outbound->accepted)
		return false;
	if (qp->outbound) {
		while (qp->outbound && !qp->outbound->full && qp->next < qp->tail && qp->next - qp->done < WINDOW &&
		       send_next(context, qp))
			;
		return false;
	}
	if (!qp->deadline_ms)
		qp->deadline_ms = now + PATIENCE_MS;
	if (qp->attr.timeout && now >= qp->deadline_ms)
		fail(qp, IBV_WC_RETRY_EXC_ERR);
	return true;
}

static void finish(struct stub_qp *qp, enum ibv_wc_status status)
{
	if (request_at(qp, qp->done)->fate == BREAKS_AFTER)
		status = IBV_WC_RETRY_EXC_ERR;
	qp->rnr_left = qp->attr.rnr_retry;
	if (status == IBV_WC_SUCCESS)
		complete_request(qp, status);
	else
		fail(qp, status);
}

static void take_data(struct stub_context *context, struct stub_qp *qp, struct connection *connection)
{
	struct request *request = request_at(qp, qp->done);
	struct packet *packet = &connection->in.packet;
	if (!scatter(context, qp->ibv.pd, request->sges, request->num_sge, packet->offset, connection->in.data, connection->size))
		fail(qp, IBV_WC_LOC_PROT_ERR);
	else if (!packet->offset)
		finish(qp, IBV_WC_SUCCESS);
}

static void take_answer(struct stub_context *context, struct stub_qp *qp, struct connection *connection)
{
	struct packet *packet = &connection->in.packet;
	if (packet->type == ACCEPTED) {
		connection->accepted = true;
		qp->deadline_ms = 0;
	} else if (qp->done == qp->tail) {
		die("an answer to nothing");
	} else if (packet->type == NOT_READY) {
		if (qp->attr.rnr_retry != 7 && !qp->rnr_left--)
			fail(qp, IBV_WC_RNR_RETRY_EXC_ERR);
	} else if (packet->type == DATA) {
		take_data(context, qp, connection);
	} else {
		finish(qp, packet->status);
	}
}

void take_answers(struct stub_context *context, struct connection *connection)
{
	while (take_packet(connection)) {
		rest(context);
		connection->held = false;
		if (connection->qp)
			take_answer(context, connection->qp, connection);
	}
}
