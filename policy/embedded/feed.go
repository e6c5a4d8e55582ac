package embedded

import "xragent/trainer/loss"

// A feed is what one micro-batch puts into a graph. The graph's operations read
// it when they run; only its first rows of each buffer are in use, so one graph
// serves every micro-batch up to its capacity.
//
// Sequences lie one after another in rows, those of a bundle behind their common
// prefix; images lie one after another in patches.
type feed struct {
	threads int

	rows     int // text rows in use
	ids      []int32
	families [][]scope // one a bundle of sequences
	cos, sin []float32 // [rows, head_dim/2]
	source   []int32   // feature that stands at each row; -1: the id's embedding

	patches    int
	pixels     []float32 // [patches, PatchDim]
	frames     [][]scope // one a frame
	vcos, vsin []float32 // [patches, vision head_dim/2]
	blends     []blend   // [patches]
	features   int       // patches / merge²

	targets int // loss rows in use
	target  []target
	scored  []scored // one a sequence with loss tokens
	kind    objectiveKind
	loss    loss.Config
	count   loss.Count // the whole batch's, for the denominators
	inverse float32    // 1 / temperature of the logits

	terms []loss.Token // of each target, written by the graph
	sums  sums         // likewise
	row   loss.Row     // scratch
}

// A segment is a range of rows.
type segment struct{ lo, hi int }

func (s segment) len() int { return s.hi - s.lo }

// A scope is rows that attend to one another and to all rows of the segment
// before them, which may be empty. A family of scopes shares what is before.
type scope struct{ before, own segment }

// A target is one loss token: the row that predicts it, its id, and what the
// objective knows of it.
type target struct {
	row       int32
	id        int32
	behaviour float32 // log-prob when it was sampled
	reference float32 // log-prob under the first weights, where the loss needs it
}

// A scored is the targets of one sequence.
type scored struct {
	lo, hi    int
	advantage float32
}

// sums is what a graph adds up over its loss tokens, in their order.
type sums struct {
	loss, entropy, kl, diff float64
	reference, weight       float64
	low, high               int
}
