/* fi_torture_acts.h - what fi_torture's threads do with their endpoints: sending, posting, cancelling, looking. */
#ifndef FI_TORTURE_ACTS_H
#define FI_TORTURE_ACTS_H

#include "fi_torture.h"

static inline void take(struct buffer *buffer, const struct fi_cq_tagged_entry *entry, fi_addr_t source)
{
	struct bird *bird = buffer->bird;
	const struct board *board = bird->board;
	struct message message = {
		.receiver = bird->number,
		.thread = entry->data >> 40,
		.stream = entry->data >> 32 & 0xff,
		.number = entry->data,
	};
	const char *bytes = buffer->many ? entry->buf : buffer->bytes;

	while (message.sender < (unsigned)board->count && bird->address[message.sender] != source)
		message.sender++;
	CHECK(message.sender < (unsigned)board->count && message.thread < (unsigned)board->threads);
	CHECK(message.stream <= STREAMS && (message.stream == UNTAGGED) == buffer->many);
	CHECK_IS(entry->flags & ~FI_MULTI_RECV, FI_RECV | FI_REMOTE_CQ_DATA | (buffer->many ? FI_MSG : FI_TAGGED));
	CHECK_IS(entry->len, length_of(board, message));
	CHECK(buffer->many || entry->tag == tag_of(board, message));
	CHECK(right_bytes(board, message, bytes));
	pthread_mutex_lock(&bird->mutex);
	note(bird, message, buffer->posted * (MULTI_BYTES + 1) + (bytes - buffer->bytes));
	pthread_mutex_unlock(&bird->mutex);
	if (!buffer->many || entry->flags & FI_MULTI_RECV)
		atomic_store(&buffer->busy, false);
}

static inline void take_error(struct bird *bird)
{
	struct fi_cq_err_entry error = { 0 };
	ssize_t got = fi_cq_readerr(bird->cq, &error, 0);

	if (got == -FI_EAGAIN) /* another thread has */
		return;
	CHECK_IS(got, 1);
	CHECK_IS(error.err, FI_ECANCELED);
	pthread_mutex_lock(&bird->mutex);
	CHECK(bird->cancelled--);
	pthread_mutex_unlock(&bird->mutex);
	atomic_store(&((struct buffer *)error.op_context)->busy, false);
}

static inline void look(struct bird *bird, int wait_ms)
{
	struct fi_cq_tagged_entry entries[8];
	fi_addr_t sources[8];
	ssize_t got = wait_ms ? fi_cq_sreadfrom(bird->cq, entries, 8, sources, NULL, wait_ms) :
				fi_cq_readfrom(bird->cq, entries, 8, sources);

	if (got == -FI_EAVAIL)
		return take_error(bird);
	CHECK(got > 0 || got == -FI_EAGAIN);
	for (ssize_t i = 0; i < got; i++) {
		struct buffer *buffer = entries[i].op_context;

		if (buffer->sends)
			atomic_store(&buffer->busy, false);
		else
			take(buffer, &entries[i], sources[i]);
	}
}

static inline unsigned below(struct flier *flier, unsigned limit)
{
	return (random_next(&flier->random) >> 20) % limit;
}

static inline struct buffer *free_one(struct buffer *buffers, int count)
{
	for (int i = 0; i < count; i++) {
		if (!atomic_load(&buffers[i].busy))
			return &buffers[i];
	}
	return NULL;
}

