/* qp.c - the stub's queue pairs: made, brought through their states, destroyed. */
#include "stub.h"

static bool place_qp(struct stub_context *context, struct stub_qp *qp)
{
	for (unsigned tries = 1; tries < QPS; tries++) {
		context->last_qp = context->last_qp % (QPS - 1) + 1;
		if (!context->qps[context->last_qp]) {
			context->qps[context->last_qp] = qp;
			qp->ibv.qp_num = context->slot * QPS + context->last_qp;
			LIST_INSERT_HEAD(&context->all_qps, qp, link);
			return true;
		}
	}
	return false;
}

static bool acceptable(const struct ibv_qp_init_attr *init)
{
	const struct ibv_qp_cap *cap = &init->cap;
	return init->qp_type == IBV_QPT_RC && init->send_cq && init->recv_cq && cap->max_send_wr <= MAX_WR &&
	       cap->max_recv_wr <= MAX_WR && cap->max_send_sge <= MAX_SGE && cap->max_recv_sge <= MAX_SGE &&
	       cap->max_inline_data <= MAX_INLINE;
}

/* What the queue pair needs is kept as long as it is. */
static void use_parts(struct stub_qp *qp, int change)
{
	object_use(&((struct stub_pd *)qp->ibv.pd)->object, change);
	object_use(&((struct stub_cq *)qp->ibv.send_cq)->object, change);
	object_use(&((struct stub_cq *)qp->ibv.recv_cq)->object, change);
	if (qp->ibv.srq)
		object_use(&((struct stub_srq *)qp->ibv.srq)->object, change);
}

static void free_qp(struct stub_qp *qp)
{
	free(qp->own.receives);
	free(qp->requests);
	free(qp);
}

struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct stub_context *context = stub_context(pd->context);
	if (!acceptable(init)) {
		errno = EINVAL;
		return NULL;
	}
	if (init->srq)
		init->cap.max_recv_wr = init->cap.max_recv_sge = 0;
	struct stub_qp *qp = calloc(1, sizeof *qp);
	if (!qp)
		return NULL;
	qp->init = *init;
	qp->ibv = (struct ibv_qp){.context = pd->context, .qp_context = init->qp_context, .pd = pd, .send_cq = init->send_cq,
		.recv_cq = init->recv_cq, .srq = init->srq, .state = IBV_QPS_RESET, .qp_type = IBV_QPT_RC};
	qp->requests = calloc(init->cap.max_send_wr ? init->cap.max_send_wr : 1, sizeof *qp->requests);
	bool made = make_receives(&qp->own, init->cap.max_recv_wr, init->cap.max_recv_sge) && qp->requests;
	pthread_mutex_lock(&context->lock);
	bool placed = made && place_qp(context, qp);
	pthread_mutex_unlock(&context->lock);
	if (!placed) {
		free_qp(qp);
		errno = ENOMEM;
		return NULL;
	}
	object_add(&qp->object);
	use_parts(qp, 1);
	return &qp->ibv;
}

/* Whatever is under way is forgotten without a word. */
static void forget(struct stub_qp *qp)
{
	disconnect(qp);
	orphan_completions(qp->ibv.send_cq, qp);
	qp->head = qp->done = qp->next = qp->tail;
	qp->own.head = qp->own.tail;
	qp->lost = qp->receiving = false;
	qp->deadline_ms = qp->redial_ms = 0;
}

int ibv_destroy_qp(struct ibv_qp *ibv)
{
	struct stub_qp *qp = (struct stub_qp *)ibv;
	object_remove(&qp->object, "queue pair");
	struct stub_context *context = stub_context(ibv->context);
	pthread_mutex_lock(&context->lock);
	forget(qp);
	LIST_REMOVE(qp, link);
	context->qps[ibv->qp_num % QPS] = NULL;
	pthread_mutex_unlock(&context->lock);
	use_parts(qp, -1);
	free_qp(qp);
	return 0;
}

int ibv_query_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask, struct ibv_qp_init_attr *init)
{
	struct stub_qp *qp = (struct stub_qp *)ibv;
	struct stub_context *context = stub_context(ibv->context);
	(void)mask;
	pthread_mutex_lock(&context->lock);
	*attr = qp->attr;
	attr->qp_state = attr->cur_qp_state = ibv->state;
	attr->cap = qp->init.cap;
	*init = qp->init;
	pthread_mutex_unlock(&context->lock);
	return 0;
}

/* The attributes that a change of state needs, and those it allows besides (InfiniBand Architecture Specification,
 * volume 1, table of the modifiers of Modify Queue Pair, reliable connected). */
