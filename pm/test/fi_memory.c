/* fi_memory.c - remote memory access through the libfabric provider: what may be accessed, and what may not. */
#include "fi_test.h"

static struct pair pair;
static struct side *a = &pair.a, *b = &pair.b;
static char out, in;
static char memory[300000], local[300000];
static struct fid_mr *mr, *read_only;
static const size_t sizes[] = { 0, 1, 8, 48, 56, 57, 1000, 8192, 8193, 16352, 16353, 16384, 100000 };

static void open_memory(void)
{
	struct iovec region = { memory, sizeof(memory) };
	struct fi_mr_attr attr = { .mr_iov = &region, .iov_count = 1, .access = FI_REMOTE_READ | FI_REMOTE_WRITE };

	CHECK(!fi_mr_regattr(pair.domain, &attr, 0, &mr));
	CHECK(!fi_mr_reg(pair.domain, memory, sizeof(memory), FI_REMOTE_READ, 0, 0, 0, &read_only, NULL));
	CHECK(fi_mr_desc(mr));
	/* Parts that lie apart have no common address. */
	struct iovec parts[2] = { { memory, 100 }, { memory + 200, 100 } };
	struct fi_mr_attr several = { .mr_iov = parts, .iov_count = 2, .access = FI_REMOTE_READ };
	struct fid_mr *none;
	CHECK_IS(fi_mr_regv(pair.domain, parts, 2, FI_REMOTE_READ, 0, 0, 0, &none, NULL), -FI_EINVAL);
	CHECK_IS(fi_mr_regattr(pair.domain, &several, 0, &none), -FI_EINVAL);
}

static void whole(void)
{
	struct fi_cq_tagged_entry entry;

	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		size_t size = sizes[i];

		fill(local, size, i);
		memset(memory, 0, sizeof(memory));
		AGAIN(fi_write(a->ep, local, size, NULL, a->other, (uintptr_t)memory + 5, fi_mr_key(mr), &out), b);
		entry = next(a, b, NULL);
		CHECK(entry.op_context == &out);
		CHECK_IS(entry.flags, FI_RMA | FI_WRITE);
		CHECK(filled(memory + 5, size, i) && !memory[size + 5]);
		memset(local, 0, sizeof(local));
		AGAIN(fi_read(a->ep, local, size, NULL, a->other, (uintptr_t)memory + 5, fi_mr_key(read_only), &in), b);
		entry = next(a, b, NULL);
		CHECK(entry.op_context == &in);
		CHECK_IS(entry.flags, FI_RMA | FI_READ);
		CHECK(filled(local, size, i));
	}
}

static void vectors(void)
{
	struct fi_cq_tagged_entry entry;
	struct iovec parts[3];
	fi_addr_t source;

	fill(local, 9000, 5);
	for (int i = 0; i < 3; i++)
		parts[i] = (struct iovec){ local + 3000 * i, 3000 };
	AGAIN(fi_writev(a->ep, parts, NULL, 3, a->other, (uintptr_t)memory, fi_mr_key(mr), NULL), b);
	next(a, b, NULL);
	CHECK(filled(memory, 9000, 5));
	memset(local, 0, 9000);
	AGAIN(fi_readv(a->ep, parts, NULL, 3, a->other, (uintptr_t)memory, fi_mr_key(mr), NULL), b);
	next(a, b, NULL);
	CHECK(filled(local, 9000, 5));
	struct fi_rma_iov there[2] = { { (uintptr_t)memory, 4000, fi_mr_key(mr) },
				       { (uintptr_t)memory + 100000, 5000, fi_mr_key(mr) } };
	struct fi_msg_rma message = { .msg_iov = parts, .iov_count = 3, .addr = a->other, .rma_iov = there,
				      .rma_iov_count = 2, .data = 4711 };
	memset(memory, 0, sizeof(memory));
	AGAIN(fi_writemsg(a->ep, &message, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE), b);
	next(a, b, NULL);
	CHECK(!memcmp(memory, local, 4000) && !memcmp(memory + 100000, local + 4000, 5000));
	entry = next(b, a, &source);
	CHECK_IS(entry.flags, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA);
	CHECK(entry.data == 4711 && source == b->other);
	memset(local, 0, 9000);
	AGAIN(fi_readmsg(a->ep, &message, 0), b);
	next(a, b, NULL);
	CHECK(filled(local, 9000, 5));
	AGAIN(fi_writedata(a->ep, local, 9000, NULL, 11, a->other, (uintptr_t)memory, fi_mr_key(mr), NULL), b);
	next(a, b, NULL);
	CHECK_IS(next(b, a, NULL).data, 11);
}

