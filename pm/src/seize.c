/*
 * seize.c - an endpoint is its owner's, who takes no lock; the keeper may act in the owner's stead while that computes,
 * to leave a rail or to answer a peer that leaves one. So the owner says when it is inside, by plain stores, and looks
 * whether it may be; who seizes an endpoint says so, makes every thread of the process pass a barrier (membarrier(2)),
 * and then looks whether the owner is inside: either it sees that, or the owner sees that it has to wait. Checked for all
 * interleavings by model/seize.pml; the context's lock is held where an endpoint is seized or put aside.
 */
#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "internal.h"

/* The owner finds the endpoint seized: waits until it is its own again. False: it has been put aside. */
bool endpoint_stay_out(struct pm_endpoint *endpoint)
{
	do {
		atomic_store_explicit(&endpoint->inside, (uintptr_t)endpoint->current, memory_order_release);
		if (atomic_load(&endpoint->held))
			return false;
		pthread_mutex_lock(&endpoint->seat);
		pthread_mutex_unlock(&endpoint->seat);
		atomic_store(&endpoint->inside, 1);
	} while (atomic_load(&endpoint->seized));
	return true;
}

/* Keeps the owner out; false: it is inside, or nothing can be known about that. */
bool endpoint_seize(struct pm_endpoint *endpoint)
{
	if (pthread_mutex_trylock(&endpoint->seat))
		return false;
	atomic_store(&endpoint->seized, 1);
	if (!syscall(__NR_membarrier, MEMBARRIER_CMD_PRIVATE_EXPEDITED, 0, 0) &&
	    !atomic_load_explicit(&endpoint->inside, memory_order_acquire))
		return true;
	endpoint_give_back(endpoint);
	return false;
}

/* An endpoint that has been put aside stays seized: by its owner perhaps, right now, which says so in that order. */
void endpoint_give_back(struct pm_endpoint *endpoint)
{
	bool held;
	do {
		held = atomic_load(&endpoint->held);
		atomic_store(&endpoint->seized, held);
	} while (held != atomic_load(&endpoint->held));
	pthread_mutex_unlock(&endpoint->seat);
}
