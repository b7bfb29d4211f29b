/*
 * fi_conformance.c - every operation that the libfabric provider claims: between two endpoints of one process, for
 * both threading models and both types of address vector.
 */
#include "fi_test.h"

static struct pair pair;
static struct side *a = &pair.a, *b = &pair.b;
static char out[1 << 20], in[1 << 20];
static const size_t sizes[] = { 0, 1, 8, 48, 56, 57, 1000, 8192, 8193, 16352, 16353, 16384, 100000, 1 << 20 };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static void tagged(void)
{
	for (size_t i = 0; i < SIZES; i++) {
		for (int late = 0; late < 2; late++) {
			size_t size = sizes[i];
			struct fi_cq_tagged_entry entry;
			fi_addr_t source;

			fill(out, size, i);
			memset(in, 0xee, sizeof(in));
			if (!late)
				CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 0x1200, 0xff, &in));
			AGAIN(fi_tsend(a->ep, out, size, NULL, a->other, 0x1234, &out), b);
			if (late) {
				let_arrive(a, b);
				CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 0x1234, 0, &in));
			}
			entry = next(b, a, &source);
			CHECK(entry.op_context == &in);
			CHECK_IS(entry.flags, FI_RECV | FI_TAGGED);
			CHECK_IS(entry.len, size);
			CHECK_IS(entry.tag, 0x1234);
			CHECK_IS(source, b->other);
			CHECK(filled(in, size, i));
			CHECK(size == sizeof(in) || in[size] == (char)0xee);
			entry = next(a, b, NULL);
			CHECK(entry.op_context == &out);
			CHECK_IS(entry.flags, FI_SEND | FI_TAGGED);
		}
	}
}

static void untagged(void)
{
	for (size_t i = 0; i < SIZES; i++) {
		size_t size = sizes[i];
		struct fi_cq_tagged_entry entry;

		fill(out, size, i);
		CHECK(!fi_recv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, &in));
		AGAIN(fi_send(a->ep, out, size, NULL, a->other, &out), b);
		entry = next(b, a, NULL);
		CHECK(entry.op_context == &in && entry.len == size && filled(in, size, i));
		CHECK_IS(entry.flags, FI_RECV | FI_MSG);
		CHECK_IS(next(a, b, NULL).flags, FI_SEND | FI_MSG);
	}
}

static void data_and_inject(void)
{
	struct fi_cq_tagged_entry entry;
	uint64_t before = fi_cntr_read(a->sent);

	for (size_t i = 0; sizes[i] <= pair.info->tx_attr->inject_size; i++) {
		fill(out, sizes[i], i);
		AGAIN(fi_tinject(a->ep, out, sizes[i], a->other, 5), b);
		AGAIN(fi_tinjectdata(a->ep, out, sizes[i], 77, a->other, 6), b);
		AGAIN(fi_inject(a->ep, out, sizes[i], a->other), b);
		AGAIN(fi_injectdata(a->ep, out, sizes[i], 78, a->other), b);
		memset(out, 0, sizes[i]);
		CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 6, 0, NULL));
		entry = next(b, a, NULL);
		CHECK_IS(entry.flags, FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
		CHECK(entry.data == 77 && filled(in, sizes[i], i));
		CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 0, ~0ull, NULL));
		entry = next(b, a, NULL);
		CHECK(entry.tag == 5 && filled(in, sizes[i], i));
		CHECK(!fi_recv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL));
		CHECK(!(next(b, a, NULL).flags & FI_REMOTE_CQ_DATA) && filled(in, sizes[i], i));
		CHECK(!fi_recv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL));
		entry = next(b, a, NULL);
		CHECK(entry.flags & FI_REMOTE_CQ_DATA && entry.data == 78 && filled(in, sizes[i], i));
		before += 4;
	}
	nothing(a, b);
	CHECK_IS(fi_cntr_read(a->sent), before);
	CHECK_IS(fi_tinject(a->ep, out, pair.info->tx_attr->inject_size + 1, a->other, 1), -FI_EMSGSIZE);
	for (size_t i = 0; i < SIZES; i++) {
		AGAIN(fi_tsenddata(a->ep, out, sizes[i], NULL, 1ull << 60, a->other, 9, NULL), b);
		AGAIN(fi_senddata(a->ep, out, sizes[i], NULL, 2, a->other, NULL), b);
		CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, 9, 0, NULL));
		CHECK(!fi_recv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL));
		CHECK_IS(next(b, a, NULL).data, 1ull << 60);
		CHECK_IS(next(b, a, NULL).data, 2);
		next(a, b, NULL);
		next(a, b, NULL);
	}
}

