/* queue.c - what is posted to the stub's queue pairs and shared receive queues, and how it ends. */
#include "stub.h"

bool make_receives(struct receive_queue *queue, uint32_t capacity, uint32_t max_sge)
{
	queue->capacity = capacity;
	queue->max_sge = max_sge;
	queue->receives = calloc(capacity ? capacity : 1, sizeof *queue->receives);
	return queue->receives;
}

/* Flushes: all that waits is completed with an error, and is no more looked at. */
static void flush_sends(struct stub_qp *qp)
{
	while (qp->done < qp->tail)
		complete_request(qp, IBV_WC_WR_FLUSH_ERR);
}

static void flush_receive(struct stub_qp *qp, const struct receive *receive)
{
	struct completion completion = {.wc = {.status = IBV_WC_WR_FLUSH_ERR, .qp_num = qp->ibv.qp_num, .wr_id = receive->wr_id}};
	push_completion(qp->ibv.recv_cq, &completion, true);
}

static void flush_receives(struct stub_qp *qp)
{
	if (qp->receiving)
		flush_receive(qp, &qp->receive);
	qp->receiving = false;
	for (; qp->own.head < qp->own.tail; qp->own.head++)
		flush_receive(qp, &qp->own.receives[qp->own.head % qp->own.capacity]);
}

/* Brings a queue pair into the error state. */
void break_qp(struct stub_qp *qp)
{
	qp->ibv.state = IBV_QPS_ERR;
	disconnect(qp);
	flush_sends(qp);
	flush_receives(qp);
}

/* The oldest request is done. Its slot, and those before it, are free when its completion is polled, if it has one. */
void complete_request(struct stub_qp *qp, enum ibv_wc_status status)
{
	static const enum ibv_wc_opcode opcodes[] = {
		[IBV_WR_RDMA_WRITE] = IBV_WC_RDMA_WRITE,
		[IBV_WR_RDMA_WRITE_WITH_IMM] = IBV_WC_RDMA_WRITE,
		[IBV_WR_SEND] = IBV_WC_SEND,
		[IBV_WR_SEND_WITH_IMM] = IBV_WC_SEND,
		[IBV_WR_RDMA_READ] = IBV_WC_RDMA_READ,
	};
	struct request *request = &qp->requests[qp->done++ % qp->init.cap.max_send_wr];
	if (qp->next < qp->done)
		qp->next = qp->done;
	if (status == IBV_WC_SUCCESS && !(request->flags & IBV_SEND_SIGNALED) && !qp->init.sq_sig_all)
		return;
	struct completion completion = {
		.qp = qp, .head = qp->done,
		.wc = {.wr_id = request->wr_id, .status = status, .opcode = opcodes[request->opcode], .qp_num = qp->ibv.qp_num,
			.byte_len = request->opcode == IBV_WR_RDMA_READ ? request->length : 0}};
	push_completion(qp->ibv.send_cq, &completion, false);
}

static unsigned choose_fate(struct stub_context *context)
{
	if (!context->break_one_in || random_number(context) % context->break_one_in)
		return WELL;
	return random_number(context) % 2 ? BREAKS_BEFORE : BREAKS_AFTER;
}

static int take_data(struct stub_qp *qp, struct request *request, const struct ibv_send_wr *wr)
{
	uint64_t length = 0;
	for (int i = 0; i < wr->num_sge; i++)
		length += wr->sg_list[i].length;
	if (length > MAX_MESSAGE || (wr->send_flags & IBV_SEND_INLINE && length > qp->init.cap.max_inline_data))
		return EINVAL;
	request->length = request->left = length;
	request->num_sge = wr->num_sge;
	if (wr->num_sge)
		memcpy(request->sges, wr->sg_list, wr->num_sge * sizeof *wr->sg_list);
	if (!(wr->send_flags & IBV_SEND_INLINE))
		return 0;
	uint8_t *end = request->inlined;
	for (int i = 0; i < wr->num_sge; end += wr->sg_list[i++].length)
		if (wr->sg_list[i].length)
			memcpy(end, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length);
	request->num_sge = 1;
	request->sges[0] = (struct ibv_sge){.addr = (uintptr_t)request->inlined, .length = length};
	return 0;
}

