package cnn

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

var tiny = Shape{Channels: []int{3, 4, 4, 5}, Features: 6, Maps: 2}

func picture(rng *rand.Rand) []uint8 {
	p := make([]uint8, Side*Side)
	for i := range p {
		p[i] = uint8(rng.IntN(256))
	}
	return p
}

// targets has one target of each loss, over shared and own heads.
func targets(n *Net, rng *rand.Rand) []Target {
	a, b, c, d := n.AddHead(3), n.AddHead(3), n.AddHead(2), n.AddHead(2)
	for _, h := range n.heads {
		n.spread(rng, h.at, h.params(), 0.1)
	}
	return []Target{
		{Heads: []int{a, b}, Loss: Classes, Class: 1, Weight: 1},
		{Heads: []int{c}, Loss: Labels, Values: []float32{0, 1}, Weight: 0.7},
		{Heads: []int{d}, Loss: Numbers, Values: []float32{0.3, -2}, Weight: 1.3},
	}
}

// TestGradient compares every layer's gradient with finite differences.
func TestGradient(t *testing.T) {
	rng := rand.New(rand.NewPCG(2, 1))
	n := New(tiny, 3)
	want := targets(n, rng)
	for i := range n.theta { // also biases
		n.theta[i] += float32(rng.NormFloat64()) * 0.02
	}
	p := picture(rng)
	maps := make([]float32, tiny.Maps*Cells*Cells)
	maps[3], maps[77] = 1, 1
	tp := n.newTape()
	tp.keep = make([]float32, n.features())
	for i := range tp.keep {
		tp.keep[i] = 1.25 * float32(min(i%5, 1))
	}
	grad := make([]float32, len(n.theta))
	loss := func(g []float32) float64 {
		tp.load(p, 1, -2)
		n.forward(tp)
		return n.backward(tp, Example{Targets: want, Maps: maps}, g)
	}
	loss(grad)
	scratch := make([]float32, len(n.theta))
	checked, off := 0, 0
	for range 400 {
		i := rng.IntN(len(n.theta))
		const h = 2e-4
		was := n.theta[i]
		n.theta[i] = was + h
		up := loss(scratch)
		n.theta[i] = was - h
		down := loss(scratch)
		n.theta[i] = was
		slope := (up - down) / (2 * h)
		if math.Abs(slope-float64(grad[i])) > 0.01+0.03*math.Abs(slope) {
			off++
			t.Logf("weight %d: gradient %.5f, finite difference %.5f", i, grad[i], slope)
		}
		checked++
	}
	if off > checked/50 { // a rectifier may turn within the difference, or a maximum move
		t.Errorf("%d of %d gradients differ from finite differences", off, checked)
	}
}

// spots is a set of pictures with a bright square left or right.
func spots(n int) []Example {
	rng := rand.New(rand.NewPCG(5, 5))
	out := make([]Example, n)
	for i := range out {
		p := picture(rng)
		for j := range p {
			p[j] /= 4
		}
		class := rng.IntN(2)
		x, y := 20+rng.IntN(20)+50*class, 20+rng.IntN(80)
		for j := range 64 {
			p[(y+j/8)*Side+x+j%8] = 240
		}
		out[i] = Example{Pixels: p, Targets: []Target{{Heads: []int{0}, Class: class, Weight: 1}}}
	}
	return out
}

func fitted(t *testing.T, threads, epochs int) *Net {
	t.Helper()
	n := New(tiny, 1)
	n.AddHead(2)
	err := n.Train(context.Background(), spots(120), Options{Epochs: epochs, Batch: 8, Rate: 3e-3, Move: 1, Drop: 0.1, Threads: threads, Seed: 4})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestTrainLearnsWhereASpotIs(t *testing.T) {
	n := fitted(t, 2, 12)
	right := 0
	all := spots(200)[120:]
	for _, e := range all {
		out := n.Outputs(e.Pixels, 0)
		if (out[1] > out[0]) == (e.Targets[0].Class == 1) {
			right++
		}
	}
	if right*10 < len(all)*9 {
		t.Errorf("%d of %d new pictures are read right, want nine tenths", right, len(all))
	}
}

func TestThreadsDoNotMatter(t *testing.T) {
	if a, b := fitted(t, 1, 1), fitted(t, 3, 1); !slices.Equal(a.theta, b.theta) {
		t.Error("one and three threads end with different weights")
	}
}

func TestTrainStops(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	n := New(tiny, 1)
	n.AddHead(2)
	if err := n.Train(ctx, spots(8), Options{Epochs: 1, Batch: 8, Threads: 1}); err == nil {
		t.Error("training ends without error when its context has")
	}
}

func BenchmarkExample(b *testing.B) {
	n := New(Usual, 1)
	e := spots(1)[0]
	n.AddHead(2)
	t, grad := n.newTape(), make([]float32, len(n.theta))
	for b.Loop() {
		t.load(e.Pixels, 0, 0)
		n.forward(t)
		n.backward(t, e, grad)
	}
}
