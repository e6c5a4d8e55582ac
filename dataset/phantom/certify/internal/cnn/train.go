package cnn

import (
	"context"
	"math"
	"math/rand/v2"

	"xragent/internal/simd"
)

// Options say how a network is trained.
type Options struct {
	Epochs  int
	Batch   int     // examples a step
	Rate    float64 // peak learning rate: warmed up linearly, then a cosine to zero
	Decay   float64 // of weights, decoupled
	Drop    float64 // share of the features dropped while training
	Move    int     // pictures are moved by up to so many pixels
	Threads int
	Seed    uint64
	After   func(epoch int, loss float64) // called after each epoch with its mean loss; nil: not
}

// shards is the fixed number of parts of a batch.
const shards = 4

// Train fits the network by AdamW (Loshchilov and Hutter 2019, "Decoupled
// Weight Decay Regularization", algorithm 2). It stops early only when ctx
// ends, with ctx's error.
func (n *Net) Train(ctx context.Context, examples []Example, o Options) error {
	f := n.fitting(o, len(examples))
	for epoch := range o.Epochs {
		order := f.rng.Perm(len(examples))
		total := 0.0
		for from := 0; from < len(order); from += o.Batch {
			if err := ctx.Err(); err != nil {
				return err
			}
			total += f.step(examples, order[from:min(from+o.Batch, len(order))])
		}
		if o.After != nil {
			o.After(epoch, total/float64(len(order)))
		}
	}
	return nil
}

// A fitting is a training under way.
type fitting struct {
	net    *Net
	o      Options
	rng    *rand.Rand
	tapes  [shards]*tape
	grads  [shards][]float32
	m, v   []float32 // moments
	at, of int       // steps done, steps in all
}

func (n *Net) fitting(o Options, examples int) *fitting {
	f := &fitting{net: n, o: o, rng: rand.New(rand.NewPCG(o.Seed, 2))}
	f.of = o.Epochs * ((examples + o.Batch - 1) / o.Batch)
	f.m, f.v = make([]float32, len(n.theta)), make([]float32, len(n.theta))
	for i := range shards {
		f.tapes[i], f.grads[i] = n.newTape(), make([]float32, len(n.theta))
		f.tapes[i].keep = make([]float32, n.features())
	}
	return f
}

func (f *fitting) step(examples []Example, batch []int) float64 {
	seed := f.rng.Uint64()
	var losses [shards]float64
	simd.For(min(f.o.Threads, shards), shards, func(lo, hi int) {
		for s := lo; s < hi; s++ {
			clear(f.grads[s])
			for i := len(batch) * s / shards; i < len(batch)*(s+1)/shards; i++ {
				losses[s] += f.example(s, examples[batch[i]], rand.New(rand.NewPCG(seed, uint64(i))))
			}
		}
	})
	simd.For(f.o.Threads, len(f.m), func(lo, hi int) { f.update(lo, hi, float32(len(batch))) })
	f.at++
	return losses[0] + losses[1] + losses[2] + losses[3]
}

func (f *fitting) example(shard int, e Example, rng *rand.Rand) float64 {
	t, move := f.tapes[shard], f.o.Move
	t.load(e.Pixels, rng.IntN(2*move+1)-move, rng.IntN(2*move+1)-move)
	for i := range t.keep {
		t.keep[i] = 0
		if rng.Float64() >= f.o.Drop {
			t.keep[i] = float32(1 / (1 - f.o.Drop))
		}
	}
	f.net.forward(t)
	return f.net.backward(t, e, f.grads[shard])
}

// rate returns the learning rate of the step.
func (f *fitting) rate() float64 {
	const warm = 20
	if f.at < warm {
		return f.o.Rate * float64(f.at+1) / warm
	}
	return f.o.Rate * (1 + math.Cos(math.Pi*float64(f.at)/float64(f.of))) / 2
}

// update steps the weights [lo, hi).
func (f *fitting) update(lo, hi int, batch float32) {
	const b1, b2, epsilon = 0.9, 0.999, 1e-8
	n := float64(f.at + 1)
	rate := float32(f.rate())
	fix1, fix2 := float32(1/(1-math.Pow(b1, n))), float32(1/(1-math.Pow(b2, n)))
	shrink := 1 - rate*float32(f.o.Decay)
	g0, g1, g2, g3 := f.grads[0], f.grads[1], f.grads[2], f.grads[3]
	for i := lo; i < hi; i++ {
		g := (g0[i] + g1[i] + g2[i] + g3[i]) / batch
		f.m[i] = b1*f.m[i] + (1-b1)*g
		f.v[i] = b2*f.v[i] + (1-b2)*g*g
		f.net.theta[i] = f.net.theta[i]*shrink - rate*f.m[i]*fix1/(float32(math.Sqrt(float64(f.v[i]*fix2)))+epsilon)
	}
}
