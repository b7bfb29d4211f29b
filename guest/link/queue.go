package link

// queue is a byte queue that reuses its memory.
type queue struct {
	buf  []byte
	head int
}

func (q *queue) len() int { return len(q.buf) - q.head }

func (q *queue) push(b []byte) {
	if q.head > 0 && len(q.buf)+len(b) > cap(q.buf) {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = append(q.buf, b...)
}

// peek copies bytes from offset on to b.
func (q *queue) peek(offset int, b []byte) int { return copy(b, q.buf[q.head+offset:]) }

// drop removes n bytes from the front. When the queue becomes empty, drop releases memory that has grown large.
func (q *queue) drop(n int) {
	q.head += n
	if q.head == len(q.buf) {
		q.head = 0
		if cap(q.buf) > 64<<10 {
			q.buf = nil
		} else {
			q.buf = q.buf[:0]
		}
	}
}
