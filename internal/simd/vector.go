package simd

import "math"

// Dot returns Σ x[i]·y[i]. Its order of summation depends on the length alone.
func Dot(x, y []float32) float32 {
	y = y[:len(x)]
	if useAVX2 {
		return dotAVX2(x, y)
	}
	return level1.Sdot(len(x), x, 1, y, 1)
}

// Axpy adds alpha·x to y.
func Axpy(alpha float32, x, y []float32) {
	y = y[:len(x)]
	if useAVX2 {
		axpyAVX2(alpha, x, y)
		return
	}
	level1.Saxpy(len(x), alpha, x, 1, y, 1)
}

// Scale multiplies x by alpha in place.
func Scale(alpha float32, x []float32) {
	if useAVX2 {
		scaleAVX2(alpha, x)
		return
	}
	for i := range x {
		x[i] *= alpha
	}
}

// Add writes x + y to dst, which may be either.
func Add(dst, x, y []float32) {
	dst, y = dst[:len(x)], y[:len(x)]
	if useAVX2 {
		addAVX2(dst, x, y)
		return
	}
	for i, v := range x {
		dst[i] = v + y[i]
	}
}

// Mul writes the elementwise product of x and y to dst, which may be either.
func Mul(dst, x, y []float32) {
	dst, y = dst[:len(x)], y[:len(x)]
	if useAVX2 {
		mulAVX2(dst, x, y)
		return
	}
	for i, v := range x {
		dst[i] = v * y[i]
	}
}

// Sum returns Σ x[i]. Its order of summation depends on the length alone.
func Sum(x []float32) float32 {
	if useAVX2 {
		return sumAVX2(x)
	}
	var sum float32
	for _, v := range x {
		sum += v
	}
	return sum
}

// Max returns the largest element of x, which must not contain NaN, and
// −Inf where x is empty.
func Max(x []float32) float32 {
	if useAVX2 {
		return maxAVX2(x)
	}
	largest := float32(math.Inf(-1))
	for _, v := range x {
		largest = max(largest, v)
	}
	return largest
}

// ExpSub writes exp(x[i]−m) to dst, which may be x, and returns the sum of
// what it wrote. The relative error of an element is below 1e-6; results
// below 1.2e-38 may be written as 0.
func ExpSub(dst, x []float32, m float32) (sum float32) { return ExpScaledSub(dst, x, 1, m) }

// ExpScaledSub is [ExpSub] of scale·x[i], rounded before m is subtracted.
func ExpScaledSub(dst, x []float32, scale, m float32) (sum float32) {
	dst = dst[:len(x)]
	if useAVX512 {
		return expSubAVX512(dst, x, scale, m)
	}
	if useAVX2 {
		return expSubAVX2(dst, x, scale, m)
	}
	return expSubPortable(dst, x, scale, m)
}

// SoftmaxBackward turns the gradient dx with respect to y = softmax(scale·x)
// into that with respect to x: y·(dx − along)·scale, where along is Σ y·dx.
func SoftmaxBackward(dx, y []float32, along, scale float32) {
	dx = dx[:len(y)]
	if useAVX2 {
		softmaxBackwardAVX2(dx, y, along, scale)
		return
	}
	for i, w := range y {
		dx[i] = w * (dx[i] - along) * scale
	}
}

// Turn writes src to dst with elements i and i + len(cos) turned as a point in
// the plane by the angle with cosine cos[i] and sine direction·sin[i]. dst must
// not be src.
func Turn(dst, src, cos, sin []float32, direction float32) {
	half := len(cos)
	dst, src, sin = dst[:2*half], src[:2*half], sin[:half]
	if useAVX2 {
		turnAVX2(dst, src, cos, sin, direction)
		return
	}
	x, y := src[:half], src[half:]
	u, v := dst[:half], dst[half:]
	for i, c := range cos {
		s := direction * sin[i]
		u[i] = float32(x[i]*c) - float32(y[i]*s) // conversions forbid fused multiply-adds
		v[i] = float32(y[i]*c) + float32(x[i]*s)
	}
}

// SiLU writes gate·σ(gate)·up to dst, which may be either: the gated unit of
// SwiGLU (Shazeer 2020).
func SiLU(dst, gate, up []float32) {
	dst, up = dst[:len(gate)], up[:len(gate)]
	if useAVX512 {
		siluAVX512(dst, gate, up)
		return
	}
	if useAVX2 {
		siluAVX2(dst, gate, up)
		return
	}
	siluPortable(dst, gate, up)
}

// SiLUBackward writes the gradients of [SiLU] for the output gradient dOut.
// dGate and dUp may be gate, up or dOut, but not each other.
func SiLUBackward(dGate, dUp, gate, up, dOut []float32) {
	n := len(gate)
	dGate, dUp, up, dOut = dGate[:n], dUp[:n], up[:n], dOut[:n]
	if useAVX512 {
		siluBackwardAVX512(dGate, dUp, gate, up, dOut)
		return
	}
	if useAVX2 {
		siluBackwardAVX2(dGate, dUp, gate, up, dOut)
		return
	}
	siluBackwardPortable(dGate, dUp, gate, up, dOut)
}

