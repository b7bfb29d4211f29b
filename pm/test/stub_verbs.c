/* stub_verbs.c - the stub of libibverbs does what a device does: between two processes, and within one. With a real
 * library and TEST_VERBS_DEVICE, what real devices do, but for what they can't be asked to do. */
#include "verbs_pair.h"

#include <fcntl.h>

static void fill(uint8_t *data, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		data[i] = (uint8_t)(seed * 31 + i * 7 + (i >> 8));
}

static bool filled(const uint8_t *data, size_t length, unsigned seed)
{
	for (size_t i = 0; i < length; i++)
		if (data[i] != (uint8_t)(seed * 31 + i * 7 + (i >> 8)))
			return false;
	return true;
}

/* Data of every length is there when a later write with immediate data is received. */
static void writes(struct side *side)
{
	static const uint32_t lengths[] = {0, 1, 7, 8, 63, 64, 65, 1024, 4097, 65535, 65536, 65537, 131072, 300001};
	const uint32_t imm = htobe32(0x12345678);
	connect_side(side);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		struct ibv_sge sge[2];
		if (side->number == 0) {
			fill(side->memory, lengths[i], i);
			struct ibv_send_wr first = request(side, &sge[0], IBV_WR_RDMA_WRITE, 0, lengths[i]);
			struct ibv_send_wr second = request(side, &sge[1], IBV_WR_RDMA_WRITE_WITH_IMM, 400000, i);
			first.send_flags = 0;
			first.next = &second;
			second.imm_data = imm;
			CHECK_IS(post(side, &first), 0);
			struct ibv_wc wc = await_well(side->send_cq);
			CHECK_IS(wc.wr_id, 400000);
			CHECK_IS(wc.opcode, IBV_WC_RDMA_WRITE);
			CHECK_IS(wc.qp_num, side->qp->qp_num);
			meet(side);
		} else {
			post_receive(side, 77 + i, 0, 0);
			struct ibv_wc wc = await_well(side->receive_cq);
			CHECK(filled(side->memory, lengths[i], i));
			CHECK_IS(wc.wr_id, 77 + i);
			CHECK_IS(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
			CHECK_IS(wc.byte_len, i);
			CHECK_IS(wc.imm_data, imm);
			CHECK(wc.wc_flags & IBV_WC_WITH_IMM);
			CHECK_IS(wc.qp_num, side->qp->qp_num);
			meet(side);
		}
	}
}

/* What is sent is gathered from several places, or copied when it is posted. */
static void gathers(struct side *side)
{
	connect_side(side);
	if (side->number == 1) {
		post_receive(side, 1, 0, 0);
		post_receive(side, 2, 0, 0);
		await_well(side->receive_cq);
		CHECK(filled(side->memory + 1000, 70003, 3));
		await_well(side->receive_cq);
		CHECK(filled(side->memory + 500000, INLINE, 4));
		return;
	}
	struct ibv_sge parts[3], part;
	struct ibv_send_wr wr = request(side, &part, IBV_WR_RDMA_WRITE_WITH_IMM, 1000, 0);
	uint8_t whole[70003], small[INLINE];
	fill(whole, sizeof whole, 3);
	for (uint32_t i = 0, at = 0, length; i < 3; i++, at += length) {
		length = (uint32_t[]){3, 69000, 1000}[i];
		parts[i] = (struct ibv_sge){(uintptr_t)side->memory + (3 - i) * 100000, length, side->mr->lkey};
		memcpy(side->memory + (3 - i) * 100000, whole + at, length);
	}
	wr.sg_list = parts;
	wr.num_sge = 3;
	CHECK_IS(post(side, &wr), 0);
	await_well(side->send_cq);
	wr = request(side, &part, IBV_WR_RDMA_WRITE_WITH_IMM, 500000, INLINE);
	part = (struct ibv_sge){.addr = (uintptr_t)small, .length = INLINE};
	wr.send_flags |= IBV_SEND_INLINE;
	fill(small, INLINE, 4);
	CHECK_IS(post(side, &wr), 0);
	memset(small, 0, INLINE);
	await_well(side->send_cq);
	part.length = 4096;
	if (with_stub())
		CHECK_IS(post(side, &wr), EINVAL);
}

