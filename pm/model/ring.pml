/*
 * ring.pml - the queue of src/ring.h, checked over all interleavings: messages arrive once, in order and whole, also
 * when both sides lag by as much as the ring allows, and neither side waits for ever.
 *
 * Cells and data ring are modelled with CELLS cells and BYTES lines; a message takes a cell, and none, one or two
 * lines of data, which are never over the end (ring_place). What a cell or line holds is the number of the message.
 * The reader tells what it has taken every TELL cells or lines (ring_take).
 */
#define CELLS 4
#define BYTES 4
#define TELL 1
#define MESSAGES 7

byte control[CELLS];  /* number of the cell + 1 */
byte length[CELLS];
byte data[BYTES];
byte taken_cells, taken_bytes;
bool finished_writer, finished_reader;

#define place(at, n) ((n) > BYTES - (at) % BYTES -> (at) + BYTES - (at) % BYTES : (at))

active proctype writer()
{
	byte cell, byte_at, seen_cells, seen_bytes, message, n, start, i;
	do
	:: message == MESSAGES -> break
	:: else ->
		if
		:: n = 0
		:: n = 1
		:: n = 2
		fi;
		start = place(byte_at, n);
		do
		:: cell - seen_cells < CELLS && (n == 0 || start + n - seen_bytes <= BYTES) -> break
		:: else ->
			/* Cells are looked at first: bytes, told before them, are then at least as new. */
			seen_cells = taken_cells;
			seen_bytes = taken_bytes;
			assert(cell - seen_cells <= CELLS && byte_at - seen_bytes <= BYTES)
		od;
		i = 0;
		do
		:: i == n -> break
		:: else -> data[(start + i) % BYTES] = message; i++
		od;
		if
		:: n > 0 -> byte_at = start + n
		:: else
		fi;
		d_step { length[cell % CELLS] = n; control[cell % CELLS] = cell + 1 };
		cell++;
		message++
	od;
	finished_writer = true
}

active proctype reader()
{
	byte cell, byte_at, told_cells, told_bytes, message, n, start, i;
	do
	:: message == MESSAGES -> break
	:: control[cell % CELLS] == cell + 1 ->
		n = length[cell % CELLS];
		start = place(byte_at, n);
		i = 0;
		do
		:: i == n -> break
		:: else -> assert(data[(start + i) % BYTES] == message); i++
		od;
		cell++;
		if
		:: n > 0 -> byte_at = start + n
		:: else
		fi;
		if
		:: cell - told_cells > TELL - 1 || byte_at - told_bytes > TELL - 1 ->
			told_cells = cell;
			told_bytes = byte_at;
			taken_bytes = byte_at;
			taken_cells = cell
		:: else
		fi;
		message++
	od;
	finished_reader = true
}

ltl ends { <> (finished_writer && finished_reader) }
