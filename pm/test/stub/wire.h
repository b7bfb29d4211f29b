/* wire.h - what goes between contexts of the stub: a connection for each direction of a pair of queue pairs. The one that
 * sends requests makes it; the other answers on it. A message goes in pieces, from its end to its start. */
#ifndef WIRE_H
#define WIRE_H

#include "stub.h"

#include <sys/uio.h>

enum packet_type {
	HELLO,    /* of a queue pair to the one that it is to send to */
	ACCEPTED, /* the answer, if both are meant for each other */
	WRITE,
	SEND,
	READ,
	DONE,      /* a request is, with this status */
	NOT_READY, /* a request waits for a receive */
	DATA,      /* that was read; the last is the answer, too */
};

struct packet {
	enum packet_type type;
	enum ibv_wc_status status;
	uint32_t source, destination, psn; /* of HELLO */
	union ibv_gid gid;                 /* of HELLO: the destination's */
	uint64_t address;                  /* of the whole at the responder */
	uint32_t rkey, imm;
	uint32_t length, offset;           /* bytes of the whole, and where this piece begins */
	bool has_imm, solicited;
};

struct connection {
	LIST_ENTRY(connection) link;
	int fd;
	struct stub_qp *qp; /* NULL: what still comes is thrown away */
	bool outbound;      /* this side sends requests */
	bool accepted;
	bool full;          /* no more can be sent for now */
	bool closed;        /* by the other side */
	bool ready;         /* something may have come */
	bool stuck;         /* of the responder: nothing is taken before what is held has been dealt with */
	uint32_t watched;   /* events */
	/* A packet that has come and is not done with, and the answer that is under way. */
	bool held, rested, answering;
	uint64_t told_ms; /* when the other side was told that no receive is there */
	size_t size;      /* of the packet's data */
	struct packet answer;
	uint32_t answer_left; /* bytes that have been read and not sent */
	struct {
		struct packet packet;
		uint8_t data[PIECE];
	} in;
};

/* The bytes of the piece that comes before the last `left` of a message. */
static inline uint32_t piece_of(uint32_t left)
{
	return left ? (left - 1) % PIECE + 1 : 0;
}

/* wire.c; all under the context's lock */
uint64_t now_ms(void);
bool take_packet(struct connection *connection);
bool send_packet(struct stub_context *context, struct connection *connection, struct packet *packet, struct iovec *parts,
		 int count);
struct connection *dial(struct stub_context *context, struct stub_qp *qp);
void hang_up(struct connection *connection);
void watch_connection(struct stub_context *context, struct connection *connection);
void rest(struct stub_context *context);

/* requester.c: sends what is posted, and takes the answers */
bool transmit(struct stub_context *context, struct stub_qp *qp);
void take_answers(struct stub_context *context, struct connection *connection);

/* responder.c: carries out what others ask for; true: it can't go on, and is to be called again soon */
bool respond(struct stub_context *context, struct connection *connection);
void place(void *to, const uint8_t *data, uint32_t length);
bool scatter(struct stub_context *context, struct ibv_pd *pd, const struct ibv_sge *sges, int count, uint32_t offset,
	     const uint8_t *data, uint32_t length);

#endif