static inline ssize_t send_message(struct flier *flier, struct buffer *buffer, struct message message, bool *injected)
{
	static const uint64_t levels[] = { 0, FI_INJECT_COMPLETE, FI_TRANSMIT_COMPLETE, FI_DELIVERY_COMPLETE };
	const struct bird *bird = buffer->bird;
	uint64_t data = (uint64_t)message.thread << 40 | (uint64_t)message.stream << 32 | message.number;
	struct iovec part = { buffer->bytes, length_of(bird->board, message) };
	fi_addr_t to = bird->address[message.receiver];
	struct fi_msg plain = { .msg_iov = &part, .iov_count = 1, .addr = to, .context = buffer, .data = data };
	struct fi_msg_tagged tagged = { .msg_iov = &part, .iov_count = 1, .addr = to, .context = buffer, .data = data,
					.tag = tag_of(bird->board, message) };
	uint64_t flags = FI_REMOTE_CQ_DATA | FI_COMPLETION | levels[below(flier, 4)];

	*injected = part.iov_len < 16000 && !below(flier, 4);
	if (*injected)
		return message.stream == UNTAGGED ? fi_injectdata(bird->ep, buffer->bytes, part.iov_len, data, to) :
						    fi_tinjectdata(bird->ep, buffer->bytes, part.iov_len, data, to, tagged.tag);
	return message.stream == UNTAGGED ? fi_sendmsg(bird->ep, &plain, flags) : fi_tsendmsg(bird->ep, &tagged, flags);
}

static inline void say(struct flier *flier, int which)
{
	struct bird *bird = &flier->nest->birds[which];
	struct board *board = bird->board;
	struct message message = { .sender = bird->number, .receiver = below(flier, board->count), .thread = flier->thread,
				   .stream = below(flier, STREAMS + 1) };
	uint32_t *sent = &board->sent[message.sender][message.receiver][message.thread][message.stream];
	struct buffer *buffer = free_one(&flier->sends[which * SENDS], SENDS);
	bool injected;
	ssize_t status;

	if (!buffer)
		return;
	message.number = *sent;
	make_bytes(board, message, buffer->bytes);
	atomic_store(&buffer->busy, true);
	status = send_message(flier, buffer, message, &injected);
	CHECK(!status || status == -FI_EAGAIN);
	if (!status)
		++*sent;
	if (status || injected) {
		memset(buffer->bytes, 0xee, 8);
		atomic_store(&buffer->busy, false);
	}
}

/* Called with the mutex held, so that receives are posted in the order of their numbers. */
static inline void post(struct flier *flier, struct bird *bird, bool wild)
{
	const uint64_t ignored[] = { 0, ~0ull, 0xffffffff, ~0xffffffffull, random_next(&flier->random) };
	const struct board *board = bird->board;
	struct message any = { .sender = below(flier, board->count), .receiver = bird->number,
			       .thread = below(flier, board->threads), .stream = below(flier, STREAMS) };
	fi_addr_t source = !wild && below(flier, 2) ? bird->address[any.sender] : FI_ADDR_UNSPEC;
	struct buffer *buffer = free_one(bird->receives, RECEIVES);

	if (!buffer)
		return;
	atomic_store(&buffer->busy, true);
	buffer->posted = ++bird->posted;
	buffer->wild = wild;
	CHECK(!fi_trecv(bird->ep, buffer->bytes, LONGEST, NULL, source, tag_of(board, any),
			wild ? ~0ull : ignored[below(flier, 5)], buffer));
}

static inline void post_multi(struct bird *bird)
{
	struct buffer *buffer;
	struct iovec part;
	struct fi_msg message = { .msg_iov = &part, .iov_count = 1, .addr = FI_ADDR_UNSPEC };

	if (bird->multi && atomic_load(&bird->multi->busy))
		return;
	buffer = calloc(1, sizeof(*buffer));
	CHECK(buffer);
	*buffer = (struct buffer){ .bird = bird, .many = true, .busy = true, .posted = ++bird->posted, .older = bird->multi,
				   .bytes = malloc(MULTI_BYTES) };
	CHECK(buffer->bytes);
	bird->multi = buffer;
	part = (struct iovec){ buffer->bytes, MULTI_BYTES };
	message.context = buffer;
	CHECK(!fi_recvmsg(bird->ep, &message, FI_MULTI_RECV | FI_COMPLETION));
}

/* Called with the mutex held. Nothing to be cancelled is there if the message has come meanwhile. */
static inline void cancel(struct bird *bird, struct buffer *buffer)
{
	ssize_t status = fi_cancel(&bird->ep->fid, buffer);

	CHECK(!status || status == -FI_ENOENT);
	bird->cancelled += !status;
}

#endif
