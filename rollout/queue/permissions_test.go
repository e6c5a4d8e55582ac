package queue

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"xragent/internal/bus"
	"xragent/internal/bus/bustest"
	"xragent/rollout"
)

// guarded starts a server on which user "worker" may do what WorkerSubjects
// lists for w1, and user "coordinator" everything.
func guarded(t *testing.T) (connect func(user string, refused chan<- error) *nats.Conn) {
	t.Helper()
	publish, subscribe := WorkerSubjects(run, "w1")
	s, err := server.NewServer(&server.Options{
		JetStream: true, StoreDir: t.TempDir(), DontListen: true, NoSigs: true, NoLog: true,
		Users: []*server.User{
			{Username: "coordinator", Password: "x"},
			{Username: "worker", Password: "x", Permissions: &server.Permissions{
				Publish:   &server.SubjectPermission{Allow: publish},
				Subscribe: &server.SubjectPermission{Allow: subscribe},
			}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() { s.Shutdown(); s.WaitForShutdown() })
	if !s.ReadyForConnections(patience) {
		t.Fatal("server not ready")
	}
	return func(user string, refused chan<- error) *nats.Conn {
		nc, err := nats.Connect("", nats.InProcessServer(s), nats.UserInfo(user, "x"), nats.CustomInboxPrefix(bus.Inbox("w1")),
			nats.ErrorHandler(func(_ *nats.Conn, _ *nats.Subscription, err error) {
				select {
				case refused <- err:
				default:
				}
			}))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { bus.Close(nc) })
		return nc
	}
}

func TestWorkerNeedsNoMoreThanItsSubjects(t *testing.T) {
	t.Parallel()
	connect := guarded(t)
	q, err := New(t.Context(), bustest.JetStream(t, connect("coordinator", nil)), Options{Run: run, Log: quiet})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	b := &bench{t: t, queue: q}
	if err := PutRunInfo(t.Context(), q.js, run, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	refused := make(chan error, 1)
	js := bustest.JetStream(t, connect("worker", refused))
	if _, err := GetRunInfo(t.Context(), js, run); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- RunWorker(ctx, js, WorkerOptions{Run: run, Name: "w1", Slots: 2, Log: quiet}, &engine{})
	}()
	for v := range rollout.PolicyVersion(2) {
		b.open(v)
		ts := tasks(v, int(v), 4)
		b.publish(ts...)
		b.collect(ts)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	select {
	case err := <-refused:
		t.Errorf("a worker's own subject was refused: %v", err)
	default:
	}
}

func TestWorkerMayDoNothingElse(t *testing.T) {
	t.Parallel()
	connect := guarded(t)
	for _, subject := range []string{
		taskSubject(task(0, 0, 0).ID, 0), announceSubject(run), "$KV." + policyBucket(run) + ".open", "$KV." + leaseBucket(run) + ".w2",
		"$JS.API.STREAM.DELETE." + tasksStream, "$JS.API.STREAM.PURGE." + resultsStream,
		"$JS.API.CONSUMER.CREATE." + resultsStream, "$JS.API.STREAM.MSG.GET.KV_" + privateBucket(run),
		"$JS.API.DIRECT.GET.KV_" + privateBucket(run) + ".$KV." + privateBucket(run) + ".secret", resultSubject(rollout.TaskID{Run: "other"}),
	} {
		refused := make(chan error, 1)
		nc := connect("worker", refused)
		if err := errors.Join(nc.Publish(subject, nil), nc.Flush()); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-refused:
			if !errors.Is(err, nats.ErrPermissionViolation) {
				t.Errorf("%s: %v", subject, err)
			}
		case <-time.After(patience):
			t.Errorf("%s: a worker may publish there", subject)
		}
	}
}
