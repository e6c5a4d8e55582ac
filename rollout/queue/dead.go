package queue

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The server never delivers a task again after MaxDeliver deliveries, and says
// so once, in an advisory. The advisories are kept in a stream of their own,
// so that one spoken while no coordinator runs is not lost.
const (
	advisories  = "$JS.EVENT.ADVISORY.CONSUMER.MAX_DELIVERIES." + tasksStream + ".*"
	deadMaxAge  = 7 * 24 * time.Hour
	deadRetries = time.Second
)

// followDead makes a lost result of every task that was delivered too often.
func (q *Queue) followDead(ctx context.Context) error {
	stream, err := q.js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{
		Name: deadStream, Subjects: []string{advisories}, MaxAge: deadMaxAge, Replicas: q.opts.Replicas,
	})
	if err != nil {
		return fmt.Errorf("stream %s: %w", deadStream, err)
	}
	consumer, err := stream.CreateOrUpdateConsumer(ctx, jetstream.ConsumerConfig{
		Durable: deadConsumer(q.opts.Run), AckPolicy: jetstream.AckExplicitPolicy, Replicas: q.opts.Replicas,
	})
	if err != nil {
		return fmt.Errorf("consumer %s: %w", deadConsumer(q.opts.Run), err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	consuming, err := consumer.Consume(func(msg jetstream.Msg) {
		if err := q.bury(ctx, msg.Data()); err != nil {
			q.opts.Log.Warn("advisory not dealt with, will retry", "err", err)
			_ = msg.NakWithDelay(deadRetries) // without it AckWait does the same, later
			return
		}
		_ = msg.Ack() // without it the advisory comes again and finds nothing to do
	})
	if err != nil {
		cancel()
		return fmt.Errorf("consumer %s: %w", deadConsumer(q.opts.Run), err)
	}
	q.onClose(func() {
		consuming.Stop()
		cancel()
		<-consuming.Closed()
	})
	return nil
}

// bury stores the lost result of the task that an advisory names, then removes
// the task.
func (q *Queue) bury(ctx context.Context, data []byte) error {
	var advisory struct {
		Consumer   string `json:"consumer"`
		Sequence   uint64 `json:"stream_seq"`
		Deliveries int    `json:"deliveries"`
	}
	if err := json.Unmarshal(data, &advisory); err != nil || !q.ownConsumer(advisory.Consumer) {
		return nil // another run's
	}
	msg, err := q.tasks.GetMsg(ctx, advisory.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil // finished after all
	}
	if err != nil {
		return fmt.Errorf("task at %d: %w", advisory.Sequence, err)
	}
	id, err := parseSubject(msg.Subject)
	if err == nil {
		detail := fmt.Sprintf("delivered %d times without a result", advisory.Deliveries)
		err = q.lose(ctx, lost{id, ReasonMaxDeliveries, detail})
	}
	if err != nil {
		return err
	}
	err = q.tasks.DeleteMsg(ctx, advisory.Sequence)
	if errors.Is(err, jetstream.ErrMsgNotFound) || errors.Is(err, jetstream.ErrMsgDeleteUnsuccessful) {
		return nil
	}
	return err
}