/* What is sent is scattered to where the receive says. */
static void scatters(struct side *side)
{
	connect_side(side);
	if (side->number == 1) {
		struct ibv_sge parts[2] = {{(uintptr_t)side->memory, 1000, side->mr->lkey},
			{(uintptr_t)side->memory + 200000, 150000, side->mr->lkey}};
		struct ibv_recv_wr wr = {.wr_id = 4, .sg_list = parts, .num_sge = 2}, *bad;
		uint8_t whole[100000];
		CHECK_IS(ibv_post_srq_recv(side->srq, &wr, &bad), 0);
		struct ibv_wc wc = await_well(side->receive_cq);
		CHECK_IS(wc.byte_len, sizeof whole);
		memcpy(whole, side->memory, 1000);
		memcpy(whole + 1000, side->memory + 200000, sizeof whole - 1000);
		CHECK(filled(whole, sizeof whole, 8));
		CHECK_IS(side->memory[1000], 0);
		CHECK_IS(side->memory[200000 + sizeof whole - 1000], 0);
		return;
	}
	struct ibv_sge sge;
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_SEND, 0, 100000);
	fill(side->memory, 100000, 8);
	CHECK_IS(post(side, &wr), 0);
	await_well(side->send_cq);
}

static void sends(struct side *side)
{
	static const uint32_t lengths[] = {0, 1, 16, INLINE, 3000, 200000};
	connect_side(side);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		if (side->number == 0) {
			struct ibv_sge sge;
			struct ibv_send_wr wr = request(side, &sge, IBV_WR_SEND_WITH_IMM, 0, lengths[i]);
			wr.imm_data = i;
			wr.send_flags |= lengths[i] <= INLINE ? IBV_SEND_INLINE : 0;
			fill(side->memory, lengths[i], i);
			CHECK_IS(post(side, &wr), 0);
			CHECK_IS(await_well(side->send_cq).opcode, IBV_WC_SEND);
		} else {
			post_receive(side, i, 1000, lengths[i]);
			struct ibv_wc wc = await_well(side->receive_cq);
			CHECK_IS(wc.opcode, IBV_WC_RECV);
			CHECK_IS(wc.wr_id, i);
			CHECK_IS(wc.byte_len, lengths[i]);
			CHECK_IS(wc.imm_data, i);
			CHECK(filled(side->memory + 1000, lengths[i], i));
		}
		meet(side);
	}
}

static void reads(struct side *side)
{
	static const uint32_t lengths[] = {0, 1, 100, 65536, 500001};
	fill(side->memory + side->number * MEMORY / 2, MEMORY / 2, side->number);
	connect_side(side);
	for (size_t i = 0; i < sizeof lengths / sizeof *lengths && side->number == 0; i++) {
		struct ibv_sge sge;
		struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_READ, 0, lengths[i]);
		memset(side->memory, 0xee, MEMORY / 2);
		wr.wr.rdma.remote_addr = side->there.address + MEMORY / 2;
		CHECK_IS(post(side, &wr), 0);
		struct ibv_wc wc = await_well(side->send_cq);
		CHECK_IS(wc.opcode, IBV_WC_RDMA_READ);
		CHECK_IS(wc.byte_len, lengths[i]);
		CHECK(filled(side->memory, lengths[i], 1));
		CHECK_IS(side->memory[lengths[i]], 0xee);
	}
}

