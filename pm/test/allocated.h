/* allocated.h - how many bytes a test's process has allocated; the sanitizers have allocators of their own, of which
 * mallinfo2 knows nothing. */
#ifndef ALLOCATED_H
#define ALLOCATED_H

#include <malloc.h>

#include "test.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
size_t __sanitizer_get_current_allocated_bytes(void);
#endif

static inline size_t allocated(void)
{
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
	size_t bytes = __sanitizer_get_current_allocated_bytes();
#else
	struct mallinfo2 info = mallinfo2();
	size_t bytes = info.uordblks + info.hblkhd;
#endif
	CHECK(bytes > 0); /* else somebody else allocates */
	return bytes;
}

#endif
