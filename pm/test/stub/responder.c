/* responder.c - carries out what other contexts ask for. */
#include "wire.h"

#include <sys/socket.h>

/* Places data as a device may: its end first. */
void place(void *to, const uint8_t *data, uint32_t length)
{
	uint32_t step = length <= 4096 ? 64 : 4096;
	while (length) {
		uint32_t part = (length - 1) % step + 1;
		length -= part;
		memcpy((uint8_t *)to + length, data + length, part);
	}
}

/* Places data from an offset on of the memory that is described by sges; false: some of it must not be written to. */
bool scatter(struct stub_context *context, struct ibv_pd *pd, const struct ibv_sge *sges, int count, uint32_t offset,
	     const uint8_t *data, uint32_t length)
{
	for (int i = 0; i < count && length; i++) {
		if (offset >= sges[i].length) {
			offset -= sges[i].length;
			continue;
		}
		uint32_t part = sges[i].length - offset < length ? sges[i].length - offset : length;
		if (!find_mr(context, pd, sges[i].lkey, sges[i].addr, sges[i].length, IBV_ACCESS_LOCAL_WRITE))
			return false;
		place((void *)(uintptr_t)(sges[i].addr + offset), data, part);
		data += part;
		length -= part;
		offset = 0;
	}
	return true;
}

/* Bytes that a receive has room for. */
static uint64_t room(const struct receive *receive)
{
	uint64_t length = 0;
	for (int i = 0; i < receive->num_sge; i++)
		length += receive->sges[i].length;
	return length;
}

static void answer(struct connection *connection, enum packet_type type)
{
	connection->answer = (struct packet){.type = type};
	connection->answering = true;
}

/* Tells the requester of an error, which is the end of both queue pairs. */
static void refuse(struct stub_context *context, struct connection *connection, enum ibv_wc_status status)
{
	struct packet packet = {.type = DONE, .status = status};
	send_packet(context, connection, &packet, NULL, 0);
	break_qp(connection->qp);
}

static bool meant_for(struct stub_context *context, const struct stub_qp *qp, const struct packet *hello)
{
	bool here = false;
	for (int i = 0; i < GIDS; i++)
		here |= !memcmp(&hello->gid, &context->gids[i], sizeof hello->gid);
	return here && qp && (qp->ibv.state == IBV_QPS_RTR || qp->ibv.state == IBV_QPS_RTS) && !qp->inbound &&
	       qp->ibv.qp_num == hello->destination && qp->attr.dest_qp_num == hello->source && qp->attr.rq_psn == hello->psn;
}

static void greet(struct stub_context *context, struct connection *connection)
{
	struct packet *hello = &connection->in.packet;
	struct stub_qp *qp = context->qps[hello->destination % QPS];
	if (connection->qp || !meant_for(context, qp, hello)) {
		hang_up(connection);
		return;
	}
	connection->qp = qp;
	qp->inbound = connection;
	answer(connection, ACCEPTED);
}

static bool may_access(struct stub_context *context, struct stub_qp *qp, const struct packet *packet, int access)
{
	return (qp->attr.qp_access_flags & access) &&
	       (!packet->length || find_mr(context, qp->ibv.pd, packet->rkey, packet->address, packet->length, access));
}

/* Takes a receive for a message, if it has none; false: there is none, and the requester is told so now and then. */
static bool take_receive(struct stub_context *context, struct connection *connection)
{
	struct stub_qp *qp = connection->qp;
	struct receive_queue *queue = receives_of(qp);
	if (qp->receiving)
		return true;
	if (queue->head == queue->tail) {
		struct packet packet = {.type = NOT_READY};
		if (now_ms() >= connection->told_ms + TICK_MS) {
			send_packet(context, connection, &packet, NULL, 0);
			connection->told_ms = now_ms();
		}
		return false;
	}
	qp->receive = queue->receives[queue->head++ % queue->capacity];
	qp->receiving = true;
	return true;
}

static void complete_receive(struct stub_qp *qp, const struct packet *packet, enum ibv_wc_status status)
{
	struct completion completion = {.wc = {
		.wr_id = qp->receive.wr_id, .status = status, .qp_num = qp->ibv.qp_num, .byte_len = packet->length,
		.opcode = packet->type == SEND ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM, .imm_data = packet->imm,
		.wc_flags = packet->has_imm ? IBV_WC_WITH_IMM : 0}};
	qp->receiving = false;
	push_completion(qp->ibv.recv_cq, &completion, packet->solicited);
}

