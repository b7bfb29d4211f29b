/*
 * wire.h - what the provider's endpoints say to each other in messages of PM.
 *
 * The protocol. Each message of PM carries its kind (below) in PM's kind byte, so that a plain message needs no more
 * than its tag in front of the payload; PM moves up to 56 bytes in one cache line. Numbers are in the byte order of
 * the machine: x86-64 and others of its order only.
 *
 *   kind          contents                                  meaning
 *   TAGGED        tag(8) payload                            eager tagged message
 *   TAGGED_DATA   tag(8) data(8) payload                    the same with remote completion data
 *   MSG           payload                                   eager untagged message
 *   MSG_DATA      data(8) payload                           the same with remote completion data
 *   CONFIRM       wire_request(32) payload                  eager message whose sender waits for a FIN
 *   RTS           wire_request(32) wire_part(24) * 0..4     ready to send: the payload lies in the parts, in order
 *   FIN           wire_fin(16)                              the answer to CONFIRM or RTS: a receive has taken it, or,
 *                                                           where CONFIRM asks for that alone, it has arrived
 *   RMA_DATA      wire_rma_data(16)                         remote completion data of a write that has ended
 *   ATOMIC        wire_atomic(16) wire_part(24) * 1..4 operands compares
 *                                                           please do this to the parts, in order
 *   RESULT        wire_fin(16) bytes                        the answer to ATOMIC where something is fetched
 *   HOLD          -                                         send no eager messages for now, only RTS
 *   RESUME        -                                         takes a HOLD back
 *
 * Eager messages are at most FI_PM_EAGER bytes of payload. Longer ones, and all to a peer that said HOLD, are
 * announced by RTS: the sender registers the buffer's parts for reading and names them; the receiver, once a receive
 * of its user matches, reads them straight into the user's buffer (pm_read) and answers FIN; only then the sender's
 * operation completes and its registration ends. What was injected meanwhile is announced as a copy of it.
 *
 * A receiver says HOLD to a peer when what came unexpected exceeds FI_PM_UNEXPECTED bytes, and RESUME when half of
 * that is free again: as it never stops receiving, FIN and RTS always pass and nobody waits for somebody who waits
 * for him; the messages that are too many stay in the memory of those who send them. What is still on its way after
 * a HOLD is bounded by PM's rings, and by a sender looking for a HOLD at least every 256 sends; a peer that goes on
 * regardless has its messages dropped.
 *
 * An ATOMIC is done when it comes by, all of it or, where a key does not allow a part, nothing; operands and compares
 * are as long as the parts together, and left out where the operation has none. It is answered by FIN if it fetches
 * nothing, or has failed. Who starts them waits for answers before there are 4 MiB of them to come from one peer; who
 * goes on without taking answers has his messages dropped.
 *
 * Messages of one peer are matched in the order in which they came, RTS and eager ones alike; that makes
 * FI_ORDER_SAS, and ATOMICs are done in that order. FIN, RESULT, RMA_DATA, HOLD and RESUME may be overtaken by other
 * kinds, and keep their order among themselves.
 *
 * Nothing in a message is trusted: lengths are checked, a FIN or RESULT counts only for a request that is waiting, of
 * that generation, and sent to that very peer. What makes no sense is dropped and counted.
 */
#ifndef PROV_WIRE_H
#define PROV_WIRE_H

#include <stdint.h>

enum wire_kind {
	WIRE_TAGGED = 1,
	WIRE_TAGGED_DATA,
	WIRE_MSG,
	WIRE_MSG_DATA,
	WIRE_CONFIRM,
	WIRE_RTS,
	WIRE_FIN,
	WIRE_RMA_DATA,
	WIRE_HOLD,
	WIRE_RESUME,
	WIRE_ATOMIC,
	WIRE_RESULT,
};

/* Bits of wire_request.flags */
#define WIRE_IS_TAGGED 1u
#define WIRE_HAS_DATA 2u
#define WIRE_ON_ARRIVAL 256u /* of a CONFIRM: FIN is to be said when it comes, taken by a receive or not */

/* The most parts of a buffer in an RTS. */
#define WIRE_PARTS 4

struct wire_request {
	uint64_t tag;
	uint64_t data;    /* remote completion data, if WIRE_HAS_DATA */
	uint64_t request; /* the sender's name for it, returned in the FIN */
	uint32_t flags;
	uint32_t parts;   /* of an RTS; otherwise 0 */
};

/* A piece of the sender's memory, for pm_read. */
struct wire_part {
	uint64_t address;
	uint64_t key;
	uint64_t length; /* bytes */
};

struct wire_fin {
	uint64_t request;
	int32_t status; /* 0, or -errno where the receiver could not read it */
	uint32_t zero;
};

struct wire_rma_data {
	uint64_t data;
	uint64_t length; /* bytes that were written */
};

enum wire_form {
	WIRE_BASE,    /* nothing is fetched */
	WIRE_FETCH,
	WIRE_COMPARE, /* and fetched */
};

struct wire_atomic {
	uint64_t request; /* the sender's name for it, returned in the answer */
	uint8_t form;     /* enum wire_form */
	uint8_t datatype; /* enum fi_datatype */
	uint8_t op;       /* enum fi_op */
	uint8_t parts;
	uint32_t zero;
};

_Static_assert(sizeof(struct wire_request) + sizeof(struct wire_part) == 56, "an RTS of one part fits a cache line");

#endif
