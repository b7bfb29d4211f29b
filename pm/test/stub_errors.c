/* stub_errors.c - the stub of libibverbs refuses what a device refuses, and fails as one fails. With a real library and
 * TEST_VERBS_DEVICE, as real devices do, but for what they can't be asked to do. */
#include "verbs_pair.h"

/* Each attribute that a change of state needs is needed, and others are refused. */
static void masks(struct side *side)
{
	introduce(side);
	CHECK_IS(modify(side, IBV_QPS_RTR, RTR_MASK), EINVAL);
	CHECK_IS(modify(side, IBV_QPS_INIT, INIT_MASK | IBV_QP_TIMEOUT), EINVAL);
	static const struct {
		enum ibv_qp_state state;
		int mask;
	} steps[] = {{IBV_QPS_INIT, INIT_MASK}, {IBV_QPS_RTR, RTR_MASK}, {IBV_QPS_RTS, RTS_MASK}};
	for (size_t i = 0; i < sizeof steps / sizeof *steps; i++) {
		for (int bit = IBV_QP_STATE << 1; bit <= IBV_QP_DEST_QPN; bit <<= 1)
			if (steps[i].mask & bit)
				CHECK_IS(modify(side, steps[i].state, steps[i].mask & ~bit), EINVAL);
		CHECK_IS(modify(side, steps[i].state, steps[i].mask), 0);
	}
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	CHECK_IS(verbs.ibv_query_qp(side->qp, &attr, IBV_QP_STATE | IBV_QP_DEST_QPN, &init), 0);
	CHECK_IS(attr.qp_state, IBV_QPS_RTS);
	CHECK_IS(attr.dest_qp_num, side->there.qp_num);
}

/* Values that no device takes. */
static void values(struct side *side)
{
	introduce(side);
	struct ibv_qp_attr attr = attributes(side, IBV_QPS_INIT);
	attr.port_num = 2;
	CHECK_IS(verbs.ibv_modify_qp(side->qp, &attr, INIT_MASK), EINVAL);
	CHECK_IS(modify(side, IBV_QPS_INIT, INIT_MASK), 0);
	attr = attributes(side, IBV_QPS_RTR);
	attr.ah_attr.is_global = 0;
	CHECK_IS(verbs.ibv_modify_qp(side->qp, &attr, RTR_MASK), EINVAL);
	attr = attributes(side, IBV_QPS_RTR);
	attr.ah_attr.grh.sgid_index = 200;
	CHECK(verbs.ibv_modify_qp(side->qp, &attr, RTR_MASK) != 0);
	errno = 0;
	CHECK(!verbs.ibv_reg_mr(side->pd, side->memory, 4096, IBV_ACCESS_REMOTE_WRITE));
	CHECK_IS(errno, EINVAL);
	if (with_stub()) {
		struct ibv_sge sge;
		struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, 0, 10);
		struct ibv_gid_entry entry;
		CHECK_IS(post(side, &wr), EINVAL);
		CHECK_IS(verbs._ibv_query_gid_ex(side->context, 1, 1, &entry, 0, sizeof entry), 0);
		CHECK_IS(entry.gid_type, IBV_GID_TYPE_ROCE_V2);
		CHECK(!memcmp(&entry.gid, &side->here.gid, sizeof entry.gid));
		CHECK_IS(verbs._ibv_query_gid_ex(side->context, 1, 2, &entry, 0, sizeof entry), ENODATA);
	}
}

static void await_state(struct side *side, enum ibv_qp_state state)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	double until = seconds() + PATIENCE;
	do {
		CHECK(seconds() < until);
		CHECK_IS(verbs.ibv_query_qp(side->qp, &attr, IBV_QP_STATE, &init), 0);
	} while (attr.qp_state != state);
}

