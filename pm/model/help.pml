/*
 * help.pml - a large read that both sides share (src/help.c), checked over all interleavings: the owner never writes
 * after the read has ended, each chunk is copied by somebody before a read ends well, and the reader waits for no
 * owner that does not come; also when the owner is late and finds the next read's words, fails to write, or ends at
 * any moment, and when the reader closes its read early, for it fails or the ring is to be left. The ring is a channel, of one HELP: there is never
 * another before the owner has seen it. Serials are 1, 2, 3 and 1 again, so that those that are used again are seen.
 *
 * With -DNO_SERIAL the words have no serial, and the checker finds the late write. With -DNO_EARLY the reader forgets that it
 * closed early, and the checker finds the chunk that nobody has copied.
 */
#define READS 5
#define CHUNKS 2

chan ring = [1] of { byte };
byte seen_serial;

byte claim_serial, claim_next;  /* one word */
byte done_serial, done_count;   /* one word */
bool done_failed;               /* in it, too */
bool copied[CHUNKS];            /* of the present read, as the reader's memory has it */
byte open;                      /* serial of the read that may be written to; 0: none */
bool gone;                      /* the owner's socket has ended: after its last write */
bool finished;

#ifdef NO_SERIAL
#define same(a, b) true
#else
#define same(a, b) ((a) == (b))
#endif

/* Takes the next chunk of a read, or CHUNKS if there is none: a load, and a compare-and-swap that may fail. */
inline take(serial, seen, got)
{
	do
	:: seen = claim_next;
		if
		:: !same(claim_serial, serial) || seen >= CHUNKS -> got = CHUNKS; break
		:: else
		fi;
		if
		:: atomic { same(claim_serial, serial) && claim_next == seen -> claim_next = seen + 1; got = seen; break }
		:: else
		fi
	od
}

active proctype reader()
{
	byte serial, reads, seen, got, mine, theirs, i;
	bool failed, asked, early;
	do
	:: reads == READS -> break
	:: else ->
		reads++;
		asked = seen_serial == serial;
		if
		:: !asked -> goto next /* it reads alone */
		:: asked -> serial = serial % 3 + 1
		fi;
		mine = 0;
		failed = false;
		early = false;
		d_step { i = 0; do :: i == CHUNKS -> break :: else -> copied[i] = false; i++ od; open = serial };
		d_step { done_serial = serial; done_count = 0; done_failed = false };
		d_step { claim_serial = serial; claim_next = 0 };
		ring!serial;
		do
		:: take(serial, seen, got);
			if
			:: got == CHUNKS -> theirs = CHUNKS - mine; break
			:: else -> mine++; copied[got] = true
			fi
		:: /* it cannot read, and closes */
			d_step { theirs = claim_next - mine; claim_next = CHUNKS };
			failed = true;
			break
		:: /* the ring is to be left, while the owner is copying: the read goes on for now */
			d_step { theirs = claim_next - mine; early = claim_next < CHUNKS; claim_next = CHUNKS };
			break
		od;
#ifdef NO_EARLY
		early = false;
#endif
		if
		:: theirs == 0
		:: theirs > 0 && done_serial == serial && done_count == theirs
		:: theirs > 0 && gone -> failed = true
		fi;
		if
		:: !failed && !early && !(theirs > 0 && done_failed) ->
			d_step { i = 0; do :: i == CHUNKS -> break :: else -> assert(copied[i]); i++ od }
		:: else
		fi;
		open = 0;
next:		skip
	od;
	finished = true
}

/* Comes when it likes, for a HELP that may be long over, or never. */
active proctype owner()
{
	byte serial, seen, got, done;
	do
	:: ring?serial ->
		seen_serial = serial;
		done = 0;
		do
		:: take(serial, seen, got);
			if
			:: got == CHUNKS -> break
			:: else
			fi;
			if
			:: /* it ends with a chunk in hand */
				goto out
			:: /* its write fails */
				d_step { done++; done_serial = serial; done_count = done; done_failed = true };
				break
			:: assert(open == serial);
				copied[got] = true;
				d_step { done++; done_serial = serial; done_count = done; done_failed = false }
			fi
		:: /* a newer request takes the place of this one */
			break
		od
	:: goto out
	od;
out:	gone = true
}

ltl ends { <> finished }
