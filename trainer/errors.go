package trainer

import "fmt"

// An InterruptedError says that a stage was asked to end early and did, with
// everything trained so far saved. It unwraps to the cause.
type InterruptedError struct {
	Stage string
	Step  int // trained and saved
	Of    int
	Cause error
}

func (e *InterruptedError) Error() string {
	return fmt.Sprintf("%s: interrupted after step %d of %d, which is saved: run again with --resume to go on", e.Stage, e.Step, e.Of)
}

func (e *InterruptedError) Unwrap() error { return e.Cause }

// A RefusedError says that a stage did not begin: its directory holds another
// run's work, or its settings or data are not those that it began with.
type RefusedError struct{ Reason string }

func (e *RefusedError) Error() string { return e.Reason }

func refused(format string, args ...any) error {
	return &RefusedError{fmt.Sprintf(format, args...)}
}

// A StoppedError says that a stage gave up by its own rules, such as the error
// budget. What is trained is saved.
type StoppedError struct {
	Stage  string
	Step   int
	Of     int
	Reason string
}

func (e *StoppedError) Error() string {
	return fmt.Sprintf("%s: stopped after step %d of %d, which is saved: %s", e.Stage, e.Step, e.Of, e.Reason)
}

// A StalledError says that nothing came from the queue for too long.
type StalledError struct {
	Waiting string // what for
	Seconds float64
}

func (e *StalledError) Error() string {
	return fmt.Sprintf("no result for %.0f s while waiting for %s: see whether workers are running and have proved the policy version, then run again with --resume",
		e.Seconds, e.Waiting)
}

// A boundary is crossed before everything that a crash could tear apart. It is
// nil outside tests, which make it fail to see what a crash there leaves.
type boundary func(point string) error

func (b boundary) cross(point string) error {
	if b == nil {
		return nil
	}
	return b(point)
}