static void vectors(void)
{
	for (size_t size = 100; size < 500000; size *= 17) {
		struct iovec from[4], to[3];

		fill(out, size, 3);
		memset(in, 0, size);
		for (int i = 0; i < 4; i++)
			from[i] = (struct iovec){ out + i * size / 4, (i + 1) * size / 4 - i * size / 4 };
		for (int i = 0; i < 3; i++)
			to[i] = (struct iovec){ in + i * size / 3, (i + 1) * size / 3 - i * size / 3 };
		CHECK(!fi_trecvv(b->ep, to, NULL, 3, b->other, 1, 0, NULL));
		AGAIN(fi_tsendv(a->ep, from, NULL, 4, a->other, 1, NULL), b);
		CHECK_IS(next(b, a, NULL).len, size);
		CHECK(filled(in, size, 3));
		next(a, b, NULL);
		memset(in, 0, size);
		AGAIN(fi_sendv(a->ep, from, NULL, 4, a->other, NULL), b);
		let_arrive(a, b);
		CHECK(!fi_recvv(b->ep, to, NULL, 3, FI_ADDR_UNSPEC, NULL));
		CHECK_IS(next(b, a, NULL).len, size);
		CHECK(filled(in, size, 3));
		next(a, b, NULL);
	}
	CHECK_IS(fi_sendv(a->ep, NULL, NULL, 5, a->other, NULL), -FI_EINVAL);
}

static void message_flags(void)
{
	struct iovec part = { out, 0 }, target = { in, sizeof(in) };

	for (size_t i = 0; i < SIZES; i++) {
		struct fi_msg_tagged message = { .msg_iov = &part, .iov_count = 1, .addr = a->other, .tag = 4, .data = 99 };
		struct fi_msg plain = { .msg_iov = &part, .iov_count = 1, .addr = a->other, .data = 98 };
		struct fi_msg_tagged receive = { .msg_iov = &target, .iov_count = 1, .addr = b->other, .tag = 4 };
		struct fi_msg plain_receive = { .msg_iov = &target, .iov_count = 1, .addr = b->other };
		struct fi_cq_tagged_entry entry;

		part.iov_len = sizes[i];
		fill(out, sizes[i], i);
		AGAIN(fi_tsendmsg(a->ep, &message, FI_REMOTE_CQ_DATA | FI_DELIVERY_COMPLETE | FI_COMPLETION), b);
		nothing(a, b); /* not before it is received */
		CHECK(!fi_trecvmsg(b->ep, &receive, FI_COMPLETION));
		entry = next(b, a, NULL);
		CHECK(entry.data == 99 && entry.len == sizes[i] && filled(in, sizes[i], i));
		CHECK_IS(next(a, b, NULL).flags, FI_SEND | FI_TAGGED);
		AGAIN(fi_sendmsg(a->ep, &plain, FI_REMOTE_CQ_DATA | FI_MATCH_COMPLETE), b);
		CHECK(!fi_recvmsg(b->ep, &plain_receive, 0));
		CHECK_IS(next(b, a, NULL).data, 98);
		CHECK_IS(next(a, b, NULL).flags, FI_SEND | FI_MSG);
	}
	part.iov_len = 100;
	struct fi_msg_tagged message = { .msg_iov = &part, .iov_count = 1, .addr = a->other, .tag = 4 };
	fill(out, 100, 1);
	AGAIN(fi_tsendmsg(a->ep, &message, FI_INJECT), b);
	memset(out, 0, 100);
	next(a, b, NULL);
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 4, 0, NULL));
	next(b, a, NULL);
	CHECK(filled(in, 100, 1));
}

