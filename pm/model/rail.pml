/*
 * rail.pml - leaving a ring and coming back to one while messages flow (src/rail.c), checked over all interleavings:
 * every message arrives once and in order, and nobody waits for ever, whichever side leaves, both, and when. One
 * direction: the writer, the reader, and the reader's keeper, which makes rings. (Rings that are offered: offer.pml.)
 *
 * A ring has CELLS cells, and each ring that is made is another one (a generation). A ring's memory is not modelled as
 * given back: who has left it looks only at what it has kept, or at cells that the other can no longer change.
 *
 * With one of these the checker finds what goes wrong: -DNO_GATE, what came by udp is handed out before the ring has
 * been read; -DNO_OPEN_GATE, a ring is opened before the one before it has been read; -DTOO_LOW and -DTOO_HIGH, the
 * reader tells another place than that up to which it reads; -DDEAF, the writer does not listen to what is said about a ring
 * that it has asked for and not used yet; -DLATE, the first ring is handed to its reader after its writer has been told
 * that it is there.
 */
#ifndef MESSAGES
#define MESSAGES 3
#endif
#define CELLS 2
#define RINGS 3
#ifndef ORDERS
#define ORDERS 3      /* so often a side is told to leave, at most */
#endif

/* In the udp stream: a kind, and a message's number or a ring's generation. */
#define MESSAGE 0
#define OPEN 1
#define END 2
chan there = [2] of { byte, byte };
/* And back, RING_CLOSED: generation, place. */
chan back = [1] of { byte, byte };
/* Rings that are asked for, and what comes of it. */
chan hello = [1] of { byte };
chan welcome = [1] of { byte, bool };

/* What both sides see of a ring. */
byte cells[RINGS * CELLS];
byte written[RINGS], taken[RINGS];
bool arrived[RINGS];

bool writer_may = true, reader_may = true; /* use rings */
byte orders, received;
bool finished;

active proctype writer()
{
	byte sent, generation, cell, seen, place, g, p;
	bool asked, out, leaving, over_udp, told, closed, yes;
	do
	:: received == MESSAGES -> break

	:: /* orders */
		atomic { writer_may && orders < ORDERS -> orders++; writer_may = false }
	:: !writer_may -> writer_may = true

	:: /* messages */
		d_step { sent < MESSAGES && out && cell - seen < CELLS ->
			cells[generation * CELLS + cell % CELLS] = sent; cell++; written[generation] = cell; sent++ }
	:: d_step { out && seen != taken[generation] -> seen = taken[generation] }
	:: atomic { sent < MESSAGES && over_udp && nfull(there) -> there!MESSAGE,sent; sent++ }

	:: /* link_want, the first time */
		atomic { !asked && !out && !leaving && !over_udp ->
			if
			:: writer_may -> asked = true; hello!generation
			:: else -> over_udp = true
			fi
		}
	:: atomic { welcome?g,yes ->
		if
		:: !asked || g != generation -> skip /* hung up meanwhile */
		:: else ->
			if
			:: !yes -> asked = false; over_udp = true
			:: yes && !over_udp -> out = true
			:: yes && over_udp -> /* come_back */
				if
				:: !writer_may -> asked = false
				:: nfull(there) -> there!OPEN,generation; over_udp = false; out = true
				fi
			fi
		fi
	}
	:: atomic { over_udp && !asked && writer_may && generation + 1 < RINGS && nfull(hello) ->
		generation++; cell = 0; seen = 0; told = false; closed = false; asked = true; hello!generation }

	:: /* begin_to_leave */
		d_step { out && (!writer_may || closed) -> seen = taken[generation]; out = false; leaving = true }
	:: atomic { leaving && !closed && !told && nfull(there) -> there!END,generation; told = true }
	:: atomic { leaving && closed && place != cell && nfull(there) ->
		there!MESSAGE,cells[generation * CELLS + place % CELLS]; place++ }
	:: d_step { leaving && closed && place == cell -> leaving = false; over_udp = true; asked = false; place = 0 }
	:: atomic { back?g,p ->
		if
#ifdef DEAF
		:: g == generation && (out || leaving) -> closed = true; place = p;
#else
		:: g == generation && asked -> closed = true; place = p;
#endif
			assert(p >= seen && p <= cell) /* closed_sensibly */
		:: else
		fi;
		g = 0; p = 0
	}
	od
}

/* Of the reader: hands rings out. */
active proctype keeper()
{
	byte g;
	do
	:: hello?g ->
		if
		:: !reader_may -> welcome!g,false
		:: reader_may ->
#ifdef LATE
			welcome!g,true;
			arrived[g] = true
#else
			arrived[g] = true;
			welcome!g,true
#endif
		fi
	:: received == MESSAGES -> break
	od
}

