package chat

import "container/heap"

// longWord is the length in bytes from which words are merged by a queue: the
// plain loop takes time in the square of a word's length, and a text from
// outside may be one word.
const longWord = 256

// appendLong gives the ids that appendShort gives, in n·log n.
func (t *Tokenizer) appendLong(ids []int32, word string) []int32 {
	c := chain{symbols: make([]symbol, len(word)), merges: t.merges}
	for i := range c.symbols {
		c.symbols[i] = symbol{id: t.bytes[word[i]], prev: i - 1, next: i + 1}
	}
	for i := range c.symbols {
		c.offer(i)
	}
	for c.queue.Len() > 0 {
		c.apply(heap.Pop(&c.queue).(candidate))
	}
	for i := 0; i < len(c.symbols); i = c.symbols[i].next {
		ids = append(ids, c.symbols[i].id)
	}
	return ids
}

// A chain is a word as a linked list of symbols, with the merges that may come.
type chain struct {
	symbols []symbol
	merges  map[pair]merge
	queue   candidates
}

type symbol struct {
	id         int32 // -1 once it is merged into the symbol before
	prev, next int
}

// A candidate is a merge of the symbol at a place with the next one, as the two
// were when it was offered.
type candidate struct {
	merge
	at   int
	pair pair
}

// offer queues the merge of symbol i and the next, where there is one.
func (c *chain) offer(i int) {
	if i < 0 || c.symbols[i].next >= len(c.symbols) {
		return
	}
	p := pair{c.symbols[i].id, c.symbols[c.symbols[i].next].id}
	if m, ok := c.merges[p]; ok {
		heap.Push(&c.queue, candidate{m, i, p})
	}
}

// apply merges what a candidate means, unless that has changed since.
func (c *chain) apply(m candidate) {
	left := &c.symbols[m.at]
	if left.id != m.pair.left || left.next >= len(c.symbols) || c.symbols[left.next].id != m.pair.right {
		return
	}
	right := &c.symbols[left.next]
	left.id, left.next, right.id = m.id, right.next, -1
	if left.next < len(c.symbols) {
		c.symbols[left.next].prev = m.at
	}
	c.offer(left.prev)
	c.offer(m.at)
}

// candidates is a heap: the lowest rank first, of equal ones the leftmost.
type candidates []candidate

func (q candidates) Len() int { return len(q) }

func (q candidates) Less(i, j int) bool {
	if q[i].rank != q[j].rank {
		return q[i].rank < q[j].rank
	}
	return q[i].at < q[j].at
}

func (q candidates) Swap(i, j int) { q[i], q[j] = q[j], q[i] }

func (q *candidates) Push(x any) { *q = append(*q, x.(candidate)) }

func (q *candidates) Pop() any {
	last := len(*q) - 1
	x := (*q)[last]
	*q = (*q)[:last]
	return x
}
