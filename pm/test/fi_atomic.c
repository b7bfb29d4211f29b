/*
 * fi_atomic.c - atomic operations of the libfabric provider: what each does to each datatype, how their ends are told,
 * in which order they are done, and what is refused.
 */
#include <complex.h>

#include "fi_test.h"

static struct pair pair;
static struct side *a = &pair.a, *b = &pair.b;
static _Alignas(64) char memory[65536], local[65536], compares[65536], results[65536];
static struct fid_mr *mr, *read_only, *write_only;

enum form { BASE, FETCH, COMPARE };

static struct fi_cq_tagged_entry wait_for(void *context, enum form form)
{
	struct fi_cq_tagged_entry entry = next(a, b, NULL);

	CHECK(entry.op_context == context);
	CHECK_IS(entry.flags, FI_ATOMIC | (form == BASE ? FI_WRITE : FI_READ));
	return entry;
}

static ssize_t start(enum form form, enum fi_datatype datatype, enum fi_op op, size_t count, const void *target,
		     uint64_t key)
{
	uint64_t address = (uintptr_t)target;

	if (form == BASE)
		return fi_atomic(a->ep, local, count, NULL, a->other, address, key, datatype, op, &pair);
	if (form == FETCH)
		return fi_fetch_atomic(a->ep, op == FI_ATOMIC_READ ? NULL : local, count, NULL, results, NULL, a->other, address,
				       key, datatype, op, &pair);
	return fi_compare_atomic(a->ep, local, count, NULL, compares, NULL, results, NULL, a->other, address, key, datatype,
				 op, &pair);
}

static int most_of(enum form form, enum fi_datatype datatype, enum fi_op op, size_t *count)
{
	if (form == BASE)
		return fi_atomicvalid(a->ep, datatype, op, count);
	return form == FETCH ? fi_fetch_atomicvalid(a->ep, datatype, op, count) :
			       fi_compare_atomicvalid(a->ep, datatype, op, count);
}

/* Makes one of some elements, as many as there is room for or three. */
static void repeat(char *to, const void *element, size_t size, size_t count)
{
	for (size_t i = 0; i < count; i++)
		memcpy(to + i * size, element, size);
}

/* One operation, in each of the forms that it has, on some elements and on as many as may be. */
static void becomes(enum fi_datatype datatype, enum fi_op op, size_t size, const void *old, const void *own, const void *with,
		    const void *wanted)
{
	int forms = 0;

	for (enum form form = BASE; form <= COMPARE; form++) {
		size_t most, counts[] = { 1, 3, 0 };

		if (most_of(form, datatype, op, &most))
			continue;
		CHECK(most * size > 8000 && most * size < 16384);
		counts[2] = most;
		for (int i = 0; i < 3; i++) {
			size_t count = counts[i];
			struct fi_cq_tagged_entry entry;

			memset(memory, 0x55, sizeof(memory));
			memset(results, 0x77, sizeof(results));
			repeat(memory + 64, old, size, count);
			repeat(local, own, size, count);
			repeat(compares, with, size, count);
			AGAIN(start(form, datatype, op, count, memory + 64, fi_mr_key(mr)), b);
			memset(local, 0, sizeof(local)); /* it is done with */
			entry = wait_for(&pair, form);
			CHECK_IS(entry.len, count * size);
			for (size_t k = 0; k < count; k++) {
				if (memcmp(memory + 64 + k * size, wanted, size))
					fprintf(stderr, "datatype %d operation %d form %d element %zu\n", datatype, op, form, k);
				CHECK(!memcmp(memory + 64 + k * size, wanted, size));
				CHECK(form == BASE || !memcmp(results + k * size, old, size));
			}
			CHECK(memory[63] == 0x55 && memory[64 + count * size] == 0x55);
			CHECK(results[form == BASE ? 0 : count * size] == 0x77);
		}
		forms++;
	}
	CHECK(forms);
}

#define BECOMES(fi, type, op, old, own, with, wanted)                                                                 \
	do {                                                                                                          \
		type values_[4];                                                                                      \
		memset(values_, 0, sizeof(values_));                                                                  \
		values_[0] = (old), values_[1] = (own), values_[2] = (with), values_[3] = (wanted);                   \
		becomes(fi, op, sizeof(type), &values_[0], &values_[1], &values_[2], &values_[3]);                    \
	} while (0)