static const struct transition {
	enum ibv_qp_state from, to;
	int needed, allowed;
} transitions[] = {
	{IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, 0},
	{IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
	{IBV_QPS_INIT, IBV_QPS_RTR,
	 IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
	 IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
	{IBV_QPS_RTR, IBV_QPS_RTS,
	 IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
	 IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
	{IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER},
};

static bool mask_right(enum ibv_qp_state from, enum ibv_qp_state to, int mask)
{
	mask &= ~IBV_QP_STATE;
	if (to == IBV_QPS_ERR || to == IBV_QPS_RESET)
		return !mask;
	for (size_t i = 0; i < sizeof transitions / sizeof *transitions; i++) {
		const struct transition *it = &transitions[i];
		if (it->from == from && it->to == to)
			return (mask & it->needed) == it->needed && !(mask & ~(it->needed | it->allowed));
	}
	return false;
}

static bool path_right(const struct ibv_ah_attr *path)
{
	static const union ibv_gid none;
	return path->is_global && path->port_num == 1 && path->grh.sgid_index < GIDS && memcmp(&path->grh.dgid, &none, sizeof none);
}

static bool values_right(const struct ibv_qp_attr *attr, int mask)
{
	return !(mask & IBV_QP_PORT && attr->port_num != 1) && !(mask & IBV_QP_PKEY_INDEX && attr->pkey_index) &&
	       !(mask & IBV_QP_AV && !path_right(&attr->ah_attr)) &&
	       !(mask & IBV_QP_PATH_MTU && (attr->path_mtu < IBV_MTU_256 || attr->path_mtu > IBV_MTU_1024)) &&
	       !(mask & IBV_QP_DEST_QPN && attr->dest_qp_num >> 24) &&
	       !(mask & IBV_QP_MAX_QP_RD_ATOMIC && attr->max_rd_atomic > MAX_RD_ATOMIC) &&
	       !(mask & IBV_QP_MAX_DEST_RD_ATOMIC && attr->max_dest_rd_atomic > MAX_RD_ATOMIC) &&
	       !(mask & IBV_QP_TIMEOUT && attr->timeout > 31) && !(mask & IBV_QP_RETRY_CNT && attr->retry_cnt > 7) &&
	       !(mask & IBV_QP_RNR_RETRY && attr->rnr_retry > 7) && !(mask & IBV_QP_MIN_RNR_TIMER && attr->min_rnr_timer > 31);
}

#define TAKE(bit, field) \
	if (mask & (bit)) \
		qp->attr.field = attr->field

static void take_attributes(struct stub_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	TAKE(IBV_QP_PORT, port_num);
	TAKE(IBV_QP_PKEY_INDEX, pkey_index);
	TAKE(IBV_QP_ACCESS_FLAGS, qp_access_flags);
	TAKE(IBV_QP_AV, ah_attr);
	TAKE(IBV_QP_PATH_MTU, path_mtu);
	TAKE(IBV_QP_DEST_QPN, dest_qp_num);
	TAKE(IBV_QP_RQ_PSN, rq_psn);
	TAKE(IBV_QP_SQ_PSN, sq_psn);
	TAKE(IBV_QP_MAX_QP_RD_ATOMIC, max_rd_atomic);
	TAKE(IBV_QP_MAX_DEST_RD_ATOMIC, max_dest_rd_atomic);
	TAKE(IBV_QP_MIN_RNR_TIMER, min_rnr_timer);
	TAKE(IBV_QP_TIMEOUT, timeout);
	TAKE(IBV_QP_RETRY_CNT, retry_cnt);
	TAKE(IBV_QP_RNR_RETRY, rnr_retry);
	qp->attr.rq_psn &= 0xffffff;
	qp->attr.sq_psn &= 0xffffff;
	qp->rnr_left = qp->attr.rnr_retry;
}

static int modify(struct stub_qp *qp, const struct ibv_qp_attr *attr, int mask)
{
	enum ibv_qp_state from = mask & IBV_QP_CUR_STATE ? attr->cur_qp_state : qp->ibv.state;
	enum ibv_qp_state to = mask & IBV_QP_STATE ? attr->qp_state : from;
	if (from != qp->ibv.state || !mask_right(from, to, mask) || !values_right(attr, mask))
		return EINVAL;
	take_attributes(qp, attr, mask);
	qp->ibv.state = to;
	if (to == IBV_QPS_ERR)
		break_qp(qp);
	else if (to == IBV_QPS_RESET)
		forget(qp);
	return 0;
}

int ibv_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	struct stub_context *context = stub_context(ibv->context);
	pthread_mutex_lock(&context->lock);
	int error = modify((struct stub_qp *)ibv, attr, mask);
	pthread_mutex_unlock(&context->lock);
	return error;
}
