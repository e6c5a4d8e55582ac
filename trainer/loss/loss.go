// Package loss is the policy-gradient loss of a batch and its gradient with
// respect to the log-probs, in float64.
//
// It is the one definition that every learner follows: the embedded policy calls
// it, learner/losses.py says the same in PyTorch, and both are held against
// values that verl's and TRL's own functions gave (testdata/peers.json;
// docs/losses.md lists terms and denominators).
//
// It knows no model, no batch and no tensor. It refuses settings that would have
// no effect or no meaning; NaN in a row is its caller's to refuse.
package loss

import "math"

// A Row is what the loss knows of one completion. The slices have one value a
// loss token, in order; Old, Behaviour and Reference are constants of the
// gradient.
type Row struct {
	Logprobs  []float64 // l: under the weights that are trained
	Old       []float64 // o: under the weights that the ratio is taken to
	Behaviour []float64 // b: when the token was sampled; unused without correction
	Reference []float64 // q: under the reference policy; unused without KL
	Advantage float64
}

// A Token is one loss token's part.
type Token struct {
	Loss  float64 // its term, correction and KL included
	Slope float64 // derivative of the row's sum of terms by its log-prob
	Ratio float64 // that the surrogate used; the row's own under a sequence ratio
	KL    float64 // estimate against the reference, without its coefficient

	Weight float64 // of the correction; 1 without
}

// Tokens fills out with the terms of a row, one a loss token.
//
// The gradient of a sequence ratio is spread over its tokens evenly, so Slope is
// right for every aggregation here: all tokens of a row have one divisor.
func (c Config) Tokens(r Row, out []Token) {
	logSequence, weight := 0.0, 1.0
	if c.Ratio == PerSequence {
		logSequence = mean(r.Logprobs, r.Old)
	}
	if c.Correction.Level == PerSequence {
		weight = c.Correction.weight(sum(r.Old, r.Behaviour))
	}
	for t, lp := range r.Logprobs {
		log := lp - r.Old[t]
		if c.Ratio == PerSequence {
			log = logSequence
		}
		if c.Correction.Level == PerToken {
			weight = c.Correction.weight(r.Old[t] - r.Behaviour[t])
		}
		out[t] = c.surrogate(lp, log, r.Advantage)
		out[t].Weight = weight
		out[t].Loss *= weight
		out[t].Slope *= weight
		if c.KL.Coef > 0 {
			kl, slope := c.KL.estimate(lp, r.Reference[t])
			out[t].KL = kl
			out[t].Loss += c.KL.Coef * kl
			out[t].Slope += c.KL.Coef * slope
		}
	}
}

// surrogate is the term of one token before correction and KL, given the log of
// its ratio.
func (c Config) surrogate(lp, log, advantage float64) Token {
	log, moves := c.bound(log)
	ratio := math.Exp(log)
	low, high := c.Bounds()
	clipped := min(max(ratio, low), high)
	if c.Surrogate == ClipWeight {
		return Token{Loss: -clipped * advantage * lp, Slope: -clipped * advantage, Ratio: ratio}
	}
	free := ratio
	if c.Delta > 0 && ratio > c.Delta {
		free, moves = c.Delta, false
	}
	used := free
	if clipped*advantage < free*advantage {
		used, moves = clipped, false
	}
	if c.DualClip > 0 && advantage < 0 && used > c.DualClip {
		used, moves = c.DualClip, false
	}
	term := -used * advantage
	if !moves {
		return Token{Loss: term, Ratio: ratio}
	}
	return Token{Loss: term, Slope: term, Ratio: ratio}
}

// bound limits the log of a ratio, and reports whether the ratio still moves
// with the log-prob. verl bounds a sequence's from above only.
func (c Config) bound(log float64) (float64, bool) {
	switch {
	case c.LogClamp == 0:
		return log, true
	case log > c.LogClamp:
		return c.LogClamp, false
	case log < -c.LogClamp && c.Ratio == PerToken:
		return -c.LogClamp, false
	}
	return log, true
}

// Bounds returns the interval that the surrogate clips its ratio to.
func (c Config) Bounds() (low, high float64) { return 1 - c.ClipLow, 1 + c.ClipHigh }

// weight is the importance weight of the old policy over the behaviour policy,
// given the log of their ratio: truncated into [Low, High], or 0 outside it.
func (c Correction) weight(log float64) float64 {
	if c.LogClamp > 0 {
		log = min(max(log, -c.LogClamp), c.LogClamp)
	}
	w := math.Exp(log)
	switch {
	case c.Mode == Truncate:
		return min(max(w, c.Low), c.High)
	case w < c.Low || w > c.High:
		return 0
	}
	return w
}

// estimate returns the estimate of KL(policy, reference) from one token's
// log-probs, and its derivative by the policy's (Schulman 2020, "Approximating
// KL divergence"). A trailing + takes k2's derivative, whose mean is the KL's.
func (k KL) estimate(lp, reference float64) (kl, slope float64) {
	d := reference - lp
	switch k.Estimator {
	case K1, K1Plus:
		kl, slope = -d, 1
	case K2:
		kl, slope = d*d/2, -d
	case K3, K3Plus:
		kl, slope = math.Exp(d)-d-1, 1-math.Exp(d)
	case K3Clamped, K3ClampedPlus:
		kl, slope = clampedK3(d)
	}
	if k.Estimator == K1Plus || k.Estimator == K3Plus || k.Estimator == K3ClampedPlus {
		slope = -d
	}
	return kl, slope
}

// clampedK3 bounds the difference to ±20 and the estimate to ±10, as verl does.
func clampedK3(d float64) (kl, slope float64) {
	bounded := min(max(d, -20), 20)
	kl = math.Exp(bounded) - bounded - 1
	if bounded == d && kl <= 10 {
		slope = 1 - math.Exp(d)
	}
	return min(max(kl, -10), 10), slope
}

// A Count is what denominators are made of, over the whole batch.
type Count struct {
	Tokens int // loss tokens
	Rows   int // completions, those without a loss token included
}

// Divisor returns what the sum of a row's terms is divided by; tokens counts the
// row's own.
func (c Config) Divisor(tokens int, batch Count) float64 {
	switch c.Aggregate {
	case TokenMean:
		return float64(batch.Tokens) + c.CountEps
	case SeqMeanTokenMean:
		return (float64(tokens) + c.CountEps) * float64(batch.Rows)
	case SeqMeanTokenSum:
		return float64(batch.Rows)
	case SeqMeanTokenSumNorm:
		return float64(batch.Rows) * c.Length
	}
	return 1 // token-sum
}

// Batch returns the loss of a whole batch and its gradient by each row's
// log-probs.
func (c Config) Batch(rows []Row) (loss float64, gradient [][]float64) {
	count := Count{Rows: len(rows)}
	for _, r := range rows {
		count.Tokens += len(r.Logprobs)
	}
	for _, r := range rows {
		divisor := c.Divisor(len(r.Logprobs), count)
		tokens, slopes := make([]Token, len(r.Logprobs)), make([]float64, len(r.Logprobs))
		c.Tokens(r, tokens)
		total := 0.0
		for t, token := range tokens {
			total += token.Loss
			slopes[t] = token.Slope / divisor
		}
		if len(tokens) > 0 {
			loss += total / divisor
		}
		gradient = append(gradient, slopes)
	}
	return loss, gradient
}

func sum(a, b []float64) float64 {
	total := 0.0
	for i := range a {
		total += a[i] - b[i]
	}
	return total
}

func mean(a, b []float64) float64 { return sum(a, b) / float64(max(1, len(a))) }
