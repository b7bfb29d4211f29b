/*
 * answer.pml - two sides ask each other for rings, and answer, in streams that messages fill (struct unanswered, src/rail.h):
 * neither waits for ever. With -DIN_LINE what has been asked stays in front of its stream until there is room for the answer,
 * and the checker finds that both may wait so.
 */
#define ROOM 2
#define ASKS 2

mtype = { MESSAGE, WANTED, ANSWER };
chan stream[2] = [ROOM] of { mtype };

active [2] proctype side()
{
	bool asked, owes;
	byte asks;
	do
	:: nfull(stream[_pid]) -> stream[_pid]!MESSAGE
	:: atomic { !asked && asks < ASKS && nfull(stream[_pid]) -> stream[_pid]!WANTED; asked = true; asks++ }
	:: stream[1 - _pid]?MESSAGE
	:: atomic { stream[1 - _pid]?ANSWER -> assert(asked); asked = false }
#ifdef IN_LINE
	:: atomic { stream[1 - _pid]?[WANTED] && nfull(stream[_pid]) -> stream[1 - _pid]?WANTED; stream[_pid]!ANSWER }
#else
	:: atomic { stream[1 - _pid]?WANTED -> assert(!owes); owes = true }
	:: atomic { owes && nfull(stream[_pid]) -> stream[_pid]!ANSWER; owes = false }
#endif
	od
}