#define NONE 0
#define WAITING 1
#define READ 2
#define DONE 3

byte state[RINGS], at[RINGS], end[RINGS];
bool to_close[RINGS], closed_here[RINGS], told_closed[RINGS];

#define reading (state[0] == READ || state[1] == READ || state[2] == READ)
#ifdef NO_GATE
#define gate true
#else
#define gate !reading
#endif
#ifdef NO_OPEN_GATE
#define open_gate true
#else
#define open_gate !reading
#endif
#ifdef TOO_LOW
#define told_end(g) (end[g] > 0 -> end[g] - 1 : 0)
#else
#ifdef TOO_HIGH
#define told_end(g) (end[g] < written[g] -> end[g] + 1 : end[g])
#else
#define told_end(g) end[g]
#endif
#endif

/* The first ring is read at once, the others wait for their OPEN. */
inline take_arrivals()
{
	d_step {
		if :: arrived[0] && state[0] == NONE -> state[0] = READ :: else fi;
		if :: arrived[1] && state[1] == NONE -> state[1] = WAITING :: else fi;
		if :: arrived[2] && state[2] == NONE -> state[2] = WAITING :: else fi
	}
}

inline open_ring(g)
{
	state[g] = READ;
	if
	:: g == 2 && state[1] == WAITING -> state[1] = DONE; told_closed[1] = true /* given up by its writer */
	:: else
	fi
}

inline take(m)
{
	d_step { assert(m == received); received++; m = 0 }
}

#define readable(g) (state[g] == READ && (closed_here[g] -> at[g] < end[g] : at[g] < written[g]))

inline read(g)
{
	d_step { m = cells[g * CELLS + at[g] % CELLS]; at[g]++ };
	take(m)
}

#define leaves(g) (state[g] == READ && !closed_here[g] && (to_close[g] || !reader_may))

/* It keeps what it finds up to a place; what is written meanwhile it may find or not. */
inline close_ring(g)
{
	end[g] = at[g];
	do
	:: end[g] < written[g] -> end[g]++
	:: break
	od;
	closed_here[g] = true
}

#define tells(g) (closed_here[g] && !told_closed[g] && state[g] >= READ && nfull(back))

inline tell_closed(g)
{
	back!g,told_end(g);
	told_closed[g] = true
}

#define ends(g) (state[g] == READ && closed_here[g] && at[g] == end[g])

active proctype reader()
{
	byte m, g;
	do
	:: received == MESSAGES -> break

	:: /* orders */
		atomic { reader_may && orders < ORDERS -> orders++; reader_may = false }
	:: !reader_may -> reader_may = true

	:: /* messages */
		atomic { readable(0) -> read(0) }
	:: atomic { readable(1) -> read(1) }
	:: atomic { readable(2) -> read(2) }
	:: state[0] == READ && !closed_here[0] && taken[0] != at[0] -> taken[0] = at[0]
	:: state[1] == READ && !closed_here[1] && taken[1] != at[1] -> taken[1] = at[1]
	:: state[2] == READ && !closed_here[2] && taken[2] != at[2] -> taken[2] = at[2]
	:: atomic { gate && there?[MESSAGE, _] -> there?MESSAGE,m; take(m) }

	:: /* what the writer says of rings */
		arrived[0] && state[0] == NONE || arrived[1] && state[1] == NONE || arrived[2] && state[2] == NONE -> take_arrivals()
	:: atomic { there?[END, _] -> take_arrivals();
		there?END,g;
		if
		:: state[g] == READ -> to_close[g] = true
		:: else
		fi;
		g = 0
	}
	:: atomic { open_gate && there?[OPEN, 1] && state[1] == WAITING -> there?OPEN,g; open_ring(1); g = 0 }
	:: atomic { open_gate && there?[OPEN, 2] && state[2] == WAITING -> there?OPEN,g; open_ring(2); g = 0 }

	:: /* leaving */
		atomic { leaves(0) -> close_ring(0) }
	:: atomic { leaves(1) -> close_ring(1) }
	:: atomic { leaves(2) -> close_ring(2) }
	:: state[1] == WAITING && !closed_here[1] && !reader_may -> closed_here[1] = true
	:: state[2] == WAITING && !closed_here[2] && !reader_may -> closed_here[2] = true
	:: atomic { tells(0) -> tell_closed(0) }
	:: atomic { tells(1) -> tell_closed(1) }
	:: atomic { tells(2) -> tell_closed(2) }
	:: ends(0) -> state[0] = DONE
	:: ends(1) -> state[1] = DONE
	:: ends(2) -> state[2] = DONE
	od;
	finished = true
}

ltl ends { <> finished }