/* Of two receives and messages that fit either way the first take each other; a directed one waits for its peer. */
static void order_and_direction(void)
{
	char first[8], second[8];

	CHECK(!fi_trecv(b->ep, first, 8, NULL, b->own, 1, 0, first));
	CHECK(!fi_trecv(b->ep, second, 8, NULL, b->other, 1, 0, second));
	AGAIN(fi_tinject(a->ep, "from a", 7, a->other, 1), b);
	CHECK(next(b, a, NULL).op_context == second && !strcmp(second, "from a"));
	AGAIN(fi_tinject(b->ep, "from b", 7, b->own, 1), b);
	CHECK(next(b, a, NULL).op_context == first && !strcmp(first, "from b"));
	for (int i = 0; i < 1000; i++)
		AGAIN(fi_tinject(a->ep, &i, sizeof(i), a->other, 2), b);
	for (int i = 0; i < 1000; i++) {
		int got;

		CHECK(!fi_trecv(b->ep, &got, sizeof(got), NULL, FI_ADDR_UNSPEC, 2, 0, NULL));
		next(b, a, NULL);
		CHECK_IS(got, i);
	}
	/* A short message does not overtake a long one. */
	memset(out, 1, 100000);
	AGAIN(fi_tsend(a->ep, out, 100000, NULL, a->other, 3, NULL), b);
	AGAIN(fi_tinject(a->ep, "short", 6, a->other, 3), b);
	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 3, 0, &in));
	CHECK(!fi_trecv(b->ep, first, 8, NULL, b->other, 3, 0, first));
	for (int i = 0; i < 2; i++) {
		struct fi_cq_tagged_entry entry = next(b, a, NULL);

		CHECK_IS(entry.len, entry.op_context == first ? 6 : 100000);
	}
	CHECK(!strcmp(first, "short"));
	next(a, b, NULL);
}

static void truncation(void)
{
	static const size_t lengths[] = { 100, 50000 };

	for (int i = 0; i < 2; i++) {
		struct fi_cq_err_entry error;

		CHECK(!fi_trecv(b->ep, in, 60, NULL, b->other, 1, 0, &in));
		in[60] = 42;
		AGAIN(fi_tsend(a->ep, out, lengths[i], NULL, a->other, 1, NULL), b);
		error = next_error(b, a);
		CHECK(error.op_context == &in);
		CHECK_IS(error.err, FI_ETRUNC);
		CHECK_IS(error.len, 60);
		CHECK_IS(error.olen, lengths[i] - 60);
		CHECK_IS(in[60], 42);
		next(a, b, NULL);
	}
}

static void cancelling(void)
{
	struct fi_cq_err_entry error;

	CHECK(!fi_trecv(b->ep, in, 60, NULL, FI_ADDR_UNSPEC, 1, 0, &in));
	CHECK(!fi_recv(b->ep, in, 60, NULL, FI_ADDR_UNSPEC, &out));
	CHECK(!fi_cancel(&b->ep->fid, &in));
	CHECK(!fi_cancel(&b->ep->fid, &out));
	for (int i = 0; i < 2; i++) {
		error = next_error(b, a);
		CHECK(error.op_context == (i ? (void *)&out : (void *)&in));
		CHECK_IS(error.err, FI_ECANCELED);
	}
	CHECK_IS(fi_cancel(&b->ep->fid, &in), -FI_ENOENT);
}