#define ANY(fi, type)                                                                                                 \
	BECOMES(fi, type, FI_SUM, 5, 7, 0, 12);                                                                       \
	BECOMES(fi, type, FI_PROD, 5, 7, 0, 35);                                                                      \
	BECOMES(fi, type, FI_LOR, 0, 7, 0, 1);                                                                        \
	BECOMES(fi, type, FI_LOR, 0, 0, 0, 0);                                                                        \
	BECOMES(fi, type, FI_LAND, 5, 7, 0, 1);                                                                       \
	BECOMES(fi, type, FI_LAND, 5, 0, 0, 0);                                                                       \
	BECOMES(fi, type, FI_LXOR, 5, 7, 0, 0);                                                                       \
	BECOMES(fi, type, FI_LXOR, 0, 7, 0, 1);                                                                       \
	BECOMES(fi, type, FI_ATOMIC_WRITE, 5, 7, 0, 7);                                                               \
	BECOMES(fi, type, FI_ATOMIC_READ, 5, 7, 0, 5);                                                                \
	BECOMES(fi, type, FI_CSWAP, 5, 7, 5, 7);                                                                      \
	BECOMES(fi, type, FI_CSWAP, 5, 7, 6, 5);                                                                      \
	BECOMES(fi, type, FI_CSWAP_NE, 5, 7, 6, 7);                                                                   \
	BECOMES(fi, type, FI_CSWAP_NE, 5, 7, 5, 5)

#define REAL(fi, type)                                                                                                \
	ANY(fi, type);                                                                                                \
	BECOMES(fi, type, FI_MIN, 5, 7, 0, 5);                                                                        \
	BECOMES(fi, type, FI_MIN, 5, 3, 0, 3);                                                                        \
	BECOMES(fi, type, FI_MAX, 5, 7, 0, 7);                                                                        \
	BECOMES(fi, type, FI_MAX, 5, 3, 0, 5);                                                                        \
	for (int with = 4; with <= 6; with++) {                                                                       \
		BECOMES(fi, type, FI_CSWAP_LE, 5, 7, with, with <= 5 ? 7 : 5);                                        \
		BECOMES(fi, type, FI_CSWAP_LT, 5, 7, with, with < 5 ? 7 : 5);                                         \
		BECOMES(fi, type, FI_CSWAP_GE, 5, 7, with, with >= 5 ? 7 : 5);                                        \
		BECOMES(fi, type, FI_CSWAP_GT, 5, 7, with, with > 5 ? 7 : 5);                                         \
	}

#define INTEGER(fi, type)                                                                                             \
	REAL(fi, type);                                                                                               \
	BECOMES(fi, type, FI_BOR, 0x5a, 0x0f, 0, 0x5f);                                                               \
	BECOMES(fi, type, FI_BAND, 0x5a, 0x0f, 0, 0x0a);                                                              \
	BECOMES(fi, type, FI_BXOR, 0x5a, 0x0f, 0, 0x55);                                                              \
	BECOMES(fi, type, FI_MSWAP, 0x5a, 0x33, 0x0f, 0x53)

__extension__ typedef __int128 int128;
__extension__ typedef unsigned __int128 uint128;

