package trainer

import (
	"crypto/sha256"
	"encoding/binary"
	"math/bits"
	"math/rand/v2"
)

// mix makes one seed of several numbers: the first eight bytes of the SHA-256
// of their big-endian forms.
func mix(numbers ...uint64) uint64 {
	h := sha256.New()
	for _, n := range numbers {
		var b [8]byte
		binary.BigEndian.PutUint64(b[:], n)
		h.Write(b[:])
	}
	return binary.BigEndian.Uint64(h.Sum(nil))
}

// An order visits n items epoch after epoch, each epoch in a shuffle of its
// own. Position p is always the same item: nothing of it needs saving.
type order struct {
	seed  uint64
	n     int
	epoch int
	items []int // of epoch; nil before the first use
}

// at returns the item at a position, counted from 0 over all epochs.
func (o *order) at(position int) int {
	if epoch := position / o.n; o.items == nil || epoch != o.epoch {
		o.epoch, o.items = epoch, shuffle(mix(o.seed, uint64(epoch)), o.n)
	}
	return o.items[position%o.n]
}

// shuffle is Fisher and Yates's. It draws by multiplication from a fixed
// generator, so that the order is part of the recipe and not of a library.
func shuffle(seed uint64, n int) []int {
	rng := rand.NewPCG(seed, 0)
	items := make([]int, n)
	for i := range items {
		j, _ := bits.Mul64(rng.Uint64(), uint64(i+1))
		items[i] = items[j]
		items[j] = i
	}
	return items
}