/* Of two requests the first fails, the second is flushed, though neither is signaled; so is what is posted later. */
static void fail(struct side *side, struct ibv_send_wr *first, enum ibv_wc_status status)
{
	struct ibv_sge sge;
	struct ibv_send_wr second = request(side, &sge, IBV_WR_RDMA_WRITE, 999, 100);
	first->next = &second;
	first->send_flags &= ~IBV_SEND_SIGNALED;
	second.send_flags = 0;
	CHECK_IS(post(side, first), 0);
	struct ibv_wc wc = await(side->send_cq);
	CHECK_IS(wc.status, status);
	CHECK_IS(wc.wr_id, first->wr_id);
	CHECK_IS(wc.qp_num, side->qp->qp_num);
	for (int i = 0; i < 2; i++) {
		wc = await(side->send_cq);
		CHECK_IS(wc.status, IBV_WC_WR_FLUSH_ERR);
		CHECK_IS(wc.wr_id, 999);
		if (i == 0)
			CHECK_IS(post(side, &second), 0);
	}
	await_state(side, IBV_QPS_ERR);
}

/* After an error both start anew with the same queue pairs, and all is well. */
static void start_anew(struct side *side)
{
	struct ibv_sge sge;
	struct ibv_wc wc;
	CHECK_IS(modify(side, IBV_QPS_RESET, IBV_QP_STATE), 0);
	while (ibv_poll_cq(side->send_cq, 1, &wc))
		;
	connect_side(side);
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, side->number * 1000, 1000);
	memset(side->memory + side->number * 1000, 7, 1000);
	CHECK_IS(post(side, &wr), 0);
	await_well(side->send_cq);
	meet(side);
	CHECK_IS(side->memory[!side->number * 1000 + 999], 7);
}

enum wrong { KEY, BEFORE, BEYOND, LENGTH, REGION, QUEUE_PAIR, STALE };

/* Writes to what must not be written to; the other side's queue pair is in error, too, and nothing is written. */
static void write_wrong(struct side *side, enum wrong wrong)
{
	struct ibv_sge sge;
	struct ibv_mr *mr = NULL;
	if (wrong == REGION && side->number == 1) {
		CHECK_IS(verbs.ibv_dereg_mr(side->mr), 0);
		CHECK((side->mr = verbs.ibv_reg_mr(side->pd, side->memory, MEMORY, IBV_ACCESS_REMOTE_READ)));
	}
	connect_side(side);
	if (wrong == QUEUE_PAIR && side->number == 1) {
		struct ibv_qp_attr attr = {.qp_access_flags = IBV_ACCESS_REMOTE_READ};
		CHECK_IS(verbs.ibv_modify_qp(side->qp, &attr, IBV_QP_ACCESS_FLAGS), 0);
	}
	if (wrong == STALE && side->number == 1) {
		CHECK_IS(verbs.ibv_dereg_mr(side->mr), 0);
		CHECK((mr = side->mr = verbs.ibv_reg_mr(side->pd, side->memory, MEMORY, IBV_ACCESS_LOCAL_WRITE)));
	}
	meet(side);
	if (side->number == 0) {
		struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, wrong == BEYOND ? MEMORY - 100 : 0, 101);
		memset(side->memory, 9, 101);
		wr.wr.rdma.rkey += wrong == KEY;
		wr.wr.rdma.remote_addr -= wrong == BEFORE;
		wr.wr.rdma.remote_addr += wrong == LENGTH ? MEMORY : 0;
		sge.addr = (uintptr_t)side->memory;
		fail(side, &wr, IBV_WC_REM_ACCESS_ERR);
	} else {
		await_state(side, IBV_QPS_ERR);
		for (int i = 0; i < 101; i++)
			CHECK(!side->memory[i] && !side->memory[MEMORY - 1 - i]);
	}
	if (wrong == KEY)
		start_anew(side);
}

static void wrong_key(struct side *side)
{
	write_wrong(side, KEY);
}

static void before(struct side *side)
{
	write_wrong(side, BEFORE);
}

static void beyond(struct side *side)
{
	write_wrong(side, BEYOND);
}

