package queue

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"fmt"
	"math"
	"time"

	"github.com/nats-io/nats.go"
	"google.golang.org/protobuf/proto"

	"xragent/rollout"
	"xragent/rollout/queue/queuepb"
)

// CheckProof reports why p does not prove that a worker holds m: another
// digest, another kernel set, or log-probs on the canary prompt that differ
// from the learner's by more than the tolerance (absolute, in nats).
func CheckProof(m rollout.WeightsManifest, p rollout.Proof) error {
	switch {
	case p.Version != m.Version:
		return fmt.Errorf("version %d proved, want %d", p.Version, m.Version)
	case p.Digest != m.Digest:
		return fmt.Errorf("version %d: digest %.80q, want %q; fetch the weights again", m.Version, p.Digest, m.Digest)
	case p.Kernels != m.Kernels:
		return fmt.Errorf("version %d: kernel set %.80q, the run is bound to %q; start the worker with that one", m.Version, p.Kernels, m.Kernels)
	case len(p.Logprobs) != len(m.Canary.Logprobs):
		return fmt.Errorf("version %d: %d canary logprobs, want %d", m.Version, len(p.Logprobs), len(m.Canary.Logprobs))
	}
	for i, want := range m.Canary.Logprobs {
		// Written so that NaN fails.
		if diff := math.Abs(float64(p.Logprobs[i]) - float64(want)); !(diff <= m.Canary.Tolerance) {
			return fmt.Errorf("version %d: canary logprob %d is %v, want %v within %v; the engine computes something else",
				m.Version, i, p.Logprobs[i], want, m.Canary.Tolerance)
		}
	}
	return nil
}

// answerProofs answers workers' proofs with a pass or a reason.
func (q *Queue) answerProofs(context.Context) error {
	sub, err := q.js.Conn().Subscribe(proofSubject(q.opts.Run), func(msg *nats.Msg) {
		data, err := proto.Marshal(q.judge(msg.Data))
		if err == nil {
			err = msg.Respond(data)
		}
		if err != nil {
			q.opts.Log.Warn("proof not answered", "err", err)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to proofs: %w", err)
	}
	q.onClose(func() { _ = sub.Unsubscribe() }) // fails only on a closed connection
	return nil
}

func (q *Queue) judge(data []byte) *queuepb.ProofReply {
	p, err := decodeProof(data)
	if err == nil {
		err = CheckWorker(p.Worker)
	}
	if err == nil {
		err = q.admit(p)
	}
	if err != nil {
		q.opts.Log.Warn("worker refused", "worker", p.Worker, "err", err)
		q.opts.OnEvent(Event{Kind: WorkerRefused, Worker: p.Worker, Version: p.Version, Detail: err.Error()})
		return &queuepb.ProofReply{Refused: err.Error()}
	}
	q.opts.Log.Debug("worker proved", "worker", p.Worker, "version", p.Version)
	q.opts.OnEvent(Event{Kind: WorkerProved, Worker: p.Worker, Version: p.Version})
	return &queuepb.ProofReply{Pass: q.pass(p.Worker, p.Version, p.Digest)}
}

func (q *Queue) admit(p rollout.Proof) error {
	open := q.versions()
	m, ok := find(open, p.Version)
	if !ok {
		return fmt.Errorf("version %d is not open, only %v are", p.Version, numbers(open))
	}
	return CheckProof(m, p)
}

// pass signs that a worker proved a version. It is kept nowhere: the worker
// hands it in with each result, so that it is good after a restart.
func (q *Queue) pass(worker string, v rollout.PolicyVersion, digest string) []byte {
	mac := hmac.New(sha256.New, q.secret)
	fmt.Fprintf(mac, "%q %q %d %q", q.opts.Run, worker, v, digest)
	return mac.Sum(nil)
}

func (q *Queue) checkPass(r result) error {
	t := r.trajectory
	if !hmac.Equal(r.pass, q.pass(t.Worker, t.Version, r.digest)) {
		return fmt.Errorf("worker %.80q has not proved version %d", t.Worker, t.Version)
	}
	if m, ok := find(q.versions(), t.Version); ok && m.Digest != r.digest {
		return fmt.Errorf("worker %s proved other weights of version %d: digest %.80q, now %q", t.Worker, t.Version, r.digest, m.Digest)
	}
	return nil
}

func encodeProof(p rollout.Proof) ([]byte, error) {
	return marshal(&queuepb.Proof{
		Worker: p.Worker, Version: int64(p.Version), Digest: p.Digest, Kernels: p.Kernels, Logprobs: p.Logprobs,
	})
}

func decodeProof(data []byte) (rollout.Proof, error) {
	var m queuepb.Proof
	if err := unmarshal(data, &m); err != nil {
		return rollout.Proof{}, fmt.Errorf("unreadable proof: %w", err)
	}
	return rollout.Proof{
		Worker: m.GetWorker(), Version: rollout.PolicyVersion(m.GetVersion()),
		Digest: m.GetDigest(), Kernels: m.GetKernels(), Logprobs: m.GetLogprobs(),
	}, nil
}

// A RefusedError says why the coordinator refused a worker's proof.
type RefusedError struct {
	Worker, Reason string
}

func (e *RefusedError) Error() string {
	return fmt.Sprintf("worker %s refused: %s", e.Worker, e.Reason)
}

// prove sends p to the coordinator and returns the pass, or a *RefusedError.
func prove(ctx context.Context, nc *nats.Conn, run string, p rollout.Proof, wait time.Duration) ([]byte, error) {
	data, err := encodeProof(p)
	if err != nil {
		return nil, fmt.Errorf("proof: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	msg, err := nc.RequestWithContext(ctx, proofSubject(run), data)
	if err != nil {
		return nil, fmt.Errorf("proof of version %d: no answer of the coordinator: %w", p.Version, err)
	}
	var reply queuepb.ProofReply
	if err := unmarshal(msg.Data, &reply); err != nil {
		return nil, fmt.Errorf("proof of version %d: unreadable answer: %w", p.Version, err)
	}
	if reply.GetRefused() != "" || len(reply.GetPass()) == 0 {
		return nil, &RefusedError{p.Worker, reply.GetRefused()}
	}
	return reply.GetPass(), nil
}