static void peeking(void)
{
	static const size_t lengths[] = { 100, 50000 };
	struct iovec part = { in, sizeof(in) };
	struct fi_context context;
	struct fi_msg_tagged message = { .msg_iov = &part, .iov_count = 1, .addr = b->other, .tag = 7, .context = &context };
	struct fi_cq_tagged_entry entry;

	CHECK(!fi_trecvmsg(b->ep, &message, FI_PEEK));
	CHECK_IS(next_error(b, a).err, FI_ENOMSG);
	for (int i = 0; i < 2; i++) {
		size_t length = lengths[i];

		for (int k = 0; k < 4; k++) {
			fill(out, length, i);
			AGAIN(fi_tsend(a->ep, out, length, NULL, a->other, 7, NULL), b);
		}
		let_arrive(a, b);
		CHECK(!fi_trecvmsg(b->ep, &message, FI_PEEK));
		entry = next(b, a, NULL);
		CHECK(entry.op_context == &context && entry.len == length && entry.tag == 7);
		CHECK(!fi_trecvmsg(b->ep, &message, FI_PEEK | FI_CLAIM));
		next(b, a, NULL);
		memset(in, 0, length);
		CHECK(!fi_trecvmsg(b->ep, &message, FI_CLAIM));
		entry = next(b, a, NULL);
		CHECK(entry.len == length && filled(in, length, i));
		CHECK(!fi_trecvmsg(b->ep, &message, FI_PEEK | FI_DISCARD));
		next(b, a, NULL);
		CHECK(!fi_trecvmsg(b->ep, &message, FI_PEEK | FI_CLAIM));
		next(b, a, NULL);
		CHECK(!fi_trecvmsg(b->ep, &message, FI_CLAIM | FI_DISCARD));
		next(b, a, NULL);
		CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 7, 0, NULL));
		next(b, a, NULL);
		for (int k = 0; k < 4; k++)
			next(a, b, NULL);
		CHECK(!fi_trecvmsg(b->ep, &message, FI_PEEK));
		CHECK_IS(next_error(b, a).err, FI_ENOMSG);
	}
}

static void multi_receive(void)
{
	size_t least = 1000, length = sizeof(least);
	struct iovec part = { in, 30000 };
	struct fi_msg message = { .msg_iov = &part, .iov_count = 1, .addr = FI_ADDR_UNSPEC, .context = &in };
	struct fi_cq_tagged_entry entry;
	int got = 0;

	CHECK(!fi_setopt(&b->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, sizeof(least)));
	least = 0;
	CHECK(!fi_getopt(&b->ep->fid, FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV, &least, &length));
	CHECK_IS(least, 1000);
	for (int i = 0; i < 5; i++) {
		fill(out, 500, i);
		AGAIN(fi_inject(a->ep, out, 500, a->other), b);
	}
	let_arrive(a, b);
	CHECK(!fi_recvmsg(b->ep, &message, FI_MULTI_RECV));
	fill(out + 1000, 20000, 77);
	AGAIN(fi_send(a->ep, out + 1000, 20000, NULL, a->other, NULL), b);
	for (int i = 6; i < 18; i++) {
		fill(out, 600, i);
		AGAIN(fi_inject(a->ep, out, 600, a->other), b);
	}
	do {
		int seed;

		entry = next(b, a, NULL);
		CHECK(entry.op_context == &in && entry.flags & FI_RECV);
		seed = entry.len == 20000 ? 77 : entry.len == 500 ? ((char *)entry.buf - in) / 500 :
								   6 + ((char *)entry.buf - in - 22500) / 600;
		CHECK(filled(entry.buf, entry.len, seed));
		got++;
	} while (!(entry.flags & FI_MULTI_RECV));
	CHECK_IS(got, 5 + 1 + 11); /* 22500 + 11 * 600 = 29100 of 30000 */
	CHECK(!fi_recv(b->ep, in, sizeof(in), NULL, FI_ADDR_UNSPEC, NULL));
	CHECK_IS(next(b, a, NULL).len, 600);
	next(a, b, NULL);
	/* Cancelled while empty, it is given back. */
	CHECK(!fi_recvmsg(b->ep, &message, FI_MULTI_RECV));
	CHECK(!fi_cancel(&b->ep->fid, &in));
	CHECK_IS(next_error(b, a).err, FI_ECANCELED);
}