static void far_beyond(struct side *side)
{
	write_wrong(side, LENGTH);
}

static void region_not_writable(struct side *side)
{
	write_wrong(side, REGION);
}

static void queue_pair_not_writable(struct side *side)
{
	write_wrong(side, QUEUE_PAIR);
}

static void stale_key(struct side *side)
{
	write_wrong(side, STALE);
}

/* What was posted before is done before. */
static void wrong_source(struct side *side)
{
	struct ibv_sge part, sge;
	connect_side(side);
	if (side->number == 1)
		return;
	struct ibv_send_wr well = request(side, &part, IBV_WR_RDMA_WRITE, 0, 300000);
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, MEMORY - 100, 101);
	wr.wr.rdma.remote_addr = side->there.address;
	well.next = &wr;
	CHECK_IS(post(side, &well), 0);
	await_well(side->send_cq);
	CHECK_IS(await(side->send_cq).status, IBV_WC_LOC_PROT_ERR);
}

/* More is sent than the receive has room for. */
static void too_long(struct side *side)
{
	struct ibv_sge sge;
	connect_side(side);
	if (side->number == 1)
		post_receive(side, 5, 0, 10);
	meet(side);
	if (side->number == 0) {
		struct ibv_send_wr wr = request(side, &sge, IBV_WR_SEND_WITH_IMM, 0, 11);
		fail(side, &wr, IBV_WC_REM_INV_REQ_ERR);
	} else if (with_stub()) {
		struct ibv_wc wc = await(side->receive_cq);
		CHECK_IS(wc.status, IBV_WC_LOC_LEN_ERR);
		CHECK_IS(wc.wr_id, 5);
	}
}

static void never_ready(struct side *side)
{
	struct ibv_sge sge;
	side->rnr_retry = 1;
	connect_side(side);
	if (side->number == 1)
		return;
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 10);
	fail(side, &wr, IBV_WC_RNR_RETRY_EXC_ERR);
}

static void flushed(struct side *side)
{
	struct ibv_sge sge;
	connect_side(side);
	CHECK_IS(modify(side, IBV_QPS_ERR, IBV_QP_STATE), 0);
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, 0, 10);
	CHECK_IS(post(side, &wr), 0);
	CHECK_IS(await(side->send_cq).status, IBV_WC_WR_FLUSH_ERR);
	start_anew(side);
}

/* The peer's queue pair is gone. */
static void destroyed(struct side *side)
{
	struct ibv_sge sge;
	connect_side(side);
	if (side->number == 1) {
		CHECK_IS(verbs.ibv_destroy_qp(side->qp), 0);
		CHECK((side->qp = create_qp(side)));
	}
	meet(side);
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, 0, 100);
	if (side->number == 0)
		fail(side, &wr, IBV_WC_RETRY_EXC_ERR);
}

/* The peer's queue pair has started anew, which this one has not. */
static void started_anew(struct side *side)
{
	struct ibv_sge sge;
	connect_side(side);
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, 0, 100);
	if (side->number == 0) {
		CHECK_IS(post(side, &wr), 0);
		await_well(side->send_cq);
	}
	meet(side);
	if (side->number == 1) {
		CHECK_IS(modify(side, IBV_QPS_RESET, IBV_QP_STATE), 0);
		CHECK_IS(modify(side, IBV_QPS_INIT, INIT_MASK), 0);
		CHECK_IS(modify(side, IBV_QPS_RTR, RTR_MASK), 0);
	}
	meet(side);
	if (side->number == 0)
		fail(side, &wr, IBV_WC_RETRY_EXC_ERR);
}

/* The peer is gone, with requests on the way. */
static void ended(struct side *side)
{
	struct ibv_sge sge;
	char nothing;
	if (side->in_one)
		return;
	connect_side(side);
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE_WITH_IMM, 0, 100);
	if (side->number == 1) {
		meet(side);
		_exit(0);
	}
	meet(side);
	CHECK_IS(read(side->socket, &nothing, 1), 0);
	fail(side, &wr, IBV_WC_RETRY_EXC_ERR);
	close_side(side);
	exit(0);
}