static void all_datatypes(void)
{
	INTEGER(FI_INT8, int8_t);
	INTEGER(FI_UINT8, uint8_t);
	INTEGER(FI_INT16, int16_t);
	INTEGER(FI_UINT16, uint16_t);
	INTEGER(FI_INT32, int32_t);
	INTEGER(FI_UINT32, uint32_t);
	INTEGER(FI_INT64, int64_t);
	INTEGER(FI_UINT64, uint64_t);
	INTEGER(FI_INT128, int128);
	INTEGER(FI_UINT128, uint128);
	REAL(FI_FLOAT, float);
	REAL(FI_DOUBLE, double);
	ANY(FI_FLOAT_COMPLEX, float complex);
	ANY(FI_DOUBLE_COMPLEX, double complex);
	/* Where signs, widths and parts matter. */
	BECOMES(FI_INT8, int8_t, FI_SUM, 100, 100, 0, -56);
	BECOMES(FI_INT64, int64_t, FI_SUM, INT64_MAX, 1, 0, INT64_MIN);
	BECOMES(FI_UINT16, uint16_t, FI_PROD, 65535, 65535, 0, 1);
	BECOMES(FI_INT32, int32_t, FI_PROD, -3, 5, 0, -15);
	BECOMES(FI_INT16, int16_t, FI_MIN, 5, -3, 0, -3);
	BECOMES(FI_UINT16, uint16_t, FI_MIN, 5, (uint16_t)-3, 0, 5);
	BECOMES(FI_UINT64, uint64_t, FI_MAX, 5, ~0ull, 0, ~0ull);
	BECOMES(FI_DOUBLE, double, FI_SUM, 0.5, -0.75, 0, -0.25);
	BECOMES(FI_FLOAT, float, FI_MIN, 0.5f, -0.75f, 0, -0.75f);
	BECOMES(FI_DOUBLE_COMPLEX, double complex, FI_PROD, 1 + 2 * I, 3 - 1 * I, 0, 5 + 5 * I);
	BECOMES(FI_FLOAT_COMPLEX, float complex, FI_SUM, 1 + 2 * I, 3 - 1 * I, 0, 4 + 1 * I);
	BECOMES(FI_FLOAT_COMPLEX, float complex, FI_CSWAP, 1 + 2 * I, 3, 1, 1 + 2 * I);
}

/* Their bytes have gaps. */
static void long_doubles(void)
{
	long double *there = (long double *)memory, *own = (long double *)local, *fetched = (long double *)results;
	long double complex *both = (long double complex *)memory;

	*there = 1.25L, *own = 2.5L;
	AGAIN(start(FETCH, FI_LONG_DOUBLE, FI_SUM, 1, memory, fi_mr_key(mr)), b);
	wait_for(&pair, FETCH);
	CHECK(*there == 3.75L && *fetched == 1.25L);
	*both = 1 + 2 * I, *(long double complex *)local = I;
	AGAIN(start(BASE, FI_LONG_DOUBLE_COMPLEX, FI_PROD, 1, memory, fi_mr_key(mr)), b);
	wait_for(&pair, BASE);
	CHECK(*both == -2 + 1 * I);
}

/* Which operations there are; the others are refused by each call. */
static void what_there_is(void)
{
	for (int form = BASE; form <= COMPARE; form++) {
		for (int op = -1; op <= FI_ATOMIC_OP_LAST + 20; op++) {
			for (int datatype = -1; datatype < FI_UINT128 + 20; datatype++) {
				bool complex_type = datatype == FI_FLOAT_COMPLEX || datatype == FI_DOUBLE_COMPLEX ||
						    datatype == FI_LONG_DOUBLE_COMPLEX;
				bool integer = (datatype >= FI_INT8 && datatype <= FI_UINT64) || datatype == FI_INT128 ||
					       datatype == FI_UINT128;
				bool bitwise = op == FI_BOR || op == FI_BAND || op == FI_BXOR || op == FI_MSWAP;
				bool ordered = op == FI_MIN || op == FI_MAX || (op >= FI_CSWAP_LE && op <= FI_CSWAP_GT);
				bool there = datatype >= 0 && datatype <= FI_UINT128 && op >= 0 && op <= FI_MSWAP &&
					     (form == COMPARE) == (op >= FI_CSWAP) && (op != FI_ATOMIC_READ || form == FETCH) &&
					     (!bitwise || integer) && (!ordered || !complex_type);
				uint64_t flags = form == BASE ? 0 : form == FETCH ? FI_FETCH_ATOMIC : FI_COMPARE_ATOMIC;
				struct fi_atomic_attr attr = { 0 };
				size_t count = 0;

				CHECK_IS(most_of(form, datatype, op, &count), there ? 0 : -FI_EOPNOTSUPP);
				CHECK_IS(fi_query_atomic(pair.domain, datatype, op, &attr, flags), there ? 0 : -FI_EOPNOTSUPP);
				CHECK(attr.count == count && (!there || attr.size * count < 16384));
				if (!there)
					CHECK_IS(start(form, datatype, op, 1, memory, fi_mr_key(mr)), -FI_EOPNOTSUPP);
			}
		}
	}
	struct fi_atomic_attr attr;
	CHECK_IS(fi_query_atomic(pair.domain, FI_INT8, FI_SUM, &attr, FI_TAGGED), -FI_EOPNOTSUPP);
}

