/*
 * seize.pml - who is inside an endpoint (src/seize.c, endpoint_enter in src/internal.h), on processors that put a store
 * off until after a later load (a store buffer): the owner has no barrier of its own, the keeper makes the owner's
 * processor pass one. Checked: never are both inside, the owner never in an endpoint that has been put aside, and it
 * does not wait for ever; the endpoint is put aside by either of them, and taken up again by the keeper.
 *
 * With one of these the checker finds what goes wrong: -DNO_BARRIER; -DNO_LOCK, the owner puts the endpoint aside while
 * the keeper is just about to find that it cannot seize it; -DCARELESS, the owner that has waited for the keeper does
 * not look once more whether it may come in.
 */
#define CALLS 3
#define SEIZURES 3

bool inside;            /* as the memory has it */
bool buffered, pending; /* the owner's processor holds a store to it, and of what */
bool seized, held;
bool seat, lock;        /* the mutexes: the endpoint's, and the context's */
bool owner_in, keeper_in, finished;

active proctype store_buffer()
{
	do
	:: atomic { buffered -> inside = pending; buffered = false }
	:: finished && !buffered -> break
	od
}

/* Stores come into memory in their order. */
inline store(value)
{
	atomic { !buffered -> pending = value; buffered = true }
}

#define locked(mutex) atomic { !mutex -> mutex = true }

active proctype owner()
{
	byte calls;
	bool aside;
	do
	:: calls == CALLS -> break
	:: else ->
		calls++;
		aside = false;
		store(true);
		if
		:: !seized
		:: seized ->
			do
			:: store(false);
				if
				:: held -> aside = true; break
				:: !held
				fi;
				locked(seat);
				seat = false;
				store(true);
				!buffered; /* a sequentially consistent store */
#ifdef CARELESS
				break
#else
				if
				:: !seized -> break
				:: seized
				fi
#endif
			od
		fi;
		if
		:: aside
		:: !aside ->
			owner_in = true;
			assert(!keeper_in && !held);
			if
			:: /* it carries the order out by itself */
#ifndef NO_LOCK
				locked(lock);
#endif
				!buffered;
				held = true;
				seized = true;
				if
				:: held = false; seized = false /* and the one to take it up again */
				:: true
				fi;
				lock = false
			:: true
			fi;
			owner_in = false;
			store(false)
		fi
	od;
	finished = true
}

active proctype keeper()
{
	byte times;
	bool was_held;
	do
	:: times == SEIZURES && finished && !held -> break
	:: times < SEIZURES || held ->
		locked(lock);
		locked(seat); /* nobody else holds it for long */
		seized = true;
#ifndef NO_BARRIER
		d_step { if :: buffered -> inside = pending; buffered = false :: else fi };
#endif
		if
		:: inside ->
			was_held = held;
			seized = was_held;
			seat = false;
			lock = false
		:: !inside ->
			lock = false;
			if
			:: times < SEIZURES -> times++
			:: else
			fi;
			keeper_in = true;
			assert(!owner_in);
			if
			:: held -> held = false
			:: !held && times < SEIZURES -> held = true
			:: !held
			fi;
			keeper_in = false;
			was_held = held;
			seized = was_held;
			seat = false
		fi
	od
}