/* A child of the peer, forked while it had a device open, keeps nothing of it. */
static void ended_with_child(struct side *side)
{
	struct ibv_sge sge;
	char nothing;
	if (side->in_one || !with_stub())
		return;
	connect_side(side);
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, 0, 100);
	if (side->number == 1) {
		if (fork() == 0) { /* until the other side is gone */
			CHECK_IS(read(side->socket, &nothing, 1), 0);
			_exit(0);
		}
		_exit(0);
	}
	struct ibv_wc wc = {0};
	while (wc.status == IBV_WC_SUCCESS) {
		CHECK_IS(post(side, &wr), 0);
		wc = await(side->send_cq);
	}
	CHECK_IS(wc.status, IBV_WC_RETRY_EXC_ERR);
	close_side(side);
	exit(0);
}

/* Queue pairs that are not meant for each other. */
static void strangers(struct side *side)
{
	struct ibv_sge sge;
	introduce(side);
	side->there.psn += 5;
	CHECK_IS(modify(side, IBV_QPS_INIT, INIT_MASK), 0);
	CHECK_IS(modify(side, IBV_QPS_RTR, RTR_MASK), 0);
	CHECK_IS(modify(side, IBV_QPS_RTS, RTS_MASK), 0);
	meet(side);
	struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, 0, 100);
	if (with_stub())
		fail(side, &wr, IBV_WC_RETRY_EXC_ERR);
}

/* What others need is not destroyed. */
static void busy(struct side *side)
{
	CHECK_IS(verbs.ibv_destroy_cq(side->send_cq), EBUSY);
	CHECK_IS(verbs.ibv_destroy_srq(side->srq), EBUSY);
	CHECK_IS(verbs.ibv_dealloc_pd(side->pd), EBUSY);
	CHECK_IS(verbs.ibv_destroy_comp_channel(side->channel), EBUSY);
}

/* A queue pair breaks sooner or later, and works again when it is connected anew. */
static void broken(struct side *side)
{
	struct ibv_sge sge;
	connect_side(side);
	for (int i = 0; i < 5; i++) {
		struct ibv_wc wc = {0};
		struct ibv_send_wr wr = request(side, &sge, IBV_WR_RDMA_WRITE, 0, 100);
		while (wc.status == IBV_WC_SUCCESS) {
			CHECK_IS(post(side, &wr), 0);
			wc = await(side->send_cq);
		}
		CHECK_IS(wc.status, IBV_WC_RETRY_EXC_ERR);
		await_state(side, IBV_QPS_ERR);
		meet(side);
		CHECK_IS(modify(side, IBV_QPS_RESET, IBV_QP_STATE), 0);
		connect_side(side);
	}
}

static const struct check checks[] = {
	{.name = "masks", masks},
	{.name = "values", values},
	{.name = "wrong key", wrong_key},
	{.name = "before", before},
	{.name = "beyond", beyond},
	{.name = "far beyond", far_beyond},
	{.name = "region not writable", region_not_writable},
	{.name = "queue pair not writable", queue_pair_not_writable},
	{.name = "stale key", stale_key},
	{.name = "wrong source", wrong_source},
	{.name = "too long", too_long},
	{.name = "never ready", never_ready},
	{.name = "flushed", flushed},
	{.name = "destroyed", destroyed},
	{.name = "started anew", started_anew},
	{.name = "ended", ended},
	{.name = "ended, with a child", ended_with_child},
	{.name = "strangers", strangers},
	{.name = "busy", busy},
	{.name = "broken", broken, "STUB_VERBS_BREAK", "20"},
};

int main(int argc, char **argv)
{
	int status = find_device();
	if (!status)
		run_checks(checks, sizeof checks / sizeof *checks, argc > 1 ? argv[1] : NULL);
	return status;
}