/* Operands in two parts, what they are compared with in three, results in two. */
static int64_t *four = (int64_t *)memory, own[4], with[4] = { 1, 2, 33, 4 }, fetched[4];
static const struct fi_ioc operands[2] = { { own, 1 }, { own + 1, 3 } };
static const struct fi_ioc compare[3] = { { with, 2 }, { with + 2, 1 }, { with + 3, 1 } };
static struct fi_ioc result[2] = { { fetched, 3 }, { fetched + 3, 1 } };

static void vectors(void)
{
	memcpy(own, (int64_t[]){ 10, 20, 30, 40 }, sizeof(own));
	memset(memory, 0, sizeof(memory));
	AGAIN(fi_atomicv(a->ep, operands, NULL, 2, a->other, (uintptr_t)memory, fi_mr_key(mr), FI_INT64, FI_SUM, NULL), b);
	wait_for(NULL, BASE);
	CHECK(four[0] == 10 && four[1] == 20 && four[2] == 30 && four[3] == 40);
	AGAIN(fi_fetch_atomicv(a->ep, operands, NULL, 2, result, NULL, 2, a->other, (uintptr_t)memory, fi_mr_key(mr), FI_INT64,
			       FI_PROD, NULL), b);
	wait_for(NULL, FETCH);
	CHECK(four[0] == 100 && four[3] == 1600 && fetched[0] == 10 && fetched[1] == 20 && fetched[2] == 30 && fetched[3] == 40);
	memcpy(four, (int64_t[]){ 1, 2, 3, 4 }, 32);
	AGAIN(fi_compare_atomicv(a->ep, operands, NULL, 2, compare, NULL, 3, result, NULL, 2, a->other, (uintptr_t)memory,
				 fi_mr_key(mr), FI_INT64, FI_CSWAP, NULL), b);
	wait_for(NULL, COMPARE);
	CHECK(four[0] == 10 && four[1] == 20 && four[2] == 3 && four[3] == 40 && fetched[2] == 3 && fetched[3] == 4);
}

static void messages(void)
{
	struct fi_rma_ioc targets[2] = { { (uintptr_t)memory, 2, fi_mr_key(mr) }, { (uintptr_t)(memory + 800), 2, fi_mr_key(mr) } };
	struct fi_msg_atomic message = { .msg_iov = operands, .iov_count = 2, .addr = a->other, .rma_iov = targets,
					 .rma_iov_count = 2, .datatype = FI_INT64, .op = FI_SUM, .context = &message };

	memcpy(own, (int64_t[]){ 10, 20, 30, 40 }, sizeof(own));
	memset(memory, 0, sizeof(memory));
	AGAIN(fi_atomicmsg(a->ep, &message, FI_COMPLETION | FI_INJECT | FI_DELIVERY_COMPLETE), b);
	memset(own, 0, sizeof(own));
	wait_for(&message, BASE);
	CHECK(four[0] == 10 && four[1] == 20 && !four[2] && four[100] == 30 && four[101] == 40);
	message.op = FI_ATOMIC_READ;
	message.iov_count = 0;
	AGAIN(fi_fetch_atomicmsg(a->ep, &message, result, NULL, 2, 0), b);
	wait_for(&message, FETCH);
	CHECK(fetched[0] == 10 && fetched[1] == 20 && fetched[2] == 30 && fetched[3] == 40);
	message.op = FI_CSWAP_NE;
	message.iov_count = 2;
	AGAIN(fi_compare_atomicmsg(a->ep, &message, compare, NULL, 3, result, NULL, 2, 0), b);
	wait_for(&message, COMPARE);
	CHECK(!four[0] && !four[101]);
	CHECK_IS(fi_compare_atomicmsg(a->ep, &message, compare, NULL, 2, result, NULL, 2, 0), -FI_EINVAL);
	CHECK_IS(fi_compare_atomicmsg(a->ep, &message, compare, NULL, 3, result, NULL, 1, 0), -FI_EINVAL);
	message.rma_iov_count = 1;
	CHECK_IS(fi_compare_atomicmsg(a->ep, &message, compare, NULL, 3, result, NULL, 2, 0), -FI_EINVAL);
	CHECK_IS(fi_compare_atomicmsg(a->ep, &message, compare, NULL, 3, result, NULL, 2, FI_FENCE), -FI_EBADFLAGS);
	message.rma_iov_count = 5;
	CHECK_IS(fi_atomicmsg(a->ep, &message, 0), -FI_EOPNOTSUPP);
	message.op = FI_SUM;
	CHECK_IS(fi_atomicmsg(a->ep, &message, 0), -FI_EINVAL);
}

