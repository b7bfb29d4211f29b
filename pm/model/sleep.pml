/*
 * sleep.pml - sleeping and waking (src/wait.c, src/message.h), on processors that put a store off until after a later
 * load (a store buffer): the sender has no barrier of its own, the sleeper makes the sender's processor pass one.
 * Checked: the sleeper receives all messages; with -DNO_BARRIER the checker finds the message that is slept through.
 */
#define MESSAGES 3

byte ring;        /* messages written, as the memory has it */
byte buffered;    /* messages that the sender has written and its store buffer still holds */
bool asleep, doorbell, finished;

/* The processor of the sender writes out what it holds, at any time. */
active proctype store_buffer()
{
	do
	:: atomic { buffered > 0 -> buffered--; ring++ }
	:: finished -> break
	od
}

active proctype sender()
{
	byte sent;
	do
	:: sent == MESSAGES -> break
	:: else ->
		buffered++;
		if
		:: asleep -> doorbell = true
		:: else
		fi;
		sent++
	od
}

inline barrier()
{
#ifdef NO_BARRIER
	skip
#else
	/* Every store that the sender has issued is in memory now. */
	d_step { ring = ring + buffered; buffered = 0 }
#endif
}

active proctype sleeper()
{
	byte received;
	do
	:: received == MESSAGES -> break
	:: received < MESSAGES && ring > received -> received++
	:: received < MESSAGES && ring == received ->
		asleep = true;
		barrier();
		if
		:: ring > received
		:: ring == received -> doorbell; doorbell = false /* blocks until it rings */
		fi;
		asleep = false
	od;
	finished = true
}

/* Nobody is left waiting: spin's check for invalid end states. */
