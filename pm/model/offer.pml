/*
 * offer.pml - rings that a reader offers by udp (ivshmem, and verbs but for its device), are gone over to from udp, and are
 * left (src/rail.c, src/udp.c): checked over all interleavings of owners and keepers of both sides. Every message arrives
 * once and in order; and when nothing moves any more, all that was accepted has been received: also if the writer's program
 * computes for ever from some time on, when only its keeper is there, and if the reader's sleeps whenever it may. (How rings
 * of shm are asked for, and what becomes of a reader's choice of its place, is rail.pml.)
 *
 * Messages go from the writer to the reader. What the reader sends by udp is messages, too, which the writer's program may
 * never take, and what is said about rings is behind them. Keepers act when they have been told to (switching): by orders,
 * by what is found at the first look at what has come (tick), and by an owner that takes what was before it.
 *
 * With one of these the checker finds what goes wrong: -DUNHEARD, that a ring has ended is not heard behind messages;
 * -DUNNOTICED, nobody is told when the message before what is said about rings is taken; -DTWICE, a ring's end is taken
 * note of each time that it is heard; -DNO_GATE, what came by udp is handed out before the ring has been read; -DOVERSLEPT,
 * the reader's program sleeps although a ring that has been left has been read to its end, and what was sent by udp waits.
 */
#ifndef MESSAGES
#define MESSAGES 3
#endif
#ifndef ORDERS
#define ORDERS 2      /* so often a side is told to leave, at most */
#endif
#define NOISE 1       /* messages of the reader's */
#define CELLS 2
#define RINGS 2

/* In the streams: a kind, a message's number or a ring's generation, from 1, and a place. */
#define MESSAGE 1
#define WANTED 2
#define OPEN 3
#define END 4
#define OFFER 5
#define CLOSED 6
#define REFUSED 7
#define JOINED 8
#ifndef ROOM_THERE
#define ROOM_THERE 2
#endif
#define ROOM_BACK 4
chan there = [ROOM_THERE] of { byte, byte, byte };
chan back = [ROOM_BACK] of { byte, byte, byte };
#define room_there (len(there) < ROOM_THERE)
#define room_back (len(back) < ROOM_BACK)

/* What both sides see of a ring, of which there is one at a time that is used. */
byte cells[(RINGS + 1) * CELLS];
byte written[RINGS + 1], taken[RINGS + 1];

byte orders, received, sent;
bool diligent;        /* the writer's program goes on until it has sent all */

/* A side has been told to look, has got packets since, and of them some about rings. */
bool w_switching, w_tick, w_fresh, r_switching, r_tick, r_fresh;

#define say(what, arg) there!what,arg,0; r_tick = true; r_fresh = r_fresh || what != MESSAGE
#define say_back(what, arg, place) back!what,arg,place; w_tick = true; w_fresh = w_fresh || what != MESSAGE

/* The writer. */
bool w_may = true, w_wanted, w_asked, w_over_udp = true, w_out, w_leaving, w_closed, w_told, w_holds;
byte w_ring, w_cell, w_place;
byte w_refuses;       /* a ring that it was offered, which it has not said yet */

#define w_front (len(back) > 0 && !back?[MESSAGE, _, _])
#ifdef UNHEARD
#define w_ends false
#else
#define w_ends (w_ring && back??[CLOSED, eval(w_ring), _])
#endif
#define w_has_to_leave (w_out && (w_closed || !w_may))
#define w_comes_back (w_over_udp && !w_leaving && (w_ring -> !w_may || room_there : !w_asked && w_wanted && (!w_may || room_there)))
#define w_goes_on (w_leaving && (w_closed -> w_place == w_cell || room_there : !w_told && room_there))
#define w_able (w_front || (w_ends && !w_closed) || (w_refuses && room_there) || w_has_to_leave || w_comes_back || w_goes_on)
#define w_more (w_refuses || w_leaving || w_has_to_leave || (w_over_udp && (w_ring || (w_wanted && !w_asked))))

inline w_end(g, p)
{
	if
#ifdef TWICE
	:: w_ring && g == w_ring ->
#else
	:: w_ring && g == w_ring && !w_closed ->
#endif
		assert(p >= taken[w_ring] && p <= w_cell);
		w_closed = true;
		w_place = p
	:: else
	fi
}

/* What is left of looking does not make states differ. */
inline forget()
{
	g = 0;
	p = 0;
	kind = 0;
	n = 0;
	room = false
}

/* What is in front of a stream. */
inline look(stream, kind, g, p)
{
	kind = 0;
	n = len(stream);
	if
	:: n > 0 -> stream?<kind,g,p>
	:: n == 0
	fi
}

