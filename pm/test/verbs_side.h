/* verbs_side.h - one of two sides that talk over verbs, each in a process or a thread of its own. The library is the
 * libibverbs.so.1 that is found: the stub, or a real one, where TEST_VERBS_DEVICE names the device and TEST_VERBS_GID the
 * index of its GID (1 by default). */
#ifndef VERBS_SIDE_H
#define VERBS_SIDE_H

#include <dlfcn.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdbool.h>
#include <sys/socket.h>

#include "test.h"

#undef ibv_reg_mr
#undef ibv_query_port

#define VERBS(X) \
	X(ibv_get_device_list) X(ibv_free_device_list) X(ibv_get_device_name) X(ibv_open_device) X(ibv_close_device) \
	X(ibv_query_device) X(ibv_query_port) X(ibv_query_gid) X(_ibv_query_gid_ex) X(ibv_alloc_pd) X(ibv_dealloc_pd) \
	X(ibv_reg_mr) X(ibv_dereg_mr) X(ibv_create_comp_channel) X(ibv_destroy_comp_channel) X(ibv_create_cq) \
	X(ibv_destroy_cq) X(ibv_get_cq_event) X(ibv_ack_cq_events) X(ibv_create_srq) X(ibv_destroy_srq) X(ibv_create_qp) \
	X(ibv_modify_qp) X(ibv_query_qp) X(ibv_destroy_qp) X(ibv_wc_status_str)

#define MEMBER(name) typeof(name) *name;
static struct {
	VERBS(MEMBER)
} verbs;

enum {
	MEMORY = 1 << 20, /* bytes of a side's region */
	SENDS = 16,       /* slots of a send queue */
	RECEIVES = 64,    /* of a receive queue */
	COMPLETIONS = 128,
	INLINE = 64,
	PATIENCE = 20,    /* seconds */
};

/* What a side tells the other. */
struct about {
	union ibv_gid gid;
	uint64_t address;
	uint32_t qp_num, psn, rkey;
};

struct side {
	int number, socket;
	bool in_one; /* process, both of them */
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_comp_channel *channel;
	struct ibv_cq *send_cq, *receive_cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	uint8_t *memory;
	enum ibv_mtu mtu;
	int gid_index;
	uint8_t rnr_retry;
	struct about here, there;
};

#define RESOLVE(name) CHECK((verbs.name = (typeof(verbs.name))dlsym(library, #name)));

/* Loads the library, if there is one. */
static inline bool load_verbs(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	if (!library)
		return false;
	VERBS(RESOLVE)
	return true;
}

static inline const char *device_name(void)
{
	const char *name = getenv("TEST_VERBS_DEVICE");
	return name ? name : "stub0";
}

/* What a real device may do differently, or can't be asked to do. */
static inline bool with_stub(void)
{
	return !strcmp(device_name(), "stub0");
}

static inline struct ibv_context *open_device(void)
{
	struct ibv_context *context = NULL;
	struct ibv_device **list = verbs.ibv_get_device_list(NULL);
	for (int i = 0; list && list[i] && !context; i++)
		if (!strcmp(verbs.ibv_get_device_name(list[i]), device_name()))
			context = verbs.ibv_open_device(list[i]);
	if (list)
		verbs.ibv_free_device_list(list);
	return context;
}

static inline void query(struct side *side)
{
	struct ibv_port_attr port = {0};
	const char *gid = getenv("TEST_VERBS_GID");
	CHECK_IS(verbs.ibv_query_port(side->context, 1, (struct _compat_ibv_port_attr *)&port), 0);
	CHECK_IS(port.state, IBV_PORT_ACTIVE);
	side->mtu = port.active_mtu;
	side->gid_index = gid ? atoi(gid) : 1;
	CHECK_IS(verbs.ibv_query_gid(side->context, 1, side->gid_index, &side->here.gid), 0);
}

static inline struct ibv_qp *create_qp(struct side *side)
{
	struct ibv_qp_init_attr init = {
		.send_cq = side->send_cq, .recv_cq = side->receive_cq, .srq = side->srq, .qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = SENDS, .max_send_sge = 4, .max_inline_data = INLINE}};
	return verbs.ibv_create_qp(side->pd, &init);
}

static inline void open_side(struct side *side)
{
	const int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
	struct ibv_srq_init_attr srq = {.attr = {.max_wr = RECEIVES, .max_sge = 2}};
	CHECK((side->context = open_device()));
	query(side);
	CHECK((side->memory = calloc(1, MEMORY)));
	CHECK((side->pd = verbs.ibv_alloc_pd(side->context)));
	CHECK((side->mr = verbs.ibv_reg_mr(side->pd, side->memory, MEMORY, access)));
	CHECK((side->channel = verbs.ibv_create_comp_channel(side->context)));
	CHECK((side->send_cq = verbs.ibv_create_cq(side->context, COMPLETIONS, side, side->channel, 0)));
	CHECK((side->receive_cq = verbs.ibv_create_cq(side->context, COMPLETIONS, side, side->channel, 0)));
	CHECK((side->srq = verbs.ibv_create_srq(side->pd, &srq)));
	CHECK((side->qp = create_qp(side)));
}