static void counters(void)
{
	uint64_t sent = fi_cntr_read(a->sent), received = fi_cntr_read(b->received);

	AGAIN(fi_tinject(a->ep, out, 8, a->other, 1), b);
	AGAIN(fi_tsend(a->ep, out, 30000, NULL, a->other, 1, NULL), b);
	CHECK(!fi_trecv(b->ep, in, 100, NULL, b->other, 1, 0, NULL));
	CHECK(!fi_trecv(b->ep, in, 30000, NULL, b->other, 1, 0, NULL));
	CHECK(!fi_cntr_wait(b->received, received + 1, -1));
	/* The long one is read by b, which a may have to help with: not while this thread sleeps for b. */
	for (long i = 0; i < TRIES && fi_cntr_read(b->received) < received + 2; i++)
		fi_cntr_read(a->sent);
	CHECK(!fi_cntr_wait(b->received, received + 2, -1));
	CHECK(!fi_cntr_wait(a->sent, sent + 2, -1));
	CHECK_IS(fi_cntr_wait(a->sent, sent + 3, 10), -FI_ETIMEDOUT);
	CHECK(!fi_cntr_add(a->sent, 5));
	CHECK_IS(fi_cntr_read(a->sent), sent + 7);
	CHECK(!fi_cntr_set(a->sent, sent));
	CHECK_IS(fi_cntr_read(a->sent), sent);
	CHECK(!fi_cntr_seterr(a->sent, 3) && !fi_cntr_adderr(a->sent, 4));
	CHECK_IS(fi_cntr_readerr(a->sent), 7);
	CHECK(!fi_cntr_seterr(a->sent, 0));
	next(a, b, NULL);
	next(b, a, NULL);
	next(b, a, NULL);
}

/* Far more completions than anybody reads. */
static void overrun(void)
{
	enum { MANY = 3000 };
	struct fi_cq_tagged_entry entries[100];
	int got = 0;

	for (int i = 0; i < MANY; i++)
		CHECK(!fi_trecv(b->ep, in, 8, NULL, b->other, 1, 0, (void *)(intptr_t)i));
	for (int i = 0; i < MANY; i++)
		AGAIN(fi_tsend(a->ep, &i, 4, NULL, a->other, 1, (void *)(intptr_t)i), b);
	while (got < MANY) {
		ssize_t n = fi_cq_read(b->cq, entries, 100);

		CHECK(n > 0 || n == -FI_EAGAIN);
		for (int i = 0; i < n; i++)
			CHECK(entries[i].op_context == (void *)(intptr_t)got++);
	}
	for (got = 0; got < MANY;) {
		ssize_t n = fi_cq_read(a->cq, entries, 100);

		CHECK(n > 0 || n == -FI_EAGAIN);
		for (int i = 0; i < n; i++)
			CHECK(entries[i].op_context == (void *)(intptr_t)got++);
	}
	nothing(a, b);
}

static void blocking(void)
{
	struct fi_cq_tagged_entry entry;

	CHECK_IS(fi_cq_sread(b->cq, &entry, 1, NULL, 20), -FI_EAGAIN);
	CHECK(!fi_cq_signal(b->cq));
	CHECK_IS(fi_cq_sread(b->cq, &entry, 1, NULL, -1), -FI_EAGAIN);
	CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 1, 0, &in));
	AGAIN(fi_tinject(a->ep, "now", 4, a->other, 1), b);
	CHECK_IS(fi_cq_sread(b->cq, &entry, 1, NULL, -1), 1);
	CHECK(entry.op_context == &in);
}