inline w_hear()
{
	behind = w_ends;
	if
	:: behind -> back?? <CLOSED,eval(w_ring),p>; w_end(w_ring, p)
	:: !behind
	fi;
	do
	:: look(back, kind, g, p);
		if
		:: kind == CLOSED -> back?CLOSED,g,p; w_end(g, p)
		:: kind == JOINED -> back?JOINED,g,p; w_wanted = true
		:: kind == REFUSED -> back?REFUSED,g,p; w_asked = false
		:: kind == OFFER -> back?OFFER,g,p;
			w_asked = false;
			if
			:: w_over_udp && w_may && !w_ring -> w_ring = g; w_cell = 0; w_place = 0; w_closed = false; w_told = false
			:: else -> w_refuses = g
			fi
		:: else -> break
		fi
	od
}

inline w_switch()
{
	room = room_there;
	if
	:: w_refuses && room -> say(REFUSED, w_refuses); w_refuses = 0
	:: else
	fi;
	if
	:: w_has_to_leave -> w_out = false; w_leaving = true
	:: else
	fi;
	room = room_there;
	if
	:: w_leaving && !w_closed && !w_told && room -> say(END, w_ring); w_told = true
	:: w_leaving && w_closed ->
		do
		:: w_place != w_cell && room -> say(MESSAGE, cells[w_ring * CELLS + w_place % CELLS]); w_place++; room = room_there
		:: else -> break
		od;
		if
		:: w_place == w_cell -> w_leaving = false; w_over_udp = true; w_ring = 0
		:: else
		fi
	:: !w_leaving && w_over_udp && w_ring && !w_may -> w_ring = 0
	:: !w_leaving && w_over_udp && w_ring && w_may && room -> say(OPEN, w_ring); w_over_udp = false; w_out = true
	:: !w_leaving && w_over_udp && !w_ring && !w_asked && w_wanted && !w_may -> w_wanted = false
	:: !w_leaving && w_over_udp && !w_ring && !w_asked && w_wanted && w_may && room && !w_refuses ->
		say(WANTED, 0); w_asked = true; w_wanted = false
	:: else
	fi
}

/* By owner or keeper. */
inline w_progress()
{
	w_hear();
	w_switch();
	w_switching = w_more;
	behind = false;
	forget()
}

active proctype w_keeper()
{
	byte g, p, kind, n;
	bool behind, room;
end:	do
	:: d_step { w_tick -> w_tick = false;
#ifdef UNHEARD
		w_switching = w_switching || w_front;
#else
		w_switching = w_switching || w_front || w_fresh;
#endif
		w_fresh = false }
	:: d_step { w_switching && !w_holds && w_able -> w_progress() }
	:: d_step { w_switching && !w_able && !w_more -> w_switching = false }
	od
}

active proctype w_owner()
{
	byte g, p, kind, n;
	bool behind, room;
	w_wanted = true; /* the first message finds that out */
	w_switching = true;
	if
	:: diligent = true
	:: diligent = false
	fi;
	do
	:: !diligent || sent == MESSAGES -> break /* computes from now on */
	:: d_step { sent < MESSAGES && !w_leaving && w_over_udp && room_there -> say(MESSAGE, sent); sent++ }
	:: d_step { sent < MESSAGES && w_out && w_cell - taken[w_ring] < CELLS ->
		cells[w_ring * CELLS + w_cell % CELLS] = sent; w_cell++; written[w_ring] = w_cell; sent++ }
	:: d_step { w_switching && w_able -> w_progress() }
	:: d_step { w_front && !w_switching -> w_switching = true }
	:: back?[MESSAGE, _, _] -> w_holds = true;
		d_step { back?MESSAGE,g,p; w_holds = false; forget();
#ifndef UNNOTICED
			w_switching = w_switching || w_front
#endif
		}
	od
}

/* The reader. */
#define NONE 0
#define WAITING 1
#define READ 2
#define DONE 3
byte state[RINGS + 1], at[RINGS + 1], ends[RINGS + 1];
bool to_close[RINGS + 1], closed_here[RINGS + 1], told_closed[RINGS + 1];
bool r_may = true, r_attention, r_asleep;
bool r_asked;         /* and has not answered */
byte offers;

#define reading (state[1] == READ || state[2] == READ)
#define r_front (len(there) > 0 && !there?[MESSAGE, _, _])
#define r_takes (there?[WANTED, _, _] || (there?[OPEN, _, _] && !reading) || there?[END, _, _] || \
		 there?[REFUSED, _, _])
#ifdef UNHEARD
#define r_behind(g) false
#else
#define r_behind(g) (state[g] == READ && !to_close[g] && there??[END, g, _])
#endif
#define leaves(g) (!closed_here[g] && ((state[g] == READ && (to_close[g] || !r_may)) || (state[g] == WAITING && !r_may)))
#define untold(g) (closed_here[g] && !told_closed[g] && state[g] >= READ)
#define over(g) (state[g] == READ && closed_here[g] && at[g] == ends[g])
#define ready(g) (state[g] == READ && at[g] < (closed_here[g] -> ends[g] : written[g]))
#ifdef NO_GATE
#define udp_ready there?[MESSAGE, _, _]
#else
#define udp_ready (there?[MESSAGE, _, _] && !reading)
#endif
#define r_able (r_takes || (r_asked && room_back) || r_behind(1) || r_behind(2) || leaves(1) || leaves(2) || ((untold(1) || untold(2)) && room_back))
#define r_more (r_asked || untold(1) || untold(2) || leaves(1) || leaves(2) || r_front)