static int post_one_send(struct stub_context *context, struct stub_qp *qp, const struct ibv_send_wr *wr)
{
	if (qp->ibv.state != IBV_QPS_RTS && qp->ibv.state != IBV_QPS_ERR)
		return EINVAL;
	if (wr->opcode > IBV_WR_RDMA_READ || wr->num_sge < 0 || (uint32_t)wr->num_sge > qp->init.cap.max_send_sge ||
	    (wr->opcode == IBV_WR_RDMA_READ && wr->send_flags & IBV_SEND_INLINE))
		return EINVAL;
	if (qp->tail - qp->head >= qp->init.cap.max_send_wr)
		return ENOMEM;
	struct request *request = &qp->requests[qp->tail % qp->init.cap.max_send_wr];
	int error = take_data(qp, request, wr);
	if (error)
		return error;
	request->wr_id = wr->wr_id;
	request->opcode = wr->opcode;
	request->flags = wr->send_flags;
	request->imm = wr->imm_data;
	request->remote = wr->wr.rdma.remote_addr;
	request->rkey = wr->wr.rdma.rkey;
	request->fate = choose_fate(context);
	qp->tail++;
	return 0;
}

int post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct stub_context *context = stub_context(ibv->context);
	struct stub_qp *qp = (struct stub_qp *)ibv;
	int error = 0;
	pthread_mutex_lock(&context->lock);
	for (; wr && !(error = post_one_send(context, qp, wr)); wr = wr->next)
		;
	if (error)
		*bad = wr;
	if (ibv->state == IBV_QPS_ERR)
		flush_sends(qp);
	else
		wake(context);
	pthread_mutex_unlock(&context->lock);
	return error;
}

static int post_receives(struct receive_queue *queue, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	for (; wr; wr = wr->next) {
		*bad = wr;
		if (wr->num_sge < 0 || (uint32_t)wr->num_sge > queue->max_sge)
			return EINVAL;
		if (queue->tail - queue->head == queue->capacity)
			return ENOMEM;
		struct receive *receive = &queue->receives[queue->tail++ % queue->capacity];
		receive->wr_id = wr->wr_id;
		receive->num_sge = wr->num_sge;
		if (wr->num_sge)
			memcpy(receive->sges, wr->sg_list, wr->num_sge * sizeof *wr->sg_list);
	}
	return 0;
}

int post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct stub_context *context = stub_context(ibv->context);
	struct stub_qp *qp = (struct stub_qp *)ibv;
	pthread_mutex_lock(&context->lock);
	*bad = wr;
	int error = ibv->srq || ibv->state == IBV_QPS_RESET ? EINVAL : post_receives(&qp->own, wr, bad);
	if (ibv->state == IBV_QPS_ERR)
		flush_receives(qp);
	wake(context);
	pthread_mutex_unlock(&context->lock);
	return error;
}

int post_srq_recv(struct ibv_srq *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct stub_context *context = stub_context(ibv->context);
	pthread_mutex_lock(&context->lock);
	int error = post_receives(&((struct stub_srq *)ibv)->queue, wr, bad);
	wake(context);
	pthread_mutex_unlock(&context->lock);
	return error;
}

struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *init)
{
	if (!init->attr.max_wr || init->attr.max_wr > MAX_WR || init->attr.max_sge > MAX_SGE) {
		errno = EINVAL;
		return NULL;
	}
	struct stub_srq *srq = calloc(1, sizeof *srq);
	if (!srq || !make_receives(&srq->queue, init->attr.max_wr, init->attr.max_sge)) {
		free(srq);
		errno = ENOMEM;
		return NULL;
	}
	srq->ibv.context = pd->context;
	srq->ibv.srq_context = init->srq_context;
	srq->ibv.pd = pd;
	object_add(&srq->object);
	object_use(&((struct stub_pd *)pd)->object, 1);
	return &srq->ibv;
}

int ibv_destroy_srq(struct ibv_srq *ibv)
{
	struct stub_srq *srq = (struct stub_srq *)ibv;
	int error = object_remove(&srq->object, "shared receive queue");
	if (error)
		return error;
	object_use(&((struct stub_pd *)ibv->pd)->object, -1);
	free(srq->queue.receives);
	free(srq);
	return 0;
}