static void injected(void)
{
	uint64_t before = fi_cntr_read(a->rma);

	fill(local, 500, 9);
	AGAIN(fi_inject_write(a->ep, local, 500, a->other, (uintptr_t)memory, fi_mr_key(mr)), b);
	AGAIN(fi_inject_writedata(a->ep, local, 500, 12, a->other, (uintptr_t)memory + 500, fi_mr_key(mr)), b);
	memset(local, 0, 500);
	for (long i = 0; i < TRIES && fi_cntr_read(a->rma) < before + 2; i++)
		fi_cntr_read(b->received);
	CHECK(!fi_cntr_wait(a->rma, before + 2, 1000));
	CHECK(filled(memory, 500, 9) && filled(memory + 500, 500, 9));
	CHECK_IS(next(b, a, NULL).data, 12);
}

/* Closes the regions at the end. */
static void not_allowed(void)
{
	struct fi_cq_err_entry error;
	uint64_t key = fi_mr_key(mr);

	AGAIN(fi_write(a->ep, local, 8, NULL, a->other, (uintptr_t)memory, fi_mr_key(read_only), &in), b);
	error = next_error(a, b);
	CHECK(error.op_context == &in && error.err == FI_EACCES);
	AGAIN(fi_read(a->ep, local, 8, NULL, a->other, (uintptr_t)memory + sizeof(memory) - 7, fi_mr_key(mr), &in), b);
	CHECK_IS(next_error(a, b).err, FI_EACCES);
	AGAIN(fi_read(a->ep, local, 8, NULL, a->other, (uintptr_t)memory, 0x123456789, &in), b);
	CHECK_IS(next_error(a, b).err, FI_EACCES);
	CHECK(!fi_close(&mr->fid) && !fi_close(&read_only->fid));
	AGAIN(fi_read(a->ep, local, 8, NULL, a->other, (uintptr_t)memory, key, &in), b);
	CHECK_IS(next_error(a, b).err, FI_EACCES);
	nothing(a, b);
}

/* Each long send that is not received takes a region: where there are no more it is to be tried again, and succeeds when
 * one has been received; but not while only the caller himself can give one back. */
static void no_regions_left(void)
{
	enum { MOST = 262144, SENDS = 5, LENGTH = 100000 };
	struct fid_mr **all = calloc(MOST, sizeof(*all));
	int count = 0, status;

	while (!(status = fi_mr_reg(pair.domain, memory, 8, FI_REMOTE_READ, 0, 0, 0, &all[count], NULL)))
		count++;
	CHECK_IS(status, -FI_ENOSPC);
	CHECK_IS(fi_tsend(a->ep, local, LENGTH, NULL, a->other, 1, NULL), -FI_ENOSPC);
	for (int i = 0; i < SENDS; i++) {
		CHECK(!fi_close(&all[--count]->fid));
		AGAIN(fi_tsend(a->ep, local, LENGTH, NULL, a->other, 1, NULL), b);
	}
	CHECK_IS(fi_tsend(a->ep, local, LENGTH, NULL, a->other, 1, NULL), -FI_EAGAIN);
	for (int i = 0; i < SENDS + 1; i++) {
		CHECK(!fi_trecv(b->ep, memory, LENGTH, NULL, b->other, 1, 0, NULL));
		CHECK_IS(next(b, a, NULL).len, LENGTH);
		next(a, b, NULL);
		if (!i)
			AGAIN(fi_tsend(a->ep, local, LENGTH, NULL, a->other, 1, NULL), b);
	}
	while (count)
		CHECK(!fi_close(&all[--count]->fid));
	free(all);
}

int main(void)
{
	need_provider();
	for (int i = 0; i < 4; i++) {
		struct pair_options options = {
			.threading = i & 1 ? FI_THREAD_SAFE : FI_THREAD_DOMAIN,
			.av_type = i & 2 ? FI_AV_MAP : FI_AV_TABLE,
			.format = FI_CQ_FORMAT_TAGGED,
		};

		open_pair(&pair, &options);
		open_memory();
		whole();
		vectors();
		injected();
		not_allowed();
		if (!i)
			no_regions_left();
		close_pair(&pair);
	}
	return 0;
}