static inline void close_side(struct side *side)
{
	CHECK_IS(verbs.ibv_destroy_qp(side->qp), 0);
	CHECK_IS(verbs.ibv_destroy_srq(side->srq), 0);
	CHECK_IS(verbs.ibv_destroy_cq(side->receive_cq), 0);
	CHECK_IS(verbs.ibv_destroy_cq(side->send_cq), 0);
	CHECK_IS(verbs.ibv_destroy_comp_channel(side->channel), 0);
	CHECK_IS(verbs.ibv_dereg_mr(side->mr), 0);
	CHECK_IS(verbs.ibv_dealloc_pd(side->pd), 0);
	CHECK_IS(verbs.ibv_close_device(side->context), 0);
	free(side->memory);
}

enum {
	INIT_MASK = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
	RTR_MASK = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
		   IBV_QP_MIN_RNR_TIMER,
	RTS_MASK = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
};

/* The attributes for a state. Between processes that share a processor with much else, packets of a real device are late. */
static inline struct ibv_qp_attr attributes(const struct side *side, enum ibv_qp_state state)
{
	return (struct ibv_qp_attr){
		.qp_state = state, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
		.path_mtu = side->mtu, .dest_qp_num = side->there.qp_num, .rq_psn = side->there.psn, .sq_psn = side->here.psn,
		.max_dest_rd_atomic = 1, .max_rd_atomic = 1, .min_rnr_timer = 12, .timeout = with_stub() ? 14 : 18, .retry_cnt = with_stub() ? 3 : 7,
		.rnr_retry = side->rnr_retry,
		.ah_attr = {.is_global = 1, .port_num = 1,
			.grh = {.dgid = side->there.gid, .sgid_index = side->gid_index, .hop_limit = 64}}};
}

static inline int modify(struct side *side, enum ibv_qp_state state, int mask)
{
	struct ibv_qp_attr attr = attributes(side, state);
	return verbs.ibv_modify_qp(side->qp, &attr, mask);
}

static inline void exchange(struct side *side, const void *here, void *there, size_t length)
{
	CHECK_IS(write(side->socket, here, length), length);
	CHECK_IS(recv(side->socket, there, length, MSG_WAITALL), length);
}

/* Both sides have come so far. */
static inline void meet(struct side *side)
{
	char here = 'm', there;
	exchange(side, &here, &there, 1);
	CHECK_IS(there, 'm');
}

static inline void introduce(struct side *side)
{
	side->here.qp_num = side->qp->qp_num;
	side->here.psn = 1000 + side->number;
	side->here.address = (uintptr_t)side->memory;
	side->here.rkey = side->mr->rkey;
	exchange(side, &side->here, &side->there, sizeof side->here);
}

static inline void connect_side(struct side *side)
{
	introduce(side);
	CHECK_IS(modify(side, IBV_QPS_INIT, INIT_MASK), 0);
	CHECK_IS(modify(side, IBV_QPS_RTR, RTR_MASK), 0);
	CHECK_IS(modify(side, IBV_QPS_RTS, RTS_MASK), 0);
	meet(side);
}

/* The next completion. */
static inline struct ibv_wc await(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	double until = seconds() + PATIENCE;
	int count;
	while (!(count = ibv_poll_cq(cq, 1, &wc)))
		CHECK(seconds() < until);
	CHECK_IS(count, 1);
	return wc;
}

static inline struct ibv_wc await_well(struct ibv_cq *cq)
{
	struct ibv_wc wc = await(cq);
	if (wc.status != IBV_WC_SUCCESS)
		fprintf(stderr, "%s\n", verbs.ibv_wc_status_str(wc.status));
	CHECK_IS(wc.status, IBV_WC_SUCCESS);
	return wc;
}

/* A request for so many bytes at an offset of both regions. */
static inline struct ibv_send_wr request(struct side *side, struct ibv_sge *sge, enum ibv_wr_opcode opcode, uint32_t offset,
					 uint32_t length)
{
	*sge = (struct ibv_sge){.addr = (uintptr_t)side->memory + offset, .length = length, .lkey = side->mr->lkey};
	return (struct ibv_send_wr){
		.wr_id = offset, .sg_list = sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = {.remote_addr = side->there.address + offset, .rkey = side->there.rkey}};
}

static inline int post(struct side *side, struct ibv_send_wr *wr)
{
	struct ibv_send_wr *bad;
	return ibv_post_send(side->qp, wr, &bad);
}

/* Posts a receive for so many bytes at an offset. */
static inline void post_receive(struct side *side, uint64_t id, uint32_t offset, uint32_t length)
{
	struct ibv_sge sge = {.addr = (uintptr_t)side->memory + offset, .length = length, .lkey = side->mr->lkey};
	struct ibv_recv_wr wr = {.wr_id = id, .sg_list = &sge, .num_sge = length > 0}, *bad;
	CHECK_IS(ibv_post_srq_recv(side->srq, &wr, &bad), 0);
}

#endif