/* Completions come in the order of posting, of signaled requests only. */
static void order(struct side *side)
{
	enum { COUNT = 10, EVERY = 3 };
	struct ibv_sge sge[COUNT];
	struct ibv_send_wr wr[COUNT];
	connect_side(side);
	if (side->number == 1)
		return;
	for (int i = 0; i < COUNT; i++) {
		wr[i] = request(side, &sge[i], IBV_WR_RDMA_WRITE, i * 1000, i % 2 ? 100 : 100000);
		wr[i].send_flags = i % EVERY ? 0 : IBV_SEND_SIGNALED;
		wr[i].next = i + 1 < COUNT ? &wr[i + 1] : NULL;
	}
	CHECK_IS(post(side, wr), 0);
	for (int i = 0; i < COUNT; i += EVERY)
		CHECK_IS(await_well(side->send_cq).wr_id, i * 1000);
	struct ibv_wc wc;
	CHECK_IS(ibv_poll_cq(side->send_cq, 1, &wc), 0);
}

/* Waits for an event of the queue, and takes it. */
static void take_event(struct side *side, struct ibv_cq *expected)
{
	struct pollfd poller = {.fd = side->channel->fd, .events = POLLIN};
	struct ibv_cq *cq;
	void *context;
	CHECK_IS(poll(&poller, 1, PATIENCE * 1000), 1);
	CHECK_IS(verbs.ibv_get_cq_event(side->channel, &cq, &context), 0);
	CHECK(cq == expected);
	CHECK(context == side);
	verbs.ibv_ack_cq_events(cq, 1);
}

/* A slot is free when a later completion has been polled, and not before. */
static void full(struct side *side)
{
	struct ibv_sge sge;
	struct ibv_send_wr *bad = NULL;
	connect_side(side);
	if (side->number == 1 || !with_stub())
		return;
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, 0, 10);
	CHECK_IS(ibv_req_notify_cq(side->send_cq, 0), 0);
	for (int i = 0; i < SENDS; i++) {
		wr.send_flags = i == SENDS - 2 ? IBV_SEND_SIGNALED : 0;
		CHECK_IS(post(side, &wr), 0);
	}
	CHECK_IS(ibv_post_send(side->qp, &wr, &bad), ENOMEM);
	CHECK(bad == &wr);
	take_event(side, side->send_cq);
	CHECK_IS(post(side, &wr), ENOMEM);
	await_well(side->send_cq);
	for (int i = 0; i < SENDS - 1; i++)
		CHECK_IS(post(side, &wr), 0);
	CHECK_IS(post(side, &wr), ENOMEM);
}

/* A completion may be seen somewhat before its event. */
static void expect_event(struct side *side, bool expected)
{
	struct pollfd poller = {.fd = side->channel->fd, .events = POLLIN};
	CHECK_IS(poll(&poller, 1, expected ? PATIENCE * 1000 : 0), expected);
}

/* An event comes for the next completion after it was asked for, once. */
static void events(struct side *side)
{
	struct ibv_sge sge;
	struct ibv_cq *cq;
	void *context;
	connect_side(side);
	for (int i = 0; i < 5; i++)
		post_receive(side, i, 0, 0);
	CHECK_IS(ibv_req_notify_cq(side->receive_cq, side->number), 0);
	expect_event(side, false);
	meet(side);
	/* Side 0 is told of the first; side 1 of the third, which is the first that is solicited. */
	for (int i = 0; i < 5; i++) {
		struct ibv_send_wr wr = request(side, &sge, IBV_WR_SEND_WITH_IMM, 0, 0);
		wr.num_sge = 0;
		wr.send_flags |= i >= 2 ? IBV_SEND_SOLICITED : 0;
		CHECK_IS(post(side, &wr), 0);
		await_well(side->receive_cq);
		await_well(side->send_cq);
		expect_event(side, i >= (side->number ? 2 : 0));
		meet(side);
	}
	take_event(side, side->receive_cq);
	expect_event(side, false);
	CHECK_IS(fcntl(side->channel->fd, F_SETFL, O_NONBLOCK), 0);
	CHECK_IS(verbs.ibv_get_cq_event(side->channel, &cq, &context), -1);
	CHECK_IS(errno, EAGAIN);
}