static void addresses(void)
{
	char buffer[64], text[200];
	size_t length = sizeof(buffer), text_length = sizeof(text);
	fi_addr_t again;

	CHECK(!fi_av_lookup(a->av, a->other, buffer, &length));
	CHECK(length == b->name_length && !memcmp(buffer, b->name, length));
	CHECK(fi_av_straddr(a->av, b->name, text, &text_length) == text && strlen(text) + 1 == text_length);
	CHECK_IS(fi_av_lookup(a->av, 1000, buffer, &length), -FI_EINVAL);
	CHECK_IS(fi_tsend(a->ep, out, 8, NULL, 1000, 1, NULL), -FI_EINVAL);
	CHECK_IS(fi_av_insertsvc(a->av, text, NULL, &again, 0, NULL), 1);
	AGAIN(fi_tinject(a->ep, out, 8, again, 1), b);
	CHECK(!fi_trecv(b->ep, in, 8, NULL, b->other, 1, 0, NULL));
	next(b, a, NULL);
	CHECK(!fi_av_remove(a->av, &again, 1, 0));
	CHECK_IS(fi_tinject(a->ep, out, 8, again, 1), -FI_EINVAL);
	/* A source that the vector does not know yet, then knows. */
	CHECK(!fi_av_remove(b->av, &b->other, 1, 0));
	AGAIN(fi_tinject(a->ep, out, 8, a->other, 2), b);
	CHECK(!fi_trecv(b->ep, in, 8, NULL, FI_ADDR_UNSPEC, 2, 0, NULL));
	next(b, a, &again);
	CHECK_IS(again, FI_ADDR_NOTAVAIL);
	CHECK_IS(fi_av_insert(b->av, a->name, 1, &b->other, 0, NULL), 1);
	AGAIN(fi_tinject(a->ep, out, 8, a->other, 2), b);
	CHECK(!fi_trecv(b->ep, in, 8, NULL, b->other, 2, 0, NULL));
	next(b, a, &again);
	CHECK_IS(again, b->other);
}

static void selective(void)
{
	struct pair_options options = { .threading = FI_THREAD_DOMAIN, .av_type = FI_AV_TABLE, .format = FI_CQ_FORMAT_TAGGED,
					.tx_bind = FI_SELECTIVE_COMPLETION, .rx_bind = FI_SELECTIVE_COMPLETION };
	struct iovec part = { out, 8 };

	open_pair(&pair, &options);
	struct fi_msg_tagged message = { .msg_iov = &part, .iov_count = 1, .addr = a->other, .tag = 1, .context = &out };
	struct fi_msg_tagged receive = { .msg_iov = &part, .iov_count = 1, .addr = b->other, .tag = 1, .context = &in };
	for (size_t size = 8; size < 100000; size *= 5000) {
		part.iov_len = size;
		CHECK(!fi_trecv(b->ep, in, size, NULL, b->other, 1, 0, NULL));
		AGAIN(fi_tsend(a->ep, out, size, NULL, a->other, 1, NULL), b);
		nothing(a, b);
		nothing(b, a);
		CHECK(!fi_trecvmsg(b->ep, &receive, FI_COMPLETION));
		AGAIN(fi_tsendmsg(a->ep, &message, FI_COMPLETION), b);
		CHECK(next(b, a, NULL).op_context == &in);
		CHECK(next(a, b, NULL).op_context == &out);
	}
	close_pair(&pair);
}

static void unclaimed(void)
{
	struct fi_cntr_attr attr = { .events = FI_CNTR_EVENTS_COMP };
	struct fid_ep *other;
	struct fid_cntr *cntr;

	CHECK_IS(fi_scalable_ep(pair.domain, pair.info, &other, NULL), -FI_ENOSYS);
	CHECK_IS(fi_connect(a->ep, b->name, NULL, 0), -FI_ENOSYS);
	CHECK(!fi_cntr_open(pair.domain, &attr, &cntr, NULL));
	CHECK_IS(fi_ep_bind(a->ep, &cntr->fid, FI_REMOTE_WRITE), -FI_ENOSYS);
	CHECK(!fi_close(&cntr->fid));
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
		tagged();
		untagged();
		data_and_inject();
		vectors();
		message_flags();
		order_and_direction();
		truncation();
		cancelling();
		peeking();
		multi_receive();
		counters();
		overrun();
		blocking();
		addresses();
		unclaimed();
		close_pair(&pair);
	}
	selective();
	return 0;
}
