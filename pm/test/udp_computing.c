/* udp_computing.c - a process that computes for longer than others are patient is not given up. */
#include "wire.h"

static void compute(struct side *side)
{
	int sent = 0;
	if (side->number == 0) {
		send_surely(side, 0, "first", 6);
		sent = send_until_full(side); /* so that something is awaited of the other */
		tell(side, &sent, sizeof(sent));
		nothing_for(side, 3);
		tell(side, &sent, sizeof(sent));
		send_surely(side, 0, "more", 5);
	} else {
		take_all(side, 1); /* who has never looked cannot be known to be there */
		for (int i = 0; i < 2; i++)
			hear(side, &sent, sizeof(sent)); /* PM gets no turn meanwhile */
		take_all(side, sent + 1);
	}
}

int main(void)
{
	wire_begin("1");
	pair_run(NULL, compute);
	return 0;
}
