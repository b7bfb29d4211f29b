/* exact.h - what pm_receive hands out lies in memory that ends where the message does, and is gone when it is released: so
 * that the address sanitizer sees who reads beyond it, which is not seen inside a ring. To be linked with
 * --wrap=pm_receive,--wrap=pm_release. */
#ifndef EXACT_H
#define EXACT_H

#include <stdlib.h>
#include <string.h>

#include "pm.h"

int __real_pm_receive(struct pm_endpoint *endpoint, struct pm_message *message);
void __real_pm_release(struct pm_endpoint *endpoint, const struct pm_message *message);
int __wrap_pm_receive(struct pm_endpoint *endpoint, struct pm_message *message);
void __wrap_pm_release(struct pm_endpoint *endpoint, const struct pm_message *message);

#define EXACT_BEFORE 8 /* octets, so that a message of none ends there, too */

static struct pm_message exact_received; /* as it is in the ring */

int __wrap_pm_receive(struct pm_endpoint *endpoint, struct pm_message *message)
{
	int received = __real_pm_receive(endpoint, message);
	if (received <= 0)
		return received;
	exact_received = *message;
	uint8_t *copy = malloc(EXACT_BEFORE + message->length);
	if (!copy)
		abort();
	memcpy(copy + EXACT_BEFORE, message->data, message->length);
	message->data = copy + EXACT_BEFORE;
	return received;
}

void __wrap_pm_release(struct pm_endpoint *endpoint, const struct pm_message *message)
{
	free((uint8_t *)message->data - EXACT_BEFORE);
	__real_pm_release(endpoint, &exact_received);
}

#endif
