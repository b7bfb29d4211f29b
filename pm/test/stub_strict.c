/* stub_strict.c - the stub of libibverbs ends a process that does what would make real devices go astray, and is not
 * there if the environment says so. */
#include "verbs_pair.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>

static struct side side = {.rnr_retry = 7};

/* Connects the side's queue pair to itself. */
static void connect_to_itself(void)
{
	side.here = (struct about){side.here.gid, (uintptr_t)side.memory, side.qp->qp_num, 1, side.mr->rkey};
	side.there = side.here;
	CHECK_IS(modify(&side, IBV_QPS_INIT, INIT_MASK), 0);
	CHECK_IS(modify(&side, IBV_QPS_RTR, RTR_MASK), 0);
	CHECK_IS(modify(&side, IBV_QPS_RTS, RTS_MASK), 0);
}

static void works(void)
{
	struct ibv_sge sge;
	connect_to_itself();
	struct ibv_send_wr wr = request(&side, &sge, IBV_WR_RDMA_WRITE, 1000, 100);
	memset(side.memory, 3, 100);
	sge.addr = (uintptr_t)side.memory;
	CHECK_IS(post(&side, &wr), 0);
	await_well(side.send_cq);
	CHECK(!memcmp(side.memory, side.memory + 1000, 100));
	close_side(&side);
}

static void overflows(void)
{
	struct ibv_sge sge;
	connect_to_itself();
	struct ibv_send_wr wr = request(&side, &sge, IBV_WR_RDMA_WRITE, 0, 0);
	wr.send_flags = 0;
	for (int i = 0; i <= COMPLETIONS; i++) { /* each is flushed */
		CHECK_IS(verbs.ibv_modify_qp(side.qp, &(struct ibv_qp_attr){.qp_state = IBV_QPS_RESET}, IBV_QP_STATE), 0);
		connect_to_itself();
		CHECK_IS(modify(&side, IBV_QPS_ERR, IBV_QP_STATE), 0);
		CHECK_IS(post(&side, &wr), 0);
	}
}

static void destroys_queue_pair_twice(void)
{
	CHECK_IS(verbs.ibv_destroy_qp(side.qp), 0);
	verbs.ibv_destroy_qp(side.qp);
}

static void destroys_region_twice(void)
{
	CHECK_IS(verbs.ibv_dereg_mr(side.mr), 0);
	verbs.ibv_dereg_mr(side.mr);
}

static void destroys_queue_twice(void)
{
	CHECK_IS(verbs.ibv_destroy_qp(side.qp), 0);
	CHECK_IS(verbs.ibv_destroy_cq(side.send_cq), 0);
	verbs.ibv_destroy_cq(side.send_cq);
}

static void closes_what_is_in_use(void)
{
	verbs.ibv_close_device(side.context);
}

static void acknowledges_too_much(void)
{
	verbs.ibv_ack_cq_events(side.send_cq, 1);
}

static void destroys_with_unpolled_event(void)
{
	struct ibv_sge sge;
	connect_to_itself();
	CHECK_IS(ibv_req_notify_cq(side.send_cq, 0), 0);
	struct ibv_send_wr wr = request(&side, &sge, IBV_WR_RDMA_WRITE, 0, 0);
	CHECK_IS(post(&side, &wr), 0);
	struct pollfd poller = {.fd = side.channel->fd, .events = POLLIN};
	CHECK_IS(poll(&poller, 1, PATIENCE * 1000), 1);
	CHECK_IS(verbs.ibv_destroy_qp(side.qp), 0);
	CHECK_IS(verbs.ibv_destroy_cq(side.send_cq), 0);
	CHECK_IS(poll(&poller, 1, 0), 0);
	CHECK((side.send_cq = verbs.ibv_create_cq(side.context, 1, NULL, NULL, 0)));
	CHECK((side.qp = create_qp(&side)));
	close_side(&side);
}

/* Its exit status, or 128 and the signal that ended it. What it says is not shown where it is to be ended. */
static int status_of(void (*what)(void), int expected)
{
	pid_t child = fork();
	if (child == 0) {
		alarm(60);
		setrlimit(RLIMIT_CORE, &(struct rlimit){0});
		open_side(&side);
		if (expected)
			dup2(open("/dev/null", O_WRONLY), 2);
		what();
		exit(0);
	}
	return child_status(child);
}

static void none(void)
{
	int count = -1;
	setenv("STUB_VERBS_NONE", "1", 1);
	struct ibv_device **list = verbs.ibv_get_device_list(&count);
	CHECK(list && !list[0]);
	CHECK_IS(count, 0);
	verbs.ibv_free_device_list(list);
}

int main(void)
{
	enum { ENDED = 128 + SIGABRT };
	int status = find_device();
	if (status)
		return status;
	if (!with_stub()) {
		fprintf(stderr, "%s is no stub\n", device_name());
		return SKIPPED;
	}
	CHECK_IS(status_of(works, 0), 0);
	CHECK_IS(status_of(destroys_with_unpolled_event, 0), 0);
	CHECK_IS(status_of(overflows, ENDED), ENDED);
	CHECK_IS(status_of(destroys_queue_pair_twice, ENDED), ENDED);
	CHECK_IS(status_of(destroys_region_twice, ENDED), ENDED);
	CHECK_IS(status_of(destroys_queue_twice, ENDED), ENDED);
	CHECK_IS(status_of(closes_what_is_in_use, ENDED), ENDED);
	CHECK_IS(status_of(acknowledges_too_much, ENDED), ENDED);
	none();
	return 0;
}
