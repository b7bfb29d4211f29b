/* address.c - addresses of endpoints: version, number of the endpoint in its context, its serial number
 * there (numbers are used again), id of the context; the rest is zero. */
#include <errno.h>
#include <string.h>

#include "internal.h"

#define ADDRESS_VERSION 1

void address_make(struct pm_address *address, const uint8_t id[CONTEXT_ID_SIZE], uint32_t endpoint, uint32_t serial)
{
	memset(address, 0, sizeof(*address));
	address->bytes[0] = ADDRESS_VERSION;
	address->bytes[2] = endpoint & 0xff;
	address->bytes[3] = endpoint >> 8;
	for (int i = 0; i < 4; i++)
		address->bytes[4 + i] = serial >> 8 * i;
	memcpy(address->bytes + 8, id, CONTEXT_ID_SIZE);
}

const uint8_t *address_id(const struct pm_address *address)
{
	return address->bytes + 8;
}

uint32_t address_endpoint(const struct pm_address *address)
{
	return address->bytes[2] | (uint32_t)address->bytes[3] << 8;
}

bool address_valid(const struct pm_address *address)
{
	return address->bytes[0] == ADDRESS_VERSION && address_endpoint(address) < SHARED_ENDPOINTS;
}

EXPORT void pm_address_format(const struct pm_address *address, char text[PM_ADDRESS_TEXT])
{
	static const char digits[] = "0123456789abcdef";
	for (size_t i = 0; i < sizeof(address->bytes); i++) {
		text[2 * i] = digits[address->bytes[i] >> 4];
		text[2 * i + 1] = digits[address->bytes[i] & 15];
	}
	text[2 * sizeof(address->bytes)] = 0;
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

int hex_parse(const char *text, uint8_t *bytes, size_t count)
{
	if (strlen(text) != 2 * count)
		return -EINVAL;
	for (size_t i = 0; i < count; i++) {
		int high = digit(text[2 * i]), low = digit(text[2 * i + 1]);
		if (high < 0 || low < 0)
			return -EINVAL;
		bytes[i] = high << 4 | low;
	}
	return 0;
}

EXPORT int pm_address_parse(const char *text, struct pm_address *address)
{
	struct pm_address parsed;
	if (hex_parse(text, parsed.bytes, sizeof(parsed.bytes)) || !address_valid(&parsed))
		return -EINVAL;
	*address = parsed;
	return 0;
}