/* Without a receive, a message waits for one. */
static void not_ready(struct side *side)
{
	struct ibv_sge sge;
	struct ibv_wc wc;
	connect_side(side);
	if (side->number == 0) {
		struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 100);
		fill(side->memory, 100, 5);
		CHECK_IS(post(side, &wr), 0);
		meet(side);
		await_well(side->send_cq);
		return;
	}
	meet(side);
	for (double until = seconds() + 0.5; seconds() < until;)
		CHECK_IS(ibv_poll_cq(side->receive_cq, 1, &wc), 0);
	post_receive(side, 1, 0, 0);
	await_well(side->receive_cq);
	CHECK(filled(side->memory, 100, 5));
}

/* Of a flow of messages both ways: what has been sent and received, and of the latter, acknowledged by the other side. */
struct flow {
	struct side *side;
	int sent, acknowledged, received, under_way;
};

enum {
	MESSAGES = 500,
	PLACES = 16, /* where they are written to, in turn */
	PLACE = 20000,
};

static uint32_t length_of(int message)
{
	return message % 11 ? message * 37u % 1000 : message * 97u % PLACE;
}

/* The second half of the memory is written from, the first written to. */
static void flow_send(struct flow *flow)
{
	struct side *side = flow->side;
	struct ibv_sge sge;
	int place = flow->sent % PLACES;
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE_WITH_IMM, place * PLACE, length_of(flow->sent));
	if (flow->under_way >= SENDS / 2)
		return;
	sge.addr += MEMORY / 2;
	fill((uint8_t *)(uintptr_t)sge.addr, sge.length, flow->sent++);
	CHECK_IS(post(side, &wr), 0);
	flow->under_way++;
}

static void flow_receive(struct flow *flow, const struct ibv_wc *wc)
{
	struct side *side = flow->side;
	post_receive(side, 0, 0, 0);
	if (wc->opcode == IBV_WC_RECV) {
		flow->acknowledged++;
		return;
	}
	CHECK_IS(wc->byte_len, length_of(flow->received));
	CHECK(filled(side->memory + flow->received % PLACES * PLACE, wc->byte_len, flow->received));
	flow->received++;
	struct ibv_send_wr acknowledge = {.opcode = IBV_WR_SEND_WITH_IMM, .send_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE};
	CHECK_IS(post(side, &acknowledge), 0);
	flow->under_way++;
}

/* Places are used again as soon as their message has been seen; nothing is lost, torn or out of order. */
static void flows(struct side *side)
{
	struct flow flow = {.side = side};
	struct ibv_wc wc;
	connect_side(side);
	for (int i = 0; i < RECEIVES; i++)
		post_receive(side, 0, 0, 0);
	while (flow.acknowledged < MESSAGES || flow.received < MESSAGES || flow.under_way) {
		if (flow.sent < MESSAGES && flow.sent - flow.acknowledged < PLACES)
			flow_send(&flow);
		while (ibv_poll_cq(side->send_cq, 1, &wc) == 1) {
			CHECK_IS(wc.status, IBV_WC_SUCCESS);
			flow.under_way--;
		}
		if (flow.under_way < SENDS && ibv_poll_cq(side->receive_cq, 1, &wc) == 1) {
			CHECK_IS(wc.status, IBV_WC_SUCCESS);
			flow_receive(&flow, &wc);
		}
	}
}

static const struct check checks[] = {
	{.name = "writes", writes},
	{.name = "gathers", gathers},
	{.name = "sends", sends},
	{.name = "scatters", scatters},
	{.name = "reads", reads},
	{.name = "order", order},
	{.name = "full", full},
	{.name = "events", events},
	{.name = "not ready", not_ready},
	{.name = "flows", flows},
	{.name = "writes, delayed", writes, "STUB_VERBS_DELAY_US", "3000"},
	{.name = "reads, delayed", reads, "STUB_VERBS_DELAY_US", "3000"},
	{.name = "flows, delayed", flows, "STUB_VERBS_DELAY_US", "300"},
};

int main(int argc, char **argv)
{
	int status = find_device();
	if (!status)
		run_checks(checks, sizeof checks / sizeof *checks, argc > 1 ? argv[1] : NULL);
	return status;
}