inline r_hear()
{
	to_close[1] = to_close[1] || r_behind(1);
	to_close[2] = to_close[2] || r_behind(2);
	do
	:: look(there, kind, g, p);
		if
		:: kind == END -> there?END,g,p; to_close[g] = to_close[g] || state[g] == READ
		:: kind == REFUSED -> there?REFUSED,g,p; state[g] = DONE; told_closed[g] = true
		:: kind == WANTED -> there?WANTED,g,p; assert(!r_asked); r_asked = true
		:: kind == OPEN && !reading -> there?OPEN,g,p;
			assert(state[g] == WAITING); /* else the peer would be given up */
			state[g] = READ;
			if
			:: g == 2 && state[1] == WAITING -> state[1] = DONE; told_closed[1] = true
			:: else
			fi
		:: else -> break
		fi
	od
}

/* It keeps what it finds. */
inline r_leave(ring)
{
	room = room_back;
	if
	:: leaves(ring) -> ends[ring] = (state[ring] == READ -> written[ring] : 0); closed_here[ring] = true
	:: else
	fi;
	if
	:: untold(ring) && room -> say_back(CLOSED, ring, ends[ring]); told_closed[ring] = true; room = room_back
	:: else
	fi
}

inline r_answer()
{
	room = room_back;
	if
	:: r_asked && room && r_may && offers < RINGS -> offers++; state[offers] = WAITING; say_back(OFFER, offers, 0); r_asked = false
	:: r_asked && room && (!r_may || offers == RINGS) -> say_back(REFUSED, 0, 0); r_asked = false
	:: else
	fi
}

inline r_drop(ring)
{
	if
	:: over(ring) -> state[ring] = DONE
	:: else
	fi
}

inline r_progress()
{
	r_hear();
	r_leave(1);
	r_leave(2);
	r_answer();
	r_drop(1);
	r_drop(2);
	r_switching = r_more;
	forget()
}

active proctype r_keeper()
{
	byte g, p, kind, n;
	bool room;
end:	do
	:: d_step { r_tick -> r_tick = false;
#ifdef UNHEARD
		r_switching = r_switching || r_front;
#else
		r_switching = r_switching || r_front || r_fresh;
#endif
		r_fresh = false;
		r_asleep = r_asleep && !udp_ready }
	:: d_step { r_switching && r_able -> r_progress(); r_attention = true; r_asleep = false }
	:: d_step { r_switching && !r_able && !r_more -> r_switching = false; r_attention = true; r_asleep = false }
	od
}

inline take(m)
{
	assert(m == received);
	received++
}

#define ring_ready (ready(1) || ready(2))

inline news()
{
	r_attention = false;
	if
	:: r_switching -> r_progress()
	:: else -> r_drop(1); r_drop(2)
	fi
}

inline read(ring)
{
	take(cells[ring * CELLS + at[ring] % CELLS]);
	at[ring]++;
	taken[ring] = at[ring]
}

#ifdef OVERSLEPT
#define over_any false
#else
#define over_any (over(1) || over(2))
#endif

active proctype r_owner()
{
	byte g, p, kind, n, noise;
	bool room;
end:	do
	:: atomic { noise < NOISE && room_back -> say_back(MESSAGE, 0, 0); noise++ }
	:: /* pm_wait, as soon as it may sleep */
		atomic { !r_asleep && !r_attention && !ring_ready && !udp_ready && !over_any -> r_asleep = true }
	:: /* pm_receive, and now and then it looks around first */
		d_step { !r_asleep && r_attention -> news() }
	:: d_step { !r_asleep && ring_ready ->
		if
		:: ready(1) -> read(1)
		:: else -> read(2)
		fi }
	:: d_step { !r_asleep && !ring_ready && (over(1) || over(2)) -> news() }
	:: d_step { !r_asleep && udp_ready -> there?MESSAGE,g,p; take(g); forget();
#ifndef UNNOTICED
		r_switching = r_switching || r_front;
		r_attention = r_attention || r_front
#endif
	}
	:: d_step { !r_asleep && !ring_ready && r_front && !r_switching -> r_switching = true; r_attention = true }
	od
}

/* Writing into a ring wakes its reader. */
active proctype bell()
{
end:	do
	:: atomic { r_asleep && ring_ready -> r_asleep = false }
	od
}

active proctype watari()
{
end:	do
	:: atomic { orders < ORDERS && w_may -> orders++; w_may = false; w_switching = true }
	:: atomic { !w_may -> w_may = true; w_wanted = w_wanted || w_over_udp || w_leaving; w_switching = true }
	:: atomic { orders < ORDERS && r_may -> orders++; r_may = false; r_switching = true; r_attention = true }
	:: atomic { !r_may && room_back -> r_may = true; say_back(JOINED, 0, 0) }
	od
}

active proctype judge()
{
end:	timeout -> assert(received == sent && (!diligent || sent == MESSAGES))
}
