/* atomic_take.c - what peers want done to memory of this process: atomic operations. Nothing that they say is trusted. */
#include <string.h>

#include "prov.h"

/* Bytes of answers that wait for a peer; more than it may have under way are nonsense. */
#define ANSWERS_LIMIT (2 * PROV_ATOMIC_WINDOW)

struct asked {
	struct wire_atomic header;
	struct wire_part parts[WIRE_PARTS];
	const char *operands, *compares; /* NULL: none */
	uint64_t bytes;
	size_t size;                     /* of an element; 0: this cannot be done */
};

/* False: it makes no sense. */
static bool parse(const struct pm_message *message, struct asked *asked)
{
	const struct wire_atomic *header = &asked->header;
	const char *data = message->data;
	size_t rest = message->length, lists;

	if (rest < sizeof(*header))
		return false;
	memcpy(&asked->header, data, sizeof(*header));
	rest -= sizeof(*header);
	if (!header->parts || header->parts > WIRE_PARTS || header->form > WIRE_COMPARE ||
	    rest < header->parts * sizeof(struct wire_part))
		return false;
	memcpy(asked->parts, data + sizeof(*header), header->parts * sizeof(struct wire_part));
	rest -= header->parts * sizeof(struct wire_part);
	asked->size = prov_atomic_size(header->form, header->datatype, header->op);
	for (unsigned i = 0; i < header->parts; i++) {
		if (asked->parts[i].length > PROV_ATOMIC_BYTES - asked->bytes || (asked->size && asked->parts[i].length % asked->size))
			return false;
		asked->bytes += asked->parts[i].length;
	}
	lists = (prov_atomic_has_operands(header->op) ? 1 : 0) + (header->form == WIRE_COMPARE ? 1 : 0);
	asked->operands = prov_atomic_has_operands(header->op) ? data + message->length - rest : NULL;
	asked->compares = header->form == WIRE_COMPARE ? data + message->length - asked->bytes : NULL;
	return rest == lists * asked->bytes;
}

static int allowed(struct pm_context *context, const struct asked *asked)
{
	const struct wire_atomic *header = &asked->header;
	unsigned access = (header->form != WIRE_BASE ? PM_REMOTE_READ : 0) |
			  (header->op != FI_ATOMIC_READ ? PM_REMOTE_WRITE : 0);
	int status = asked->size ? 0 : -FI_EOPNOTSUPP;

	for (unsigned i = 0; i < header->parts && !status; i++) {
		const struct wire_part *part = &asked->parts[i];

		status = pm_region_check(context, part->key, part->address, part->length, access);
		if (!status && !prov_atomic_aligned(header->datatype, part->address))
			status = -FI_EINVAL;
	}
	return status;
}

void prov_atomic_take(struct prov_ep *ep, struct prov_peer *peer, const struct pm_message *message)
{
	struct {
		struct wire_fin header;
		char bytes[PROV_ATOMIC_BYTES];
	} answer;
	struct asked asked = { 0 };
	uint64_t done = 0;
	bool fetches;
	int status;

	if (!parse(message, &asked))
		return prov_drop(ep, "an atomic operation of a wrong form");
	if (peer->control_bytes > ANSWERS_LIMIT)
		return prov_drop(ep, "a peer takes no answers");
	fetches = asked.header.form != WIRE_BASE;
	status = allowed(ep->domain->context, &asked);
	for (unsigned i = 0; i < asked.header.parts && !status; i++) {
		prov_atomic_apply(asked.header.datatype, asked.header.op, (void *)(uintptr_t)asked.parts[i].address,
				  asked.operands ? asked.operands + done : NULL, asked.compares ? asked.compares + done : NULL,
				  fetches ? answer.bytes + done : NULL, asked.parts[i].length);
		done += asked.parts[i].length;
	}
	ep->atomics += !status;
	if (status || !fetches)
		return prov_answer(peer, asked.header.request, status);
	answer.header = (struct wire_fin){ .request = asked.header.request };
	prov_peer_control(peer, WIRE_RESULT, &answer, sizeof(answer.header) + asked.bytes);
}