static void counted(uint64_t value)
{
	for (long i = 0; i < TRIES && fi_cntr_read(a->rma) < value; i++)
		fi_cntr_read(b->received);
	CHECK_IS(fi_cntr_read(a->rma), value);
}

/* Each sees what the one before it has done, however many are under way; injected ones too, which only count. */
static void order(void)
{
	enum { MANY = 20000 };
	static uint64_t got[MANY];
	uint64_t before = fi_cntr_read(a->rma), one = 1, *there = (uint64_t *)memory;
	int ended = 0;

	*there = 0;
	for (int i = 0; i < MANY; i++) {
		struct fi_cq_tagged_entry entry;

		AGAIN(fi_fetch_atomic(a->ep, &one, 1, NULL, &got[i], NULL, a->other, (uintptr_t)there, fi_mr_key(mr), FI_UINT64,
				      FI_SUM, NULL), b);
		AGAIN(fi_inject_atomic(a->ep, &one, 1, a->other, (uintptr_t)there, fi_mr_key(mr), FI_UINT64, FI_SUM), b);
		ended += fi_cq_read(a->cq, &entry, 1) == 1;
	}
	for (; ended < MANY; ended++)
		wait_for(NULL, FETCH);
	for (int i = 0; i < MANY; i++)
		CHECK_IS(got[i], 2 * i);
	counted(before + 2 * MANY);
	CHECK_IS(*there, 2 * MANY);
	/* Of oneself. */
	AGAIN(fi_fetch_atomic(a->ep, &one, 1, NULL, got, NULL, a->own, (uintptr_t)there, fi_mr_key(mr), FI_UINT64, FI_SUM, NULL), b);
	wait_for(NULL, FETCH);
	CHECK_IS(got[0], 2 * MANY);
	/* Nobody takes the answers, until there are too many that wait. */
	for (ssize_t status = 0; status != -FI_EAGAIN;) {
		status = fi_fetch_atomic(a->ep, local, 2000, NULL, results, NULL, a->other, (uintptr_t)there, fi_mr_key(mr),
					 FI_UINT64, FI_SUM, NULL);
		CHECK(!status || status == -FI_EAGAIN);
		ended += status ? 0 : 1;
	}
	for (ended -= MANY; ended; ended--)
		wait_for(NULL, FETCH);
}

static int refused_with(enum form form, const void *target, uint64_t key, enum fi_op op)
{
	uint64_t errors = fi_cntr_readerr(a->rma);
	struct fi_cq_err_entry error;

	memset(memory, 0, 64);
	AGAIN(start(form, FI_UINT32, op, 2, target, key), b);
	error = next_error(a, b);
	CHECK(error.op_context == &pair);
	CHECK_IS(error.flags, FI_ATOMIC | (form == BASE ? FI_WRITE : FI_READ));
	CHECK_IS(fi_cntr_readerr(a->rma), errors + 1);
	for (int i = 0; i < 64; i++)
		CHECK_IS(memory[i], 0);
	return error.err;
}