static bool take_write(struct stub_context *context, struct connection *connection)
{
	const struct packet *packet = &connection->in.packet;
	bool with_receive = !packet->offset && packet->has_imm;
	if (!may_access(context, connection->qp, packet, IBV_ACCESS_REMOTE_WRITE)) {
		refuse(context, connection, IBV_WC_REM_ACCESS_ERR);
		return true;
	}
	if (with_receive && !take_receive(context, connection))
		return false;
	place((void *)(uintptr_t)(packet->address + packet->offset), connection->in.data, connection->size);
	if (with_receive)
		complete_receive(connection->qp, packet, IBV_WC_SUCCESS);
	if (!packet->offset)
		answer(connection, DONE);
	return true;
}

static bool take_send(struct stub_context *context, struct connection *connection)
{
	const struct packet *packet = &connection->in.packet;
	struct stub_qp *qp = connection->qp;
	if (!take_receive(context, connection))
		return false;
	enum ibv_wc_status here = IBV_WC_SUCCESS, there = IBV_WC_SUCCESS;
	if (packet->length > room(&qp->receive)) {
		here = IBV_WC_LOC_LEN_ERR;
		there = IBV_WC_REM_INV_REQ_ERR;
	} else if (!scatter(context, qp->ibv.pd, qp->receive.sges, qp->receive.num_sge, packet->offset, connection->in.data,
			    connection->size)) {
		here = IBV_WC_LOC_PROT_ERR;
		there = IBV_WC_REM_OP_ERR;
	}
	if (here != IBV_WC_SUCCESS || !packet->offset)
		complete_receive(qp, packet, here);
	if (there != IBV_WC_SUCCESS)
		refuse(context, connection, there);
	else if (!packet->offset)
		answer(connection, DONE);
	return true;
}

static bool take_read(struct stub_context *context, struct connection *connection)
{
	if (!may_access(context, connection->qp, &connection->in.packet, IBV_ACCESS_REMOTE_READ)) {
		refuse(context, connection, IBV_WC_REM_ACCESS_ERR);
		return true;
	}
	connection->answer = connection->in.packet;
	connection->answer.type = DATA;
	connection->answer_left = connection->answer.length;
	connection->answering = true;
	return true;
}

/* False: not now, for there is no receive. */
static bool carry_out(struct stub_context *context, struct connection *connection)
{
	enum packet_type type = connection->in.packet.type;
	if (type == HELLO)
		greet(context, connection);
	else if (!connection->qp)
		return true;
	else if (type == WRITE)
		return take_write(context, connection);
	else if (type == SEND)
		return take_send(context, connection);
	else if (type == READ)
		return take_read(context, connection);
	else
		die("a request of type %d", type);
	return true;
}

static bool send_data(struct stub_context *context, struct connection *connection)
{
	struct packet *packet = &connection->answer;
	uint32_t piece = piece_of(connection->answer_left);
	packet->offset = connection->answer_left - piece;
	struct iovec part = {(void *)(uintptr_t)(packet->address + packet->offset), piece};
	if (!may_access(context, connection->qp, packet, IBV_ACCESS_REMOTE_READ)) {
		refuse(context, connection, IBV_WC_REM_ACCESS_ERR);
		return true;
	}
	if (!send_packet(context, connection, packet, &part, 1))
		return false;
	connection->answer_left -= piece;
	connection->answering = connection->answer_left;
	return true;
}

/* Sends the answer that is under way; false: not all of it, for now. */
static bool send_answer(struct stub_context *context, struct connection *connection)
{
	while (connection->answering && connection->qp) {
		bool sent = connection->answer.type == DATA ? send_data(context, connection) :
							      send_packet(context, connection, &connection->answer, NULL, 0);
		if (!sent && connection->full)
			return false;
		if (!sent || connection->answer.type != DATA)
			connection->answering = false;
	}
	connection->answering = false;
	return true;
}

/* Carries out some of what has come; true: to be called again soon. */
bool respond(struct stub_context *context, struct connection *connection)
{
	enum { AT_ONCE = 16 };
	bool ready = true;
	for (int i = 0; ready && i < AT_ONCE && send_answer(context, connection) && take_packet(connection); i++) {
		if (!connection->rested)
			rest(context);
		connection->rested = true;
		ready = carry_out(context, connection);
		connection->held = !ready;
	}
	connection->stuck = !send_answer(context, connection) || connection->held;
	return !ready;
}
