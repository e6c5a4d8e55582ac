package trainer

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"

	"xragent/dataset"
	"xragent/reward"
	"xragent/rollout"
	"xragent/trainer/batch"
)

// A fakeLearner has eight weights that every step moves by what is in its
// batch, so that any difference in batches shows in the weights.
type fakeLearner struct {
	weights [8]float64
	steps   int
}

func (l *fakeLearner) Step(ctx context.Context, b batch.Batch, o batch.Objective) (batch.Stats, error) {
	if err := ctx.Err(); err != nil {
		return batch.Stats{}, err
	}
	all := 0
	for i, r := range b.Rows {
		for j, id := range r.IDs {
			l.weights[(i+j)%8] += o.LR * (r.Advantage + 1e-3) * float64(id) / float64(b.Tokens)
		}
		all += len(r.IDs)
	}
	l.steps++
	return batch.Stats{Loss: l.loss(), Tokens: b.Tokens, AllTokens: all, GradNorm: 1}, nil
}

func (l *fakeLearner) loss() float64 { return 1/(1+float64(l.steps)) + l.weights[0]*1e-6 }

func (l *fakeLearner) Evaluate(context.Context, batch.Batch) (float64, error) { return l.loss(), nil }

func (l *fakeLearner) bytes() []byte {
	data, err := json.Marshal([]any{l.weights, l.steps})
	if err != nil {
		panic(err)
	}
	return data
}

func (l *fakeLearner) Save(_ context.Context, dir string) error {
	return os.WriteFile(filepath.Join(dir, "weights.json"), l.bytes(), 0o644)
}

func (l *fakeLearner) Load(_ context.Context, dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, "weights.json"))
	if err != nil {
		return err
	}
	return json.Unmarshal(data, &[]any{&l.weights, &l.steps})
}

func (l *fakeLearner) Publish(_ context.Context, v rollout.PolicyVersion) (rollout.WeightsManifest, error) {
	sum := sha256.Sum256(l.bytes())
	return rollout.WeightsManifest{Version: v, Digest: hex.EncodeToString(sum[:]), Canary: fakeCanary}, nil
}

var fakeCanary = rollout.Canary{IDs: []int32{1, 2}, Logprobs: []float32{-1}, Tolerance: 1e-3}

// A fakeQueue keeps tasks and results over restarts of the trainer, as a
// stream on disk would. Its workers finish tasks in a random order, break down
// now and then, and lose some.
type fakeQueue struct {
	mu       sync.Mutex
	changed  *sync.Cond
	rng      *rand.Rand
	trouble  int // one task in so many goes wrong; 0: none
	digests  map[rollout.PolicyVersion]string
	known    map[rollout.TaskID]bool
	tasks    []rollout.Task
	results  []*fakeResult // not acknowledged
	acked    []rollout.TaskID
	done     map[rollout.TaskID]rollout.Task
	session  int
	accepted map[string]int // acknowledged valid results by step/group/index
	served   int
}

type fakeResult struct {
	trajectory *rollout.Trajectory
	lost       *Lost
	session    int // that it was last delivered in
	times      int
}

func newFakeQueue(seed uint64) *fakeQueue {
	q := &fakeQueue{rng: rand.New(rand.NewPCG(seed, 9)), digests: map[rollout.PolicyVersion]string{}, known: map[rollout.TaskID]bool{}, done: map[rollout.TaskID]rollout.Task{}, accepted: map[string]int{}}
	q.changed = sync.NewCond(&q.mu)
	return q
}

// work runs workers until ctx ends.
func (q *fakeQueue) work(ctx context.Context, workers int) (wait func()) {
	q.mu.Lock()
	q.session++
	q.mu.Unlock()
	var wg sync.WaitGroup
	for i := range workers {
		wg.Go(func() { q.worker(ctx, fmt.Sprint("worker-", i)) })
	}
	stop := context.AfterFunc(ctx, func() { q.mu.Lock(); q.changed.Broadcast(); q.mu.Unlock() })
	return func() { wg.Wait(); stop() }
}

func (q *fakeQueue) worker(ctx context.Context, name string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for ctx.Err() == nil {
		if len(q.tasks) == 0 {
			q.changed.Wait()
			continue
		}
		i := q.rng.IntN(len(q.tasks))
		task := q.tasks[i]
		q.tasks = slices.Delete(q.tasks, i, i+1)
		q.results = append(q.results, q.perform(task, name))
		q.changed.Broadcast()
	}
}

func (q *fakeQueue) perform(task rollout.Task, name string) *fakeResult {
	q.served++
	q.done[task.ID] = task
	t := sampleTrajectory(task, q.digests[task.Version])
	t.Worker, t.Seconds = name, map[string]float64{"turn1": q.rng.Float64()}
	if q.trouble > 0 {
		switch q.rng.IntN(q.trouble) {
		case 0:
			t.Stop = rollout.ToolDown
		case 1:
			return &fakeResult{lost: &Lost{task.ID, "deliveries"}}
		case 2:
			t.Turns[0].Logprobs = t.Turns[0].Logprobs[1:]
		}
	}
	return &fakeResult{trajectory: &t}
}

