// Package trainer drives a run: supervised fine-tuning and GRPO.
//
// It owns goroutines, clocks, checkpoints and the ledger, and carries out what
// package coordinator decides; it decides nothing itself.
//
// A stage has a directory of its own:
//
//	identity.json     settings and digests that it began with; a continued run must have the same
//	checkpoints/      see [Checkpoint]
//	steps.jsonl       a [StepRecord] a step; equal runs write equal bytes
//	timings.jsonl     a [StepTimes] a step; what differs between equal runs
//	ledger            GRPO: every result that counts, every rejection, every decision; see [ReadLedger]
//	canonical.jsonl   GRPO: the trajectories of the ledger in order; see [Canonical]
//
// A stage that was killed at any point is continued from its newest checkpoint.
// Steps after that are taken again, from the trajectories in the ledger, so that
// nothing is sampled twice, and end in the same bytes.
package trainer

import (
	"context"

	"xragent/rollout"
	"xragent/trainer/batch"
)

// A Learner holds the trained weights and takes optimizer steps.
// Equal sequences of calls give equal bits.
type Learner interface {
	// Step takes one optimizer step. An error leaves the weights as they were.
	Step(ctx context.Context, b batch.Batch, o batch.Objective) (batch.Stats, error)
	// Evaluate returns the mean loss over the batch's loss tokens, changing nothing.
	Evaluate(ctx context.Context, b batch.Batch) (float64, error)
	// Save writes weights and optimizer state into dir; Load reads them back.
	Save(ctx context.Context, dir string) error
	Load(ctx context.Context, dir string) error
	// Publish makes the current weights fetchable as version v.
	Publish(ctx context.Context, v rollout.PolicyVersion) (rollout.WeightsManifest, error)
}

// A Queue carries tasks to rollout workers and finished trajectories back.
type Queue interface {
	// Open admits workers to a version: it announces m and creates the
	// version's consumer. Versions older than m.Version-keep are closed.
	Open(ctx context.Context, m rollout.WeightsManifest) error
	// Publish stores tasks; publishing a stored or finished task again changes nothing.
	Publish(ctx context.Context, tasks []rollout.Task) error
	// Next returns the next result, waiting until there is one.
	Next(ctx context.Context) (Delivery, error)
	// Forget lets the queue drop the results that are acknowledged.
	Forget(ctx context.Context) error
}

// A Delivery is one thing that came back from the queue. Exactly one of
// Trajectory and Lost is set. Ack must be called after the delivery is durable
// in the ledger; without it the delivery comes again.
type Delivery struct {
	Trajectory  *rollout.Trajectory
	Lost        *Lost
	Redelivered bool // the task or the result had been delivered before
	Ack         func() error
}

// Lost says that a task came to nothing: delivered too often, refused as
// poison, or its result could not be read.
type Lost struct {
	Task   rollout.TaskID
	Reason string
}
