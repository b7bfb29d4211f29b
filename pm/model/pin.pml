/*
 * pin.pml - the pin-down cache (src/pin.c, src/pin_watch.c) and what the kernel tells about memory: two threads that map
 * pages, pin them, and unmap or give them away, each page to be had by either once it is free; and the watcher.
 * Checked: who finds a page in the cache finds the memory that is there now; and nobody waits for ever.
 *
 * With one of these the checker finds what goes wrong: -DUNLOCKED, the watcher reads an event before it takes the lock;
 * -DNO_COUNT, the changes that are under way are not looked at, but only events; -DDEAF, events are not told to pins that
 * are being made, which have taken in a page of the other thread's.
 */
#define ROUNDS 2
#define GETS 2

/* The kernel. Each page that is mapped is another memory. */
byte memory[2];         /* 0: none is mapped */
bool watched[2];
byte memories, changing;
mtype = { NONE, QUEUED, READ };
mtype event[2] = NONE;  /* of a thread, about a page */
byte event_page[2];

/* The cache. */
bool lock;
byte kept[2];           /* the memory that is registered, 0: none */
bool making[4];         /* by thread and page; no more when the page has changed */
byte finished;

#define locked atomic { !lock -> lock = true }
#define unlocked lock = false

inline tell(page)
{
	kept[page] = 0;
#ifndef DEAF
	making[page] = false;
	making[2 + page] = false
#endif
}

/* One after the other; the thread goes on as soon as its event is read. */
inline read_events()
{
	atomic { if :: event[0] == QUEUED -> event[0] = READ; tell(event_page[0]) :: else fi };
	atomic { if :: event[1] == QUEUED -> event[1] = READ; tell(event_page[1]) :: else fi }
}

inline wait_for_reading()
{
	atomic { event_page[_pid] = mine; event[_pid] = QUEUED };
	event[_pid] == READ;
	atomic { event[_pid] = NONE; changing-- }
}

inline get()
{
	locked;
	read_events();
	if
#ifdef NO_COUNT
	:: kept[mine] ->
#else
	:: changing == 0 && kept[mine] ->
#endif
		atomic { assert(kept[mine] == memory[mine]); unlocked }
	:: changing == 0 && !kept[mine] ->
		atomic {
			making[2 * _pid + mine] = true;
			if
			:: kept[other] -> both = true; making[2 * _pid + other] = true
			:: both = false
			fi;
			unlocked
		};
		atomic { watched[mine] = true; made = memory[mine] };
		if
		:: both -> atomic { watched[other] = memory[other] != 0; made_too = memory[other] }
		:: else
		fi;
		locked;
		d_step {
			if
			:: making[2 * _pid + mine] && (!both || (making[2 * _pid + other] && made_too)) ->
				kept[mine] = made;
				if :: both -> kept[other] = made_too :: else fi
			:: else
			fi;
			making[2 * _pid + mine] = false;
			making[2 * _pid + other] = false;
			made = 0;
			made_too = 0;
			both = false;
			unlocked
		}
	:: changing != 0 -> unlocked /* registered for once */
	fi
}

inline give_away()
{
	if
	:: atomic { watched[mine] -> changing++ }; wait_for_reading()
	:: else
	fi;
	atomic { memories++; memory[mine] = memories }
}

inline unmap()
{
	if
	:: atomic { watched[mine] -> changing++; watched[mine] = false; memory[mine] = 0 }; wait_for_reading()
	:: atomic { !watched[mine] -> memory[mine] = 0 }
	fi
}

active [2] proctype thread()
{
	byte rounds, gets, mine, other, made, made_too;
	bool both;
	do
	:: rounds == ROUNDS -> break
	:: else ->
		rounds++;
		atomic {
			if
			:: memory[0] == 0 -> mine = 0
			:: memory[1] == 0 -> mine = 1
			fi;
			other = 1 - mine;
			memories++;
			memory[mine] = memories
		};
		gets = 0;
		do
		:: gets == GETS -> break
		:: else ->
			gets++;
			get();
			if
			:: rounds == 1 && gets == 1 -> give_away()
			:: true
			fi
		od;
		unmap()
	od;
	finished++
}

active proctype watcher()
{
	byte page;
	do
	:: event[0] == QUEUED || event[1] == QUEUED ->
#ifdef UNLOCKED
		atomic {
			if
			:: event[0] == QUEUED -> event[0] = READ; page = event_page[0]
			:: event[1] == QUEUED -> event[1] = READ; page = event_page[1]
			:: else -> page = 2
			fi
		};
		locked;
		if :: page < 2 -> tell(page) :: else fi;
		unlocked
#else
		locked;
		read_events();
		unlocked
#endif
	:: finished == 2 -> break
	od
}