// sampleTrajectory depends on the task and the weights alone.
func sampleTrajectory(task rollout.Task, digest string) rollout.Trajectory {
	var key [32]byte
	copy(key[:], digest)
	src := rand.NewChaCha8(sha256.Sum256(fmt.Appendf(key[:], "%d %s", task.Seed, task.Sample)))
	rng := rand.New(src)
	turn := func(prompt []int32) rollout.Turn {
		out := []int32{rng.Int32N(100), rng.Int32N(100), 3}
		return rollout.Turn{PromptIDs: prompt, OutputIDs: out, Logprobs: []float32{-rng.Float32(), -rng.Float32(), -0.5},
			Finish: rollout.FinishStop, Oldest: task.Version, Newest: task.Version}
	}
	first := turn([]int32{1, 2})
	second := turn(append(append([]int32{1, 2}, first.OutputIDs...), 4, 5))
	png := fmt.Appendf(nil, "crop %d", first.OutputIDs[0])
	sum := sha256.Sum256(png)
	return rollout.Trajectory{
		Task: task.ID, Sample: task.Sample, Version: task.Version, Seed: task.Seed,
		Turns: []rollout.Turn{first, second}, Stop: rollout.Answered,
		Calls:       []rollout.Call{{Tool: "roi_crop", Arguments: json.RawMessage(`{"region":"heart"}`), Status: rollout.CallOK, LatencyMS: rng.Float64()}},
		Attachments: []rollout.Attachment{{SHA256: hex.EncodeToString(sum[:]), PNG: png}},
		Bundle:      rollout.Bundle{Measurements: []rollout.Measurement{{Name: rollout.CTR, Value: 0.5, Admitted: first.OutputIDs[0] > 30}}},
	}
}

func (q *fakeQueue) Open(_ context.Context, m rollout.WeightsManifest) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if was, ok := q.digests[m.Version]; ok && was != m.Digest {
		return fmt.Errorf("version %d published with two digests", m.Version)
	}
	q.digests[m.Version] = m.Digest
	return nil
}

func (q *fakeQueue) Publish(_ context.Context, tasks []rollout.Task) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, t := range tasks {
		if q.digests[t.Version] == "" {
			return fmt.Errorf("task %v asks for version %d, which is not open", t.ID, t.Version)
		}
		if !q.known[t.ID] {
			q.known[t.ID] = true
			q.tasks = append(q.tasks, t)
		}
	}
	q.changed.Broadcast()
	return nil
}

func (q *fakeQueue) Next(ctx context.Context) (Delivery, error) {
	stop := context.AfterFunc(ctx, func() { q.mu.Lock(); q.changed.Broadcast(); q.mu.Unlock() })
	defer stop()
	q.mu.Lock()
	defer q.mu.Unlock()
	for {
		if ctx.Err() != nil {
			return Delivery{}, ctx.Err()
		}
		for _, r := range q.results {
			if r.session != q.session || q.trouble > 0 && r.times < 2 && q.rng.IntN(20) == 0 {
				r.session = q.session
				r.times++
				return Delivery{Trajectory: r.trajectory, Lost: r.lost, Redelivered: r.times > 1, Ack: func() error { return q.ack(r) }}, nil
			}
		}
		q.changed.Wait()
	}
}

func (q *fakeQueue) ack(r *fakeResult) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.results = slices.DeleteFunc(q.results, func(x *fakeResult) bool { return x == r })
	q.acked = append(q.acked, r.task())
	return nil
}

func (r *fakeResult) task() rollout.TaskID {
	if r.lost != nil {
		return r.lost.Task
	}
	return r.trajectory.Task
}

// Forget drops what is acknowledged: published once more it would be done once
// more. Where there is trouble a worker does one of them once more as it is.
func (q *fakeQueue) Forget(context.Context) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, id := range q.acked {
		delete(q.known, id)
		if t, ok := q.done[id]; ok && q.trouble > 0 && q.rng.IntN(4) == 0 {
			q.tasks = append(q.tasks, t)
		}
	}
	q.acked = nil
	q.changed.Broadcast()
	return nil
}

type fakeBlobs struct{}

func (b *fakeBlobs) Put(_ context.Context, data []byte) (string, error) {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:]), nil
}

func fakeSamples(n int) []dataset.Sample {
	var samples []dataset.Sample
	for i := range n {
		samples = append(samples, dataset.Sample{ID: fmt.Sprint("s", i), Answer: "yes"})
	}
	return samples
}

// fakeScore calls an answer right by its first sampled id, and some samples
// always wrong, so that some groups have no variance.
func fakeScore(t rollout.Trajectory, s dataset.Sample) (reward.Score, error) {
	if s.ID[len(s.ID)-1]%3 == 0 {
		return reward.Score{Format: 1, Total: 1, Calls: 1}, nil
	}
	right := float64(t.Turns[1].OutputIDs[0] % 2)
	return reward.Score{Format: 1, Accuracy: right, Total: 1 + right, Calls: 1}, nil
}

var errKilled = errors.New("killed")
