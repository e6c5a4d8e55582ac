package queue

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"xragent/rollout"
)

// The streams. All runs of a server share them; a run's subjects start with
// its name, and uniqueness lies in one message a subject.
const (
	tasksStream   = "TASKS"
	resultsStream = "TRAJ"
	deadStream    = "DEAD"
	prefix        = "xragent."
)

// maxRunName keeps subjects, consumers and bucket names within bounds.
const maxRunName = 64

// CheckRun reports why name cannot name a run on the wire: it becomes part of
// subjects and of consumer and bucket names.
func CheckRun(name string) error {
	if name == "" || len(name) > maxRunName {
		return fmt.Errorf("run name %.80q: %d characters, want 1 to %d", name, len(name), maxRunName)
	}
	if c := strings.IndexFunc(name, notNameRune); c >= 0 {
		return fmt.Errorf("run name %q: character %q; use letters, digits, - and _", name, name[c])
	}
	return nil
}

// CheckWorker reports why name cannot name a worker on the wire.
func CheckWorker(name string) error {
	if name == "" || len(name) > maxRunName || strings.IndexFunc(name, notNameRune) >= 0 {
		return fmt.Errorf("worker name %.80q: want 1 to %d letters, digits, - and _", name, maxRunName)
	}
	return nil
}

func notNameRune(r rune) bool {
	letter := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
	return !letter && (r < '0' || r > '9') && r != '-' && r != '_'
}

func taskSubject(id rollout.TaskID, v rollout.PolicyVersion) string {
	return fmt.Sprintf("%s%s.task.v%d.%d.%d.%d.%d", prefix, id.Run, v, id.Step, id.Group, id.Index, id.Attempt)
}

func resultSubject(id rollout.TaskID) string {
	return fmt.Sprintf("%s%s.traj.%d.%d.%d.%d", prefix, id.Run, id.Step, id.Group, id.Index, id.Attempt)
}

func versionSubjects(run string, v rollout.PolicyVersion) string {
	return fmt.Sprintf("%s%s.task.v%d.>", prefix, run, v)
}

func resultSubjects(run string) string { return prefix + run + ".traj.>" }
func stepResults(run string, step int) string {
	return fmt.Sprintf("%s%s.traj.%d.>", prefix, run, step)
}
func announceSubject(run string) string { return prefix + run + ".policy" }
func proofSubject(run string) string    { return prefix + run + ".proof" }
func policyBucket(run string) string    { return "policy_" + run }
func leaseBucket(run string) string     { return "lease_" + run }
func privateBucket(run string) string   { return "coordinator_" + run }
func deadConsumer(run string) string    { return run + "_dead" }
func versionConsumer(run string, v rollout.PolicyVersion) string {
	return fmt.Sprintf("%s_v%d", run, v)
}

var errSubject = errors.New("not a subject of the queue")

// parseSubject returns the task id that a task's or a result's subject names.
func parseSubject(subject string) (rollout.TaskID, error) {
	bad := func() (rollout.TaskID, error) {
		return rollout.TaskID{}, fmt.Errorf("%w: %.120q", errSubject, subject)
	}
	rest, ok := strings.CutPrefix(subject, prefix)
	if !ok {
		return bad()
	}
	part := strings.Split(rest, ".")
	switch {
	case len(part) == 7 && part[1] == "task" && strings.HasPrefix(part[2], "v"):
		part = append(part[:1:1], part[3:]...)
	case len(part) == 6 && part[1] == "traj":
		part = append(part[:1:1], part[2:]...)
	default:
		return bad()
	}
	var n [4]int
	for i := range n {
		v, err := strconv.Atoi(part[i+1])
		if err != nil {
			return bad()
		}
		n[i] = v
	}
	return rollout.TaskID{Run: part[0], Step: n[0], Group: n[1], Index: n[2], Attempt: n[3]}, CheckRun(part[0])
}
