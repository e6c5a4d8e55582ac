package embedded

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
	kind    objectiveKind
	clip    [2]float32 // ratio bounds: 1-low, 1+high
	tokens  float64    // denominator of the loss: the whole batch's

	sums sums // written by the graph
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
	advantage float32
}

// sums is what a graph adds up over its loss tokens, in their order.
type sums struct {
	loss, entropy, kl, diff float64
	low, high               int
}