// GELUTanh writes the tanh form of GELU of x to dst, which may be x.
func GELUTanh(dst, x []float32) {
	dst = dst[:len(x)]
	if useAVX512 {
		geluAVX512(dst, x)
		return
	}
	if useAVX2 {
		geluAVX2(dst, x)
		return
	}
	geluPortable(dst, x)
}

// GELUTanhBackward writes the gradient of [GELUTanh] at x for the output
// gradient dy to dx, which may be x or dy.
func GELUTanhBackward(dx, x, dy []float32) {
	dx, dy = dx[:len(x)], dy[:len(x)]
	if useAVX512 {
		geluBackwardAVX512(dx, x, dy)
		return
	}
	if useAVX2 {
		geluBackwardAVX2(dx, x, dy)
		return
	}
	geluBackwardPortable(dx, x, dy)
}

// GELU writes the exact GELU x·Φ(x) of x to dst, which may be x. It is not
// vectorised: only the small mergers use it.
func GELU(dst, x []float32) {
	for i, v := range x {
		cdf, _ := normal(float64(v))
		dst[i] = float32(float64(v) * cdf)
	}
}

// GELUBackward writes the gradient of [GELU] at x for the output gradient dy to
// dx, which may be x or dy.
func GELUBackward(dx, x, dy []float32) {
	for i, v := range x {
		cdf, density := normal(float64(v))
		dx[i] = float32(float64(dy[i]) * (cdf + float64(v)*density))
	}
}

// normalEnd is beyond where the normal distribution function is 0 or 1, and
// normalSteps how many nodes it is known at a unit.
const normalEnd, normalSteps = 8, 64

var normalNodes = func() (nodes [2*normalEnd*normalSteps + 1]struct{ cdf, density float64 }) {
	for i := range nodes {
		z := float64(i)/normalSteps - normalEnd
		nodes[i].cdf = 0.5 * math.Erfc(-z/math.Sqrt2)
		nodes[i].density = math.Exp(-z*z/2) / math.Sqrt(2*math.Pi)
	}
	return nodes
}()

// normal returns the standard normal distribution function and density at z,
// to a relative 1e-9, by their Taylor series about the nearest node: the n-th
// derivative of the density is (−1)ⁿ·Heₙ times it.
func normal(z float64) (cdf, density float64) {
	switch {
	case z <= -normalEnd:
		return 0, 0
	case z >= normalEnd:
		return 1, 0
	case z != z:
		return z, z
	}
	i := int((z+normalEnd)*normalSteps + 0.5)
	node, c := &normalNodes[i], float64(i)/normalSteps-normalEnd
	d := z - c
	he2 := c*c - 1
	he3 := c*he2 - 2*c
	he4 := c*he3 - 3*he2
	he5 := c*he4 - 4*he3
	density = node.density * (1 - d*(c-d*(1./2)*(he2-d*(1./3)*(he3-d*(1./4)*(he4-d*(1./5)*he5)))))
	cdf = node.cdf + node.density*d*(1-d*(1./2)*(c-d*(1./3)*(he2-d*(1./4)*(he3-d*(1./5)*(he4-d*(1./6)*he5)))))
	return cdf, density
}

// An AdamRule is the constants of one step of AdamW (Loshchilov and Hutter
// 2019): with m = Beta1·m + (1−Beta1)·g and v = Beta2·v + (1−Beta2)·g²,
// x = Keep·x − Step·m/(Unbias·√v + Eps).
type AdamRule struct{ Beta1, Beta2, Step, Unbias, Keep, Eps float32 }

// Apply moves x by its gradient g and updates the moments m and v.
func (r AdamRule) Apply(x, g, m, v []float32) {
	n := len(x)
	g, m, v = g[:n], m[:n], v[:n]
	if useAVX2 {
		adamAVX2(x, g, m, v, &r)
		return
	}
	for i, d := range g {
		// Conversions forbid fused multiply-adds.
		m[i] = float32(r.Beta1*m[i]) + float32((1-r.Beta1)*d)
		v[i] = float32(r.Beta2*v[i]) + float32((1-r.Beta2)*d*d)
		root := float32(math.Sqrt(float64(v[i])))
		x[i] = float32(x[i]*r.Keep) - r.Step*m[i]/(float32(root*r.Unbias)+r.Eps)
	}
}

// Finite reports whether no element of x is NaN or infinite.
func Finite(x []float32) bool {
	if useAVX2 {
		return finiteAVX2(x)
	}
	for _, v := range x {
		if v*0 != 0 {
			return false
		}
	}
	return true
}
