/* fi_raw.h - two endpoints of the provider, a and b, and one of PM that says to b whatever it likes. */
#ifndef FI_RAW_H
#define FI_RAW_H

#include "../prov/wire.h"
#include "fi_test.h"
#include "pm.h"

static struct pair pair;
static struct side *a = &pair.a, *b = &pair.b;
static char out[100000], in[100000];

/* An endpoint of PM that says to b whatever it likes. */
static struct pm_context *context;
static struct pm_endpoint *raw;
static struct pm_peer *victim;

static inline void open_raw(void)
{
	struct pm_address address;

	memcpy(&address, b->name, sizeof(address));
	CHECK(!pm_context_open(NULL, &context));
	CHECK(!pm_endpoint_open(context, &raw));
	CHECK(!pm_peer_get(raw, &address, &victim));
}

static inline void say(uint8_t kind, const void *bytes, size_t length)
{
	struct iovec part = { (void *)bytes, length };
	struct pm_message message;
	int status;

	while ((status = pm_send(victim, kind, &part, length ? 1 : 0)) == -EAGAIN) {
		fi_cntr_read(b->received);
		if (pm_receive(raw, &message) > 0)
			pm_release(raw, &message);
	}
	CHECK_IS(status, 0);
	for (int i = 0; i < 10; i++)
		fi_cntr_read(b->received);
}

static inline void works(void)
{
	struct fi_cq_tagged_entry entry;

	CHECK(!fi_trecv(b->ep, in, sizeof(in), NULL, b->other, 1, 0, &in));
	AGAIN(fi_tsend(a->ep, out, sizeof(out), NULL, a->other, 1, NULL), b);
	entry = next(b, a, NULL);
	CHECK_IS(entry.len, sizeof(out));
	next(a, b, NULL);
}

#endif
