/* input.h - a fuzzer's input, octet by octet: what is not there is zero. */
#ifndef INPUT_H
#define INPUT_H

#include <stddef.h>
#include <stdint.h>

struct input {
	const uint8_t *data;
	size_t size;
};

static inline uint8_t take(struct input *input)
{
	if (!input->size)
		return 0;
	input->size--;
	return *input->data++;
}

/* Spoils up to three octets of something. */
static inline void spoil(struct input *input, void *what, size_t size)
{
	for (uint8_t n = take(input) % 4; n; n--) {
		uint8_t at = take(input), with = take(input);
		if (size)
			((uint8_t *)what)[at % size] ^= with;
	}
}

#endif