static void not_allowed(void)
{
	uint64_t key = fi_mr_key(mr);
	struct fi_rma_ioc targets[2] = { { (uintptr_t)memory, 1, key }, { (uintptr_t)memory, 1, key + 1 } };
	struct fi_ioc operand = { local, 2 };
	struct fi_msg_atomic message = { .msg_iov = &operand, .iov_count = 1, .addr = a->other, .rma_iov = targets,
					 .rma_iov_count = 2, .datatype = FI_UINT32, .op = FI_SUM };

	memset(local, 1, sizeof(local));
	CHECK_IS(refused_with(BASE, memory, key + 1, FI_SUM), FI_EACCES);
	CHECK_IS(refused_with(FETCH, memory, 0x123456789, FI_SUM), FI_EACCES);
	CHECK_IS(refused_with(FETCH, memory + sizeof(memory) - 4, key, FI_SUM), FI_EACCES);
	CHECK_IS(refused_with(COMPARE, (void *)((uintptr_t)memory - 4), key, FI_CSWAP), FI_EACCES);
	CHECK_IS(refused_with(BASE, NULL, key, FI_SUM), FI_EACCES);
	CHECK_IS(refused_with(BASE, memory + 2, key, FI_SUM), FI_EINVAL);
	CHECK_IS(refused_with(FETCH, memory + 1, key, FI_ATOMIC_READ), FI_EINVAL);
	CHECK_IS(refused_with(BASE, memory, fi_mr_key(read_only), FI_SUM), FI_EACCES);
	CHECK_IS(refused_with(FETCH, memory, fi_mr_key(read_only), FI_SUM), FI_EACCES);
	CHECK_IS(refused_with(FETCH, memory, fi_mr_key(write_only), FI_SUM), FI_EACCES);
	CHECK_IS(refused_with(FETCH, memory, fi_mr_key(write_only), FI_ATOMIC_READ), FI_EACCES);
	/* All or nothing. */
	memset(memory, 0, 64);
	AGAIN(fi_atomicmsg(a->ep, &message, 0), b);
	CHECK_IS(next_error(a, b).err, FI_EACCES);
	CHECK_IS(memory[0], 0);
	AGAIN(start(FETCH, FI_UINT32, FI_ATOMIC_READ, 1, memory, fi_mr_key(read_only)), b);
	wait_for(&pair, FETCH);
	AGAIN(start(BASE, FI_UINT32, FI_SUM, 1, memory, fi_mr_key(write_only)), b);
	wait_for(&pair, BASE);
	CHECK_IS(start(BASE, FI_UINT32, FI_SUM, 0, memory, key), -FI_EINVAL);
	CHECK_IS(start(BASE, FI_UINT32, FI_SUM, ~(size_t)0 / 4 + 2, memory, key), -FI_EMSGSIZE);
	CHECK_IS(start(COMPARE, FI_UINT64, FI_CSWAP, 1020, memory, key), -FI_EMSGSIZE);
	CHECK_IS(fi_atomic(a->ep, local, 1, NULL, 1000, (uintptr_t)memory, key, FI_UINT32, FI_SUM, NULL), -FI_EINVAL);
	nothing(a, b);
}

int main(void)
{
	setenv("FI_PM_ATOMICS", "1", 1);
	need_provider();
	for (int i = 0; i < 2; i++) {
		struct pair_options options = { .threading = i ? FI_THREAD_SAFE : FI_THREAD_DOMAIN, .av_type = FI_AV_TABLE,
						.format = FI_CQ_FORMAT_TAGGED, .caps = FI_ATOMIC };

		open_pair(&pair, &options);
		CHECK(pair.info->caps & FI_ATOMIC && pair.info->tx_attr->msg_order & FI_ORDER_ATOMIC_WAW);
		CHECK(pair.info->ep_attr->max_order_waw_size > 8000);
		CHECK(!fi_mr_reg(pair.domain, memory, sizeof(memory), FI_REMOTE_READ | FI_REMOTE_WRITE, 0, 0, 0, &mr, NULL));
		CHECK(!fi_mr_reg(pair.domain, memory, sizeof(memory), FI_REMOTE_READ, 0, 0, 0, &read_only, NULL));
		CHECK(!fi_mr_reg(pair.domain, memory, sizeof(memory), FI_REMOTE_WRITE, 0, 0, 0, &write_only, NULL));
		all_datatypes();
		long_doubles();
		what_there_is();
		vectors();
		messages();
		order();
		not_allowed();
		CHECK(!fi_close(&mr->fid) && !fi_close(&read_only->fid) && !fi_close(&write_only->fid));
		close_pair(&pair);
	}
	return 0;
}
