/* stub_verbs.c - the stub of libibverbs does what a device does: between two processes, and within one. With a real
 * library and TEST_VERBS_DEVICE, what real devices do, but for what they can't be asked to do. */
#include "verbs_side.h"

#include <pthread.h>
#include <signal.h>

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

/* The peer's queue pair, or its process, is gone. */
static void gone(struct side *side)
{
	struct ibv_sge sge[2];
	connect_side(side);
	if (side->number == 1) {
		CHECK_IS(verbs.ibv_destroy_qp(side->qp), 0);
		CHECK((side->qp = create_qp(side)));
		meet(side);
		return;
	}
	meet(side);
	struct ibv_send_wr first = request(side, &sge[0], IBV_WR_RDMA_WRITE, 0, 100);
	struct ibv_send_wr second = request(side, &sge[1], IBV_WR_RDMA_WRITE, 100, 100);
	first.next = &second;
	first.send_flags = second.send_flags = 0;
	CHECK_IS(post(side, &first), 0);
	struct ibv_wc wc = await(side->send_cq);
	CHECK_IS(wc.status, IBV_WC_RETRY_EXC_ERR);
	CHECK_IS(wc.wr_id, 0);
	wc = await(side->send_cq);
	CHECK_IS(wc.status, IBV_WC_WR_FLUSH_ERR);
	CHECK_IS(wc.wr_id, 100);
}

static const struct check {
	const char *name;
	void (*run)(struct side *side);
} checks[] = {
	{"writes", writes},
	{"gone", gone},
};

static const struct check *current;

static void *run_side(void *argument)
{
	struct side *side = argument;
	side->rnr_retry = 7;
	open_side(side);
	current->run(side);
	meet(side);
	close_side(side);
	return NULL;
}

static void in_two_processes(void)
{
	int sockets[2];
	pid_t children[2];
	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
	for (int i = 0; i < 2; i++) {
		if ((children[i] = fork()) == 0) {
			struct side side = {.number = i, .socket = sockets[i]};
			close(sockets[!i]);
			alarm(60);
			run_side(&side);
			exit(0);
		}
	}
	close(sockets[0]);
	close(sockets[1]);
	CHECK_IS(child_status(children[0]), 0);
	CHECK_IS(child_status(children[1]), 0);
}

static void in_one_process(void)
{
	int sockets[2];
	pid_t child = fork();
	if (child == 0) {
		CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
		struct side sides[2] = {{.number = 0, .socket = sockets[0]}, {.number = 1, .socket = sockets[1]}};
		pthread_t thread;
		alarm(60);
		CHECK_IS(pthread_create(&thread, NULL, run_side, &sides[1]), 0);
		run_side(&sides[0]);
		pthread_join(thread, NULL);
		exit(0);
	}
	CHECK_IS(child_status(child), 0);
}

int main(void)
{
	alarm(90);
	if (!load_verbs()) {
		fprintf(stderr, "no libibverbs.so.1: %s\n", dlerror());
		return SKIPPED;
	}
	struct ibv_context *context = open_device();
	if (!context) {
		fprintf(stderr, "no device %s: the stub's folder isn't in LD_LIBRARY_PATH\n", device_name());
		return SKIPPED;
	}
	CHECK_IS(verbs.ibv_close_device(context), 0);
	for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
		current = &checks[i];
		in_two_processes();
		in_one_process();
	}
	return 0;
}
